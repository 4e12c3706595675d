"""Whose processes are on a device: those of this study, by rank, and those of others."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.samplers._processes import Members, group_of, read_members
from bench.sampling import Readings, Watch

FIRST_NAMESPACE = "pid:[4026531836]"  # the kernel's own number of it (PROC_PID_INIT_INO)
UNMAPPED = "NVML lists no process of this launch: ids of another namespace, or nothing is on a device yet"
HIDDEN = "NVML lists none; inside a container it does not show the processes of others"
NO_SIZE = "NVML does not say how much a process holds"


class DeviceProcesses:
    """Sorts NVML's lists of processes. Nothing is said of others until one of this launch has been seen.

    Without that it is not known whether NVML's process ids are those of this namespace. Inside a
    container NVML shows at most its own processes, so that "no other process" stays open there.
    """

    def __init__(self, watch: Watch, reasons: dict[str, str], proc: Path = Path("/proc")) -> None:
        self._watch, self._reasons, self._proc = watch, reasons, proc
        self._sees_all = _namespace(proc) == FIRST_NAMESPACE
        self._mapped = False

    def read(self, listed: Mapping[str, list[Any] | None]) -> Readings:
        """Processes of others on each device and what they hold; what each rank holds on each device.

        `listed` has NVML's list a device; None where there is none, and the reason is known.
        """
        ranks, engine = read_members(self._watch.rank_pids) or Members({}, None)
        group = engine or self._watch.engine_pgid
        pids = {process.pid for processes in listed.values() for process in processes or ()}
        own = {pid for pid in pids if pid in ranks or self._in_group(pid, group)}
        self._mapped = self._mapped or bool(own)
        values: Readings = {}
        for uuid, processes in listed.items():
            values |= self._foreign(uuid, processes, own)
            by_rank: dict[str, list[Any]] = {}
            for process in processes or ():
                if process.pid in ranks:
                    by_rank.setdefault(f"rank_{ranks[process.pid]}_memory_bytes", []).append(process)
            values |= {(uuid, name): self._held(uuid, name, some) for name, some in by_rank.items()}
        return values

    def _foreign(self, uuid: str, processes: list[Any] | None, own: set[int]) -> Readings:
        count, held = (uuid, "foreign_processes"), (uuid, "foreign_memory_bytes")
        others = [process for process in processes or () if process.pid not in own]
        if processes is None:
            why = self._reasons["/".join(count)]
        elif not self._mapped:
            why = UNMAPPED
        elif not others and not self._sees_all:
            why = HIDDEN
        else:
            return {count: float(len(others)), held: self._held(uuid, held[1], others)}
        self._reasons |= dict.fromkeys(("/".join(count), "/".join(held)), why)
        return {count: None, held: None}

    def _held(self, uuid: str, measure: str, processes: Iterable[Any]) -> float | None:
        sizes = [process.usedGpuMemory for process in processes]
        if None in sizes:
            self._reasons[f"{uuid}/{measure}"] = NO_SIZE
            return None
        return float(sum(sizes))

    def _in_group(self, pid: int, group: int | None) -> bool:
        return group is not None and (pid == group or group in (group_of(pid, self._proc) or ()))


def _namespace(proc: Path) -> str | None:
    try:
        return os.readlink(proc / "self/ns/pid")
    except OSError:
        return None
