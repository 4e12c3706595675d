"""A launch's window as its telemetry shows it: what was read of nodes, devices and processes, and whose they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.environment import bare_uuid
from bench.records import RankSummary

Stats = Mapping[str, Mapping[str, float | None]]  # "subject/measure" -> mean and max, or total

# first words of subjects of telemetry that are of the launch, besides its ranks
OURS = ("engine", "sampler", "process")


@dataclass(frozen=True)
class Scene:
    """A launch as the rules see it: what was sampled in its window, and whose that was."""

    telemetry: Stats
    window_s: float
    ranks: Sequence[RankSummary]
    cpus: Mapping[int, int]  # of each node, those that ranks may use
    shared: bool = False  # all nodes are on one machine
    cold: bool = False  # the case asks for files that are not in the page cache

    def stat(self, subject: str, measure: str, what: str) -> float | None:
        """One figure of the telemetry, or None."""
        return self.telemetry.get(f"{subject}/{measure}", {}).get(what)

    def nodes(self) -> Iterator[tuple[int, str]]:
        """Every node that ranks ran on, and what telemetry calls it; one of those that share a machine."""
        for node in sorted({0 if self.shared else rank.node for rank in self.ranks}):
            yield node, "node" if node == 0 else f"node {node}"

    def devices(self) -> Iterator[str]:
        """The subjects of telemetry that are devices of the ranks."""
        used = {bare_uuid(u) for rank in self.ranks if rank.effective for u in rank.effective.device_uuids}
        subjects = dict.fromkeys(key.rpartition("/")[0] for key in self.telemetry)
        yield from (subject for subject in subjects if bare_uuid(subject) in used)

    def own_cpus(self) -> dict[int, list[float]]:
        """Percent of a CPU that each process of this launch used, by node; only of nodes where all ranks were read."""
        where = {rank.rank: rank.node for rank in self.ranks}
        found: dict[int, list[float]] = {}
        for key, stat in self.telemetry.items():
            subject, _, measure = key.rpartition("/")
            node, ours = _whose(subject, where)
            if ours and measure == "cpu_percent":
                found.setdefault(0 if self.shared else node, []).append(stat.get("mean") or 0.0)
        unread = {
            node for rank, node in where.items() if self.stat(f"rank {rank}", "cpu_percent", "mean") is None
        }
        return {
            node: used
            for node, used in found.items()
            if not unread & ({*where.values()} if self.shared else {node})
        }


def _whose(subject: str, where: Mapping[int, int]) -> tuple[int, bool]:
    """The node that a subject of telemetry is on, and whether it is a process of ours."""
    words = subject.split()
    if words[0] == "rank":
        return where.get(int(words[1]), 0), True
    if words[0] == "node" and len(words) > 1:
        return int(words[1]), len(words) > 2 and words[2] in OURS
    return 0, words[0] in OURS
