"""What else the machine did in a launch's window: one table of rules on what was sampled beside the ranks.

A rule sees telemetry, never the result, so that no launch is marked or run again for being slow. A launch above
a rule's first threshold is marked; above the second it is disqualified: run again in its block, within a cap
(Stopping.repeats). The causes are declared here, before anything runs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bench.records import LaunchRecord
from bench.scene import Scene

MIB = 2**20
MANY_CPUS = 0.3  # of other processes: fewer are said of no host
FEW_READINGS_S = 0.5  # a shorter window has too few readings to tell whose CPU time it was
BUSY = "busy host: other processes used "

# Throttle words of the sampler that keep a device below the speed it is sold with, and what they stand for.
FAULTS = {
    "hw_thermal_slowdown": "heat", "sw_thermal_slowdown": "heat", "hw_power_brake": "the power brake",
    "hw_slowdown": "a hardware slowdown",  # set beside the others: it names a cause only where they do not
}  # fmt: skip


class Seen(NamedTuple):
    """What a rule saw on one node or device: how much, and the words for it."""

    value: float
    words: str


class Rule(NamedTuple):
    """One row: what is looked at, above what a launch is marked, and above what it is run again (None: never)."""

    name: str
    look: Callable[[Scene], Iterable[Seen]]
    marked_above: float
    again_above: float | None = None
    least_window_s: float = 0.0


class Judgement(NamedTuple):
    """What was found, in words, the name of the rule first; and whether it disqualifies the launch."""

    words: tuple[str, ...]
    disqualified: bool


def judge(scene: Scene) -> Judgement:
    """Every rule on one launch; of several nodes or devices the worst is told."""
    words, again = [], False
    for rule in TABLE:
        if scene.window_s < rule.least_window_s:
            continue
        worst = max(rule.look(scene), default=None, key=lambda seen: seen.value)
        if worst is not None and worst.value > rule.marked_above:
            words.append(f"{rule.name}: {worst.words}")
            again |= rule.again_above is not None and worst.value > rule.again_above
    return Judgement(tuple(words), again)


def replaced(records: Iterable[LaunchRecord]) -> dict[str, str]:
    """Launches in whose place another one counts, and which, in words: of a disqualified one and its repeat one has a vote.

    The repeat has it where it gave a number of what was asked for and its own telemetry does not disqualify it too;
    else the first. Neither number is looked at.
    """
    return dict(
        (r.launch, f"run again no better: {r.retry_of} stays")
        if r.disqualified
        else (r.retry_of, f"replaced by {r.launch}")
        for r in records
        if r.retry_of and r.status == "ok" and r.window and r.window.samples_per_s and not r.mismatches
    )


def told(launches: Iterable[Sequence[str]]) -> dict[str, str]:
    """What contaminated some launches: each cause once, in the words of the first, with the number of the others."""
    found: dict[str, list[str]] = {}
    for words in launches:
        for text in words:
            found.setdefault(text.partition(":")[0], []).append(text)
    return {
        name: some[0] + (f" (and {len(some) - 1} more)" if len(some) > 1 else "")
        for name, some in found.items()
    }


def _other_cpus(scene: Scene) -> Iterator[Seen]:
    """The share of the CPUs that ranks may use which went to what is neither rank, worker, engine nor sampler."""
    own = scene.own_cpus()
    for node, subject in scene.nodes():
        used, count = scene.stat(subject, "cpu_percent", "mean"), scene.cpus.get(node, 1)
        if used is None or node not in own:
            continue
        others = (used * count - sum(own[node])) / 100  # the node's is a share of these, a process's of one
        if others > MANY_CPUS:
            yield Seen(others / count, f"other processes used {others:.1f} of {_cpus(count)}{_on(node)}")


def _stolen(scene: Scene) -> Iterator[Seen]:
    for node, subject in scene.nodes():
        stolen = scene.stat(subject, "steal_percent", "mean")
        if stolen is not None:
            yield Seen(stolen / 100, f"the hypervisor took {stolen:.0f} % of the CPUs{_on(node)}")


def _queue(scene: Scene) -> Iterator[Seen]:
    """Tasks a CPU that wanted to run beside those of the launch, if all of these wanted to at all times."""
    own = scene.own_cpus()
    threads = max((rank.effective.threads for rank in scene.ranks if rank.effective), default=1)
    for node, subject in scene.nodes():
        runnable, count = scene.stat(subject, "runnable", "mean"), scene.cpus.get(node, 1)
        if runnable is not None and node in own:
            text = f"{runnable:.1f} tasks at a time wanted {_cpus(count)}{_on(node)}"
            yield Seen((runnable - threads * len(own[node])) / count, text)


def _others_on_device(scene: Scene) -> Iterator[Seen]:
    for device in scene.devices():
        others = scene.stat(device, "foreign_processes", "max")
        if others is not None:
            yield Seen(others, f"{others:.0f} of others computed on {device}")


def _throttled(scene: Scene) -> Iterator[Seen]:
    for device in scene.devices():
        shares = {word: scene.stat(device, f"throttle_{word}", "mean") or 0.0 for word in FAULTS}
        word = max(shares, key=lambda name: shares[name])
        yield Seen(
            shares[word],
            f"{FAULTS[word]} held clocks of {device} down in {_percent(shares[word])} of the window",
        )


def _device_clocks(scene: Scene) -> Iterator[Seen]:
    """How far the mean clock lay below the highest one, of a device known to be at work all the time."""
    for device in scene.devices():
        mean, most = (scene.stat(device, "sm_clock_mhz", what) for what in ("mean", "max"))
        idle = scene.stat(device, "throttle_gpu_idle", "mean")
        if mean is not None and most and idle is not None and idle < 0.05:
            yield _below(mean, most, device)


def _cpu_throttled(scene: Scene) -> Iterator[Seen]:
    for share, node in _shares(scene, "cpu_throttled_s"):
        yield Seen(share, f"heat held CPUs down in {_percent(share)} of the window{_on(node)}")


def _cpu_clocks(scene: Scene) -> Iterator[Seen]:
    for node, subject in scene.nodes():
        mean, most = (scene.stat(subject, "cpu_mhz", what) for what in ("mean", "max"))
        if mean is not None and most:
            yield _below(mean, most, f"the CPUs{_on(node)}")


def _memory_used(scene: Scene) -> Iterator[Seen]:
    for node, subject in scene.nodes():
        used = scene.stat(subject, "memory_used_percent", "max")
        if used is not None:
            yield Seen(used / 100, f"{used:.0f} % of the memory was in use{_on(node)}")


def _swapped(scene: Scene) -> Iterator[Seen]:
    for node, subject in scene.nodes():
        moved = scene.stat(subject, "swapped_bytes", "total")
        if moved is not None:
            yield Seen(moved, f"{moved / MIB:.0f} MiB went to swap or came back{_on(node)}")


def _memory_waits(scene: Scene) -> Iterator[Seen]:
    for share, node in _shares(scene, "memory_pressure_s"):
        yield Seen(share, f"something waited for memory in {_percent(share)} of the window{_on(node)}")


def _first_touch(scene: Scene) -> Iterator[Seen]:
    """What ranks and workers made the disks read, of files that were not asked to be cold."""
    for node, subject in scene.nodes():
        read = scene.stat("ranks" if node == 0 else f"{subject} ranks", "read_bytes", "total")
        if read is not None and not scene.cold:
            yield Seen(read, f"{read / MIB:.0f} MiB came from disks, not from the page cache{_on(node)}")


def _shares(scene: Scene, measure: str) -> Iterator[tuple[float, int]]:
    """A node's counter of seconds as a share of the window."""
    for node, subject in scene.nodes():
        seconds = scene.stat(subject, measure, "total")
        if seconds is not None and scene.window_s > 0:
            yield seconds / scene.window_s, node


