"""Memory of one rank, read at the edges of the window only: one reading costs milliseconds a process."""

import contextlib
import multiprocessing
import os
from pathlib import Path
from typing import Any

from bench.records import RankMemory


def pss_bytes(pid: int) -> int | None:
    """Proportional set size of a process: its own pages, and its share of the shared ones."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def shm_used_bytes() -> int | None:
    """Bytes in use on /dev/shm, by anybody on this node."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return None
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def open_fds() -> int | None:
    """File descriptors this process holds."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


class MemoryWindow:
    """Readings at both edges of one timed window; the device's peaks are reset at its start."""

    def __init__(self, module: Any | None, devices: tuple[int, ...]) -> None:
        self._module, self._devices = module, devices
        self._start: dict[str, int | None] = {}

    def start(self) -> None:
        """Reset the peak counters of every device of this rank and read the host's side."""
        for device in self._devices:
            if self._module is not None:
                self._module.reset_peak_memory_stats(device)
        self._start = {"pss": pss_bytes(os.getpid()), "fds": open_fds()}

    def end(self) -> RankMemory:
        """Everything there is to know; null where the platform has no such thing."""
        workers = [child.pid for child in multiprocessing.active_children() if child.pid]
        pss = [value for pid in workers if (value := pss_bytes(pid)) is not None]
        return RankMemory(
            rank_pss_start_bytes=self._start["pss"],
            rank_pss_bytes=pss_bytes(os.getpid()),
            workers_pss_bytes=sum(pss) if pss else None,
            workers=len(workers),
            shm_used_bytes=shm_used_bytes(),
            open_fds_start=self._start["fds"],
            open_fds=open_fds(),
            **self._device_side(),
        )

    def _device_side(self) -> dict[str, Any]:
        module = self._module
        if module is None or not self._devices:
            return {}
        allocated = [int(module.max_memory_allocated(d)) for d in self._devices]
        found: dict[str, Any] = {
            "peak_allocated_bytes": max(allocated),
            "peak_reserved_bytes": max(int(module.max_memory_reserved(d)) for d in self._devices),
            "per_device_allocated_bytes": tuple(allocated) if len(allocated) > 1 else None,
        }
        with contextlib.suppress(Exception):  # not every device type can say what is free
            free_total = [module.mem_get_info(d) for d in self._devices]
            fullest = max(free_total, key=lambda pair: pair[1] - pair[0])
            found["device_used_bytes"] = int(fullest[1] - fullest[0])
            found["device_total_bytes"] = int(fullest[1])
            found["device_used_source"] = "mem_get_info: the whole device, every process on it"
        with contextlib.suppress(Exception):
            found["pinned_bytes"] = int(module.host_memory_stats()["allocated_bytes.current"])
        return found
