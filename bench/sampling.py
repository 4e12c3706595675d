"""The sampler process of a node: beside the ranks and never inside one, 10 times a second.

It loads no torch and takes no lock. It ends when it is told to, or when its parent is gone. Each
reader is held to 1 % of a core: one that costs more is read less often.
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from bench import plugins

PERIOD_S = 0.1
READINGS = "readings.jsonl"
CPU_SHARE = 0.01  # of a core, a reader
BURST_S = 0.1  # CPU time a reader may be ahead of its share: the first look at every process costs most

# (subject, measure) -> value. Subjects: node, rank 0, rank 0 worker 1, engine, eth0, a device's UUID.
Readings = dict[tuple[str, str], float | None]

# Measures that only rise: a reading is what was added since the first one. Energy, waiting and reading flow,
# the others come one by one.
FLOWS = (
    *("energy_j", "read_bytes", "cpu_throttled_s"),
    *("cpu_pressure_s", "memory_pressure_s", "io_pressure_s"),
)
EVENTS = ("ecc_corrected", "ecc_uncorrected", "errors", "drops", "swapped_bytes", "major_faults")


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """What one sampler process watches, and where it writes."""

    folder: str  # its own: one JSON line a reading goes to READINGS in it
    parent_pid: int
    engine_pgid: int | None = None  # process group or session of the processes to watch
    rank_pids: str | None = None  # a file with lines "rank pid", perhaps "engine pid"; may appear later
    device_uuids: tuple[str, ...] = ()
    device_reason: str | None = None  # why no device is watched
    period_s: float = PERIOD_S
    samplers: tuple[str, ...] = ()


class Reader(Protocol):
    """What a sampler plug-in opens. `reasons`: "subject/measure", or the sampler's name -> why it is null."""

    reasons: dict[str, str]

    def read(self, now_s: float) -> Readings:
        """Values at `now_s` (CLOCK_MONOTONIC); None for what could not be read."""


@dataclass(frozen=True)
class Sampler:
    """A sampler plug-in: `open(watch)` is called once, in the sampler process."""

    summary: str
    open: Callable[[Watch], Reader]


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One reading as written: its time, its values, and the reasons that are new or have changed."""

    time_s: float
    values: list[tuple[str, str, float | None]]
    reasons: dict[str, str] = {}


@dataclass
class Turn:
    """A reader, and when it may be read next."""

    name: str
    reader: Reader | None = None
    due_s: float = 0.0
    spent_s: float = 0.0
    told: dict[str, str] = field(default_factory=dict)

    def take(self, watch: Watch, began_s: float) -> Line:
        """Read once. Whatever goes wrong is a reason in the line."""
        cpu_s = time.thread_time()
        now_s, values, reasons = read_once(self, watch)
        new = {key: reason for key, reason in reasons.items() if self.told.get(key) != reason}
        self.told |= new
        self.spent_s += time.thread_time() - cpu_s
        self.due_s = max(now_s + watch.period_s, began_s + (self.spent_s - BURST_S) / CPU_SHARE)
        return Line(now_s, [(subject, measure, value) for (subject, measure), value in values.items()], new)


def read_once(turn: Turn, watch: Watch) -> tuple[float, Readings, dict[str, str]]:
    """Time, values and reasons of one reader, which is opened when it is first read: that takes its time."""
    try:
        if turn.reader is None:
            turn.reader = plugins.load("samplers", turn.name).open(watch)
        now_s = time.monotonic()
        return now_s, turn.reader.read(now_s), turn.reader.reasons
    except Exception as error:  # noqa: BLE001 - one broken reader must not end the others
        reason = f"{type(error).__name__}: {plugins.clip(str(error), 200)}"
        return time.monotonic(), {}, {turn.name: reason}


def main() -> None:
    """Sample until a line or the end of standard input, or until the parent is gone. argv[1]: a Watch as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = msgspec.json.decode(sys.argv[1], type=Watch)
    with (Path(watch.folder) / READINGS).open("ab", buffering=0) as out:
        told = sample(watch, out)
    if not told:  # nobody is left to read it
        shutil.rmtree(watch.folder, ignore_errors=True)


def sample(watch: Watch, out: BinaryIO) -> bool:
    """The loop: every reader in its turn, one line a reading, each line one write.

    True: it was told to stop, and all have been read once more: counters are known on both sides of the
    window. False: its parent is gone.
    """
    began_s = time.monotonic()
    turns = [*(Turn(name) for name in watch.samplers), Turn("sampler", OwnCost())]

    def take(turn: Turn) -> None:
        line = turn.take(watch, began_s)
        if line.values or line.reasons:
            out.write(msgspec.json.encode(line) + b"\n")

    while os.getppid() == watch.parent_pid:
        for turn in turns:
            if turn.due_s <= time.monotonic():
                take(turn)
        wait_s = min(turn.due_s for turn in turns) - time.monotonic()
        if select.select([sys.stdin], [], [], max(0.0, wait_s))[0]:
            if not os.read(sys.stdin.fileno(), 64):
                return False  # the end of it: nobody holds the other end any more
            for turn in turns:
                take(turn)
            return True
    return False


class OwnCost:
    """What the sampler itself takes, so that its cost is on record."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._last: tuple[float, float] | None = None  # loading code is not counted

    def read(self, now_s: float) -> Readings:
        """CPU of this process since the last reading, in percent of one core."""
        before, self._last = self._last, (now_s, time.process_time())
        if before is None:
            return {}
        return {("sampler", "cpu_percent"): 100 * (self._last[1] - before[1]) / (now_s - before[0])}
