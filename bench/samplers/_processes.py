"""CPU time of the ranks and their loader workers, found by process group and parent, and what they read from disks."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.sampling import Readings

LOOK_S = 0.5  # how often new processes are looked for; known ones are read every time
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Process:
    """A watched process: its open stat file, its name in the readings, its CPU ticks at a time."""

    stat: int
    parent: int
    subject: str
    ticks: int
    at_s: float
    io: int | None = None  # its open io file, of a rank or a worker where it may be read

    def close(self) -> None:
        """Close its files."""
        for file in (self.stat, self.io):
            if file is not None:
                os.close(file)


class Processes:
    """The processes of one engine: every member of its group or session, and every child of a rank.

    A process that is neither a rank nor below one is "engine" if it leads the group, else "process PID".
    While the ranks are still to be named, such a process may be one of them: it is not read yet.
    """

    def __init__(self, engine_pgid: int | None, rank_pids: str | None, proc: Path = Path("/proc")) -> None:
        self.engine_pgid, self.rank_pids, self.proc = engine_pgid, rank_pids, proc
        self.known: dict[int, Process] = {}
        self.ranks: dict[int, int] = {}  # pid -> rank
        self._others: set[int] = set()  # looked at once, not ours
        self._look_s = 0.0
        self._touched: dict[str, dict[int, int]] = {
            "read_bytes": {},
            "major_faults": {},
        }  # by process, ended ones too

    def read(self, now_s: float) -> Readings:
        """CPU of each watched process since it was last read, in percent of one core."""
        if self.engine_pgid is None and self.rank_pids is None:
            return {}
        named = self.rank_pids is None or bool(self.ranks)
        values: Readings = {}
        for pid, process in list(self.known.items()):
            fields = _fields(process.stat)
            if fields is None:
                self.known.pop(pid).close()
                continue
            if process.subject.startswith("rank "):
                self._touch(pid, process, fields)
            if now_s > process.at_s and (named or process.subject == "engine"):
                ticks = _ticks(fields)
                share = (ticks - process.ticks) / TICKS_PER_S / (now_s - process.at_s)
                values[process.subject, "cpu_percent"] = 100 * share
                process.ticks, process.at_s = ticks, now_s
        # last: names of processes that have ended are free again
        if now_s >= self._look_s or not named:
            changed = self._read_ranks()
            if changed or now_s >= self._look_s:
                self._look(now_s)
                self._look_s = now_s + LOOK_S
        return values

    def touched(self) -> dict[str, float | None]:
        """What all ranks and loader workers have read from disks, and their major faults, since each began.

        Nothing before one is known; `read_bytes` is null where the kernel does not let it be read.
        """
        if not self._touched["major_faults"]:
            return {}
        return {
            measure: float(sum(known.values())) if known else None for measure, known in self._touched.items()
        }

    def _touch(self, pid: int, process: Process, fields: list[bytes]) -> None:
        self._touched["major_faults"][pid] = int(fields[9])
        if process.io is not None and (read := _read_bytes(process.io)) is not None:
            self._touched["read_bytes"][pid] = read

    def _look(self, now_s: float) -> None:
        """Take in processes that are new; what is not ours is not looked at again."""
        here = {int(name) for name in os.listdir(self.proc) if name.isdigit()}
        self._others &= here
        before = set(self.known)
        for pid in sorted(here - self._others - before):
            self._meet(pid, now_s, before)

    def _meet(self, pid: int, now_s: float, before: set[int]) -> None:
        """Take in a process. Below a rank that was known at the last look it is new: all its CPU time is the launch's."""
        try:
            stat = os.open(self.proc / str(pid) / "stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # gone again
        fields = _fields(stat)
        if fields is not None and self._ours(pid, fields):
            parent = int(fields[1])
            subject = self._subject(pid, parent)
            io = self._open_io(pid) if subject.startswith("rank ") else None
            top = self._top(parent)
            ticks = 0 if top in self.ranks and top in before else _ticks(fields)
            self.known[pid] = Process(stat, parent, subject, ticks, now_s, io)
        else:
            os.close(stat)
            self._others.add(pid)

    def _open_io(self, pid: int) -> int | None:
        try:
            return os.open(self.proc / str(pid) / "io", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None  # not ours to read, or gone again

    def _ours(self, pid: int, fields: list[bytes]) -> bool:
        parent, group, session = int(fields[1]), int(fields[2]), int(fields[3])
        return (
            self.engine_pgid in (pid, group, session)
            or pid in self.ranks
            or self._rank_above(parent) is not None
        )

    def _subject(self, pid: int, parent: int) -> str:
        if pid in self.ranks:
            return f"rank {self.ranks[pid]}"
        rank = self._rank_above(parent)
        if rank is None:
            return "engine" if pid == self.engine_pgid else f"process {pid}"
        taken = {process.subject for process in self.known.values()}
        return next(
            name for slot in range(len(taken) + 1) if (name := f"rank {rank} worker {slot}") not in taken
        )

    def _rank_above(self, pid: int) -> int | None:
        """The rank that a process is or is below."""
        return self.ranks.get(self._top(pid))

    def _top(self, pid: int) -> int:
        """The process of that rank, or the highest that is known."""
        while pid not in self.ranks and pid in self.known:
            pid = self.known[pid].parent
        return pid

    def _read_ranks(self) -> bool:
        """Read the file of ranks; when it has changed, every process is looked at and named anew."""
        told = read_members(self.rank_pids)
        if told is None or told.ranks == self.ranks:
            return False
        self.ranks, self.engine_pgid = told.ranks, told.engine or self.engine_pgid
        self._others.clear()
        for process in self.known.values():
            process.close()
        self.known.clear()
        return True


class Members(NamedTuple):
    """Who runs a launch: process id -> rank, and the engine, which leads the group (None: it is not told)."""

    ranks: dict[int, int]
    engine: int | None


def read_members(path: str | None) -> Members | None:
    """From a file with lines "rank pid" and "engine pid"; None while it is not there."""
    try:
        text = Path(path).read_text() if path is not None else None
    except OSError:
        return None
    if text is None:
        return None
    pairs = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be in writing
    found = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
    return Members({pid: int(name) for name, pid in found.items() if name.isdecimal()}, found.get("engine"))


def group_of(pid: int, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Process group and session of a process; None where there is none of this id."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
        fields = text[text.rfind(b")") + 2 :].split()
        return int(fields[2]), int(fields[3])
    except (OSError, ValueError, IndexError):
        return None


def _fields(stat: int) -> list[bytes] | None:
    """Fields of a stat file after the command's name (which may hold anything); None once it has ended."""
    try:
        text = os.pread(stat, 4096, 0)
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    return fields if fields and fields[0] not in (b"Z", b"X") else None


def _read_bytes(io: int) -> int | None:
    """What a process made the disks read, from its open io file; None where that cannot be told."""
    try:
        text = os.pread(io, 4096, 0)
        return int(text[text.index(b"\nread_bytes:") :].split(None, 2)[1])
    except (OSError, ValueError, IndexError):
        return None


def _ticks(fields: list[bytes]) -> int:
    return int(fields[11]) + int(fields[12])
