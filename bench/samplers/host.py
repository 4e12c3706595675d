"""This host from /proc: CPU of each rank and worker, load, steal, network, /dev/shm, memory.

Files are opened once and read again in place: cheap, and an open /proc/PID/stat cannot come to mean
another process. CPU times have a resolution of one clock tick (10 ms): single readings are coarse, means are not.
"""

import os
from collections.abc import Callable
from pathlib import Path

from bench.samplers._processes import Processes
from bench.sampling import Readings, Sampler, Watch


class HostReader:
    """Reads every source; one that cannot be read is null, and `reasons` says why."""

    def __init__(self, watch: Watch, proc: Path = Path("/proc"), shm: Path = Path("/dev/shm")) -> None:
        self.reasons: dict[str, str] = {}
        self.processes = Processes(watch.engine_pgid, watch.rank_pids, proc)
        self._proc, self._shm = proc, shm
        self._files: dict[str, int] = {}
        self._cpu: tuple[int, ...] | None = None
        self._net: tuple[float, dict[str, tuple[int, int]]] | None = None

    def read(self, now_s: float) -> Readings:
        """All measures at once. Rates appear from the second reading on."""
        values: Readings = {}
        self._try(values, ("node", "load1"), self._load)
        self._try(values, ("node", "cpu_percent"), self._cpus)
        self._try(values, ("node", "memory_available_bytes"), self._memory)
        self._try(values, ("node", "shm_used_bytes"), self._shared)
        self._try(values, ("net", "rx_bytes_per_s"), lambda: self._network(now_s))
        self._try(values, ("ranks", "cpu_percent"), lambda: self.processes.read(now_s))
        return values

    def _try(self, values: Readings, key: tuple[str, str], source: Callable[[], Readings]) -> None:
        try:
            values |= source()
        except (OSError, ValueError, IndexError, KeyError) as error:
            values[key] = None
            self.reasons.setdefault("/".join(key), f"{type(error).__name__}: {error}")

    def _text(self, name: str) -> bytes:
        if name not in self._files:
            self._files[name] = os.open(self._proc / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._files[name], 1 << 16, 0)

    def _whole_text(self, name: str) -> bytes:
        """For files that the kernel hands out a page at a time, in whole lines."""
        text = self._text(name)
        while more := os.pread(self._files[name], 1 << 16, len(text)):
            text += more
        return text

    def _load(self) -> Readings:
        return {("node", "load1"): float(self._text("loadavg").split()[0])}

    def _cpus(self) -> Readings:
        """Percent of all CPUs together: busy with anything, and stolen by the hypervisor."""
        now = tuple(int(field) for field in self._text("stat").split(b"\n", 1)[0].split()[1:9])
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
        text = self._text("meminfo")
        at = text.index(b"MemAvailable:")
        return {("node", "memory_available_bytes"): 1024.0 * int(text[at:].split(None, 2)[1])}

    def _shared(self) -> Readings:
        disk = os.statvfs(self._shm)
        return {("node", "shm_used_bytes"): float((disk.f_blocks - disk.f_bfree) * disk.f_frsize)}

    def _network(self, now_s: float) -> Readings:
        """Bytes a second of every interface that ever carried any."""
        counts = {}
        for line in self._whole_text("net/dev").splitlines()[2:]:
            interface, _, fields = line.partition(b":")
            numbers = fields.split()
            counts[interface.strip().decode()] = (int(numbers[0]), int(numbers[8]))
        before, self._net = self._net, (now_s, counts)
        values: Readings = {}
        if before is None or now_s <= before[0]:
            return values
        for name, (received, sent) in counts.items():
            if received + sent == 0 or name not in before[1]:
                continue
            for measure, more in (("rx", received - before[1][name][0]), ("tx", sent - before[1][name][1])):
                # a counter that went back was reset: the amount is not known
                values[name, f"{measure}_bytes_per_s"] = more / (now_s - before[0]) if more >= 0 else None
        return values


PLUGIN = Sampler(summary="CPU, load, network, /dev/shm and memory of this host, from /proc", open=HostReader)
