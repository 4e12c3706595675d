"""This host from /proc: CPU of each rank and worker, what they read from disks, load, steal, /dev/shm, memory.

Files are opened once and read again in place: cheap, and an open /proc/PID/stat cannot come to mean
another process. CPU times have a resolution of one clock tick (10 ms): single readings are coarse, means are not.
"""

import os
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

from bench import cgroup
from bench.samplers._counters import Counters
from bench.samplers._files import Files
from bench.samplers._processes import Processes
from bench.sampling import Readings, Sampler, Watch

UNTOLD = "the kernel does not say what the ranks make disks read (/proc/PID/io)"
ELSEWHERE = "tasks are counted on all CPUs of the machine, and this study may use some of them only"


class HostReader:
    """Reads every source; one that cannot be read is null, and `reasons` says why."""

    def __init__(
        self, watch: Watch, proc: Path = Path("/proc"), shm: Path = Path("/dev/shm"),
        cpus: Collection[int] | None = None, cgroups: Path = cgroup.ROOT,
    ) -> None:  # fmt: skip
        """`cpus` are those that the ranks may use: as this process may, where that is not said."""
        self.reasons: dict[str, str] = {}
        self._mine = {b"cpu%d" % cpu for cpu in (os.sched_getaffinity(0) if cpus is None else cpus)}
        self._groups = cgroup.memory_groups(cgroups)
        self.processes = Processes(watch.engine_pgid, watch.rank_pids, proc)
        self._counters = Counters(self.reasons)
        self._files, self._shm = Files(proc), shm
        self._cpu: list[int] | None = None

    def read(self, now_s: float) -> Readings:
        """All measures at once. Rates appear from the second reading on."""
        values: Readings = {}
        self._try(values, ("node", "load1"), self._load)
        self._try(values, ("node", "cpu_percent"), self._cpus)
        self._try(values, ("node", "memory_available_bytes"), self._memory)
        self._try(values, ("node", "shm_used_bytes"), self._shared)
        self._try(values, ("ranks", "cpu_percent"), lambda: self.processes.read(now_s))
        for measure, count in self.processes.touched().items():
            self._counters.added(values, ("ranks", measure), count)
            if count is None:
                self.reasons.setdefault(f"ranks/{measure}", UNTOLD)
        return values

    def _try(self, values: Readings, key: tuple[str, str], source: Callable[[], Readings]) -> None:
        try:
            values |= source()
        except (OSError, ValueError, IndexError, KeyError, ZeroDivisionError) as error:
            values[key] = None
            self.reasons.setdefault("/".join(key), f"{type(error).__name__}: {error}")

    def _load(self) -> Readings:
        """The load of the last minute, and tasks that run or wait for a CPU right now, less this process."""
        words = self._files.text("loadavg").split()
        runnable: float | None = max(0.0, float(words[3].partition(b"/")[0]) - 1)
        if self._bound:
            runnable = None
            self.reasons["node/runnable"] = ELSEWHERE
        return {("node", "load1"): float(words[0]), ("node", "runnable"): runnable}

    @cached_property
    def _bound(self) -> bool:
        """Whether the machine has CPUs that ranks may not use."""
        return self._mine < self._times().keys()

    def _times(self) -> dict[bytes, list[bytes]]:
        """Clock ticks of each CPU, by its name."""
        lines = [line.split() for line in self._files.text("stat").split(b"\nintr", 1)[0].splitlines()[1:]]
        return {line[0]: line[1:9] for line in lines}

    def _cpus(self) -> Readings:
        """Percent of the CPUs that ranks may use, together: busy with anything, and stolen by the hypervisor."""
        times = self._times()
        # where a container numbers its CPUs by itself all of them are its own
        mine = self._mine if self._mine <= times.keys() else times
        now = [sum(map(int, column)) for column in zip(*(times[name] for name in mine), strict=True)]
        before, self._cpu = self._cpu, now
        if before is None:
            return {}
        user, nice, system, _idle, _iowait, irq, softirq, steal = (
            b - a for a, b in zip(before, now, strict=True)
        )
        total = sum(now) - sum(before)
        if total <= 0:
            return {}
        busy = user + nice + system + irq + softirq
        return {("node", "cpu_percent"): 100 * busy / total, ("node", "steal_percent"): 100 * steal / total}

    def _memory(self) -> Readings:
        text = self._files.text("meminfo")
        total, available = (
            1024.0 * int(text[text.index(name) :].split(None, 2)[1])
            for name in (b"MemTotal:", b"MemAvailable:")
        )
        shares = [1 - available / total, *(group.used_share() or 0.0 for group in self._groups)]
        used = 100 * max(shares)  # of the machine, or of what a control group allows
        return {("node", "memory_available_bytes"): available, ("node", "memory_used_percent"): used}

    def _shared(self) -> Readings:
        disk = os.statvfs(self._shm)
        return {("node", "shm_used_bytes"): float((disk.f_blocks - disk.f_bfree) * disk.f_frsize)}


PLUGIN = Sampler(summary="CPU, load, /dev/shm and memory of this host, from /proc", open=HostReader)
