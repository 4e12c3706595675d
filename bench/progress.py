"""What a rank lets others see while it runs: four numbers in mapped memory, no call into the kernel.

The conductor draws its progress bar from them, and the engine names the rank that stopped moving.
"""

import mmap
import os
from collections.abc import MutableSequence, Sequence
from pathlib import Path

MARKS, PLANNED, STATE, PID = range(4)  # marks passed in the timed loop, steps planned, state, pid
STARTING, RENDEZVOUS, BUILDING, COMPILING, WINDOW, NETWORK, TRACING, DONE = range(8)
STATES = ("starting", "rendezvous", "building", "compiling", "window", "network", "tracing", "done")
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


class Motion:
    """When each rank last moved, seen from outside by looking at its numbers again and again."""

    def __init__(self, beats: Sequence[int], ranks: int, now_s: float) -> None:
        self._beats, self._ranks = beats, ranks
        self._seen = [self._at(rank) for rank in range(ranks)]
        self._moved_s = [now_s] * ranks
        self._longest_s = [0.0] * ranks
        self._window_s: float | None = None

    def look(self, now_s: float) -> None:
        """Note which ranks have passed a mark, or gone on to another state, since the last look."""
        for rank in range(self._ranks):
            at = self._at(rank)
            if at != self._seen[rank]:
                if self._seen[rank][0] != RENDEZVOUS:  # where it waits for another node to come, however slow
                    self._longest_s[rank] = max(self._longest_s[rank], now_s - self._moved_s[rank])
                self._seen[rank] = at
                self._moved_s[rank] = now_s
        if self._window_s is None and all(state == WINDOW for state, _ in self._seen):
            self._window_s = now_s

    def still_s(self, now_s: float) -> tuple[float, ...]:
        """How long each rank has not moved."""
        return tuple(now_s - moved for moved in self._moved_s)

    def longest_s(self) -> tuple[float, ...]:
        """The longest that each rank has stood still and moved again, in seconds; waiting for other nodes apart."""
        return tuple(self._longest_s)

    def in_window_s(self, now_s: float) -> float | None:
        """How long all ranks have been in the window; None where they never were."""
        return None if self._window_s is None else now_s - self._window_s

    def _at(self, rank: int) -> tuple[int, int]:
        at = rank * FIELDS
        return self._beats[at + STATE], self._beats[at + MARKS]
