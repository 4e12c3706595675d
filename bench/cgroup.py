"""What the control group of this process allows: CPU quota and memory, of cgroup v2 and v1.

A quota does not change the affinity mask, so neither os.cpu_count nor sched_getaffinity shows it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 1 << 60  # v1 writes "no limit" as a number near 2**63


def cpu_quota(root: Path = ROOT, own: str | None = None) -> float | None:
    """CPUs' worth of time allowed, the tightest of this process's group and its parents; None: no limit.

    `own` is the text of /proc/self/cgroup (None: read it). Files that are missing or odd set no limit.
    """
    quotas = [_v2_quota(_text(folder / "cpu.max")) for folder in folders(root, "", own)]
    for folder in folders(root, "cpu", own):
        period = _number(_text(folder / "cpu.cfs_period_us"))
        quota = _number(_text(folder / "cpu.cfs_quota_us"))
        quotas.append(quota / period if quota and period and quota > 0 else None)
    return min((quota for quota in quotas if quota), default=None)


def memory_limit_bytes(root: Path = ROOT, own: str | None = None) -> int | None:
    """Bytes of memory allowed, the tightest of this process's group and its parents; None: no limit."""
    return min((group.limit_bytes for group in memory_groups(root, own)), default=None)


class MemoryGroup(NamedTuple):
    """A control group with a limit, and where its use is told."""

    folder: Path
    limit_bytes: int
    usage: str  # name of a file
    cache: str  # name of the line in memory.stat: pages of files that the kernel gives up before it kills

    def used_share(self) -> float | None:
        """Share of the limit that is in use, idle page cache aside; None where that is not told."""
        used = _number(_text(self.folder / self.usage))
        if used is None:
            return None
        stat = dict(line.partition(" ")[::2] for line in _text(self.folder / "memory.stat").splitlines())
        return max(0, used - (_number(stat.get(self.cache, "")) or 0)) / self.limit_bytes


def memory_groups(root: Path = ROOT, own: str | None = None) -> list[MemoryGroup]:
    """This process's group and its parents, those of them that limit memory."""
    kinds = (  # cgroup v2, v1
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    return [
        MemoryGroup(folder, limit, usage, cache)
        for controller, file, usage, cache in kinds
        for folder in folders(root, controller, own)
        if (limit := _number(_text(folder / file))) is not None and 0 < limit < UNLIMITED_BYTES
    ]


def folders(root: Path, controller: str, own: str | None = None) -> Iterator[Path]:
    """Folders of this process's group and all its parents; controller "" is the v2 tree.

    Inside a container the own path may name a group that only the host sees: its parents up to
    the mount, which is the container's own group, are then what exists.
    """
    if own is None:
        own = _text(Path("/proc/self/cgroup"))
    mounts = [root, root / "unified"] if controller == "" else [root / controller]
    path = ""
    for line in own.splitlines():
        _, controllers, where = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            path = where
            if controller:
                mounts.append(root / controllers)
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for mount in dict.fromkeys(mounts):
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _v2_quota(text: str) -> float | None:
    """CPUs of a cpu.max file: "200000 100000" is 2.0, "max 100000" no limit."""
    quota, period = ([_number(word) for word in text.split()] + [None, None])[:2]
    return quota / period if quota and period else None


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def oom_kills(root: Path = ROOT, own: str | None = None) -> int:
    """Out-of-memory kills the kernel has counted in this process's control groups, innermost and up; 0 if none."""
    found = 0
    for folder in folders(root, "memory", own):
        for name in ("memory.events", "memory.oom_control"):  # cgroup v2, v1
            for line in _text(folder / name).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    found = max(found, _number(value) or 0)
    return found
