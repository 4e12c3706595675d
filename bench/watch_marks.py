"""Marks of a watched loop -> seconds a phase. A mark is the number of the phase that begins there, and a stamp.

A step's phases are the gaps between its marks, summed by the phase that began: whatever order the marks come
in, and however often (several forwards, several optimizers), they sum to the step.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bench.records import PHASES

DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))


class Step(NamedTuple):
    """One batch of the loop: the phases that began, in order, a stamp for each and one for its end."""

    phases: tuple[int, ...]
    stamps: tuple[Any, ...]
    samples: int


class Stamps(Protocol):
    """Reads time where the work happens."""

    name: str

    def sync(self) -> None:
        """Return when the device is idle."""

    def stamp(self) -> Any:
        """Now, on the device's time line."""

    def gaps_s(self, stamps: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Seconds between stamps, on the device's time line and on the host's, shape (stamps - 1,) each."""


class HostStamps:
    """Monotonic time stamps: on a CPU the work is done when the call returns."""

    name = "cpu"

    def sync(self) -> None:
        """Nothing runs behind our back on a CPU."""

    def stamp(self) -> int:
        """Nanoseconds of the host's monotonic clock."""
        return time.perf_counter_ns()

    def gaps_s(self, stamps: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The host's time line is the device's."""
        gaps = np.diff(np.asarray(stamps, dtype=np.float64)) / 1e9
        return gaps, gaps


class EventStamps:
    """Events on the device's current stream, to be read after a synchronisation."""

    name = "events"

    def __init__(self, module: Any) -> None:
        self._module = module

    def sync(self) -> None:
        """Wait for the device."""
        self._module.synchronize()

    def stamp(self) -> tuple[Any, int]:
        """An event on the current stream, and when the host got here."""
        event = self._module.Event(enable_timing=True)
        event.record()
        return event, time.perf_counter_ns()

    def gaps_s(self, stamps: Sequence[tuple[Any, int]]) -> tuple[np.ndarray, np.ndarray]:
        """Between events, and between the host's times of recording them."""
        pairs = itertools.pairwise(event for event, _ in stamps)
        device = np.array([first.elapsed_time(second) for first, second in pairs], dtype=np.float64) / 1e3
        return device, np.diff(np.array([ns for _, ns in stamps], dtype=np.float64)) / 1e9


def phases_s(steps: Sequence[Step], clock: Stamps) -> np.ndarray:
    """Seconds a phase, shape (steps, 6), in the order of PHASES.

    A device's gap before a batch is time in which nothing was queued: what of it the host did not spend in
    the loader is the host being late with its launches, and goes to `other`.
    """
    found = np.zeros((len(steps), len(PHASES)))
    for row, step in zip(found, steps, strict=True):
        gaps, host = clock.gaps_s(step.stamps)
        phases = np.asarray(step.phases)
        kept = np.where(phases == DATA_WAIT, np.minimum(gaps, host), gaps)
        row += np.bincount(phases, kept, minlength=len(PHASES))
        row[OTHER] += gaps.sum() - kept.sum()
    return found


def by_phase(columns: np.ndarray, accelerated: bool) -> dict[str, Any]:
    """Seconds a step by phase. On a CPU nothing is copied: what lies between batch and forward is `other`."""
    named: dict[str, Any] = {name: tuple(columns[:, i].tolist()) for i, name in enumerate(PHASES)}
    if not accelerated:
        named |= {"h2d": None, "other": tuple((columns[:, H2D] + columns[:, OTHER]).tolist())}
    return named