def _below(mean: float, most: float, what: str) -> Seen:
    drop = 1 - mean / most
    return Seen(drop, f"{what} ran {_percent(drop)} below {most:.0f} MHz, the highest of the window")


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _cpus(count: int) -> str:
    return f"{count} CPU" + "s" * (count != 1)


def _on(node: int) -> str:
    return f" on node {node}" if node else ""


# The declared causes. Thresholds are shares of CPUs or of the window, counts, or bytes: see docs/method.md.
TABLE = (
    Rule("busy host", _other_cpus, 0.05, again_above=0.25, least_window_s=FEW_READINGS_S),
    Rule("steal", _stolen, 0.03, again_above=0.10, least_window_s=FEW_READINGS_S),
    Rule("load", _queue, 0.5, least_window_s=FEW_READINGS_S),
    Rule("foreign process", _others_on_device, 0, again_above=0),
    Rule("throttled", _throttled, 0.01, again_above=0.01),
    Rule("device clocks", _device_clocks, 0.05),
    Rule("CPUs throttled", _cpu_throttled, 0.01, again_above=0.01),
    Rule("CPU clocks", _cpu_clocks, 0.15),
    Rule("memory", _memory_used, 0.95),
    Rule("swap", _swapped, MIB),
    Rule("memory pressure", _memory_waits, 0.05),
    Rule("first touch", _first_touch, 4 * MIB),
)
