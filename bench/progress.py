"""What a rank lets others see while it runs: four numbers in mapped memory, no call into the kernel.

The conductor draws its progress bar from them, and the engine names the rank that stopped moving.
"""

import mmap
import os
from collections.abc import MutableSequence
from pathlib import Path

MARKS, PLANNED, STATE, PID = range(4)  # marks passed in the timed loop, steps planned, state, pid
STARTING, RENDEZVOUS, BUILDING, COMPILING, WINDOW, TRACING, DONE = range(7)
STATES = ("starting", "rendezvous", "building", "compiling", "window", "tracing", "done")
FIELDS = 8  # one cache line a rank


def create(folder: Path, ranks: int) -> None:
    """Make the file before the ranks start; its pages are written, so the ranks fault on none."""
    (folder / "progress").write_bytes(bytes(8 * FIELDS * ranks))


def open_all(folder: Path) -> MutableSequence[int]:
    """Every rank's numbers, flat: field f of local rank r is at r * FIELDS + f."""
    with (folder / "progress").open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("q")  # type: ignore[return-value]


def open_rank(folder: Path, local_rank: int) -> MutableSequence[int]:
    """This rank's own numbers."""

    mine = open_all(folder)[local_rank * FIELDS : (local_rank + 1) * FIELDS]
    mine[PID] = os.getpid()
    return mine
