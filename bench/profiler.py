"""A few steps after the window under torch.profiler, with the phases marked: one Chrome trace a rank.

The timed loop runs as it is; only the clock is another one, whose marks end one range and begin the next.
"""

import gzip
import os
from collections.abc import Callable, MutableSequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.loop import MICRO, Training, timed_steps
from bench.place import Place
from bench.records import PHASES


class PhaseRanges:
    """A clock for the timed loop: every mark ends a named range of the profiler and begins the next phase's."""

    name = "profiler"

    def __init__(self, steps: int, micro_batches: int, module: Any | None) -> None:
        self._names = iter((PHASES[:MICRO] * micro_batches + PHASES[MICRO:]) * steps)
        self._module, self._open = module, None  # type: Any, Any

    def sync(self) -> None:
        """Wait for the device."""
        if self._module is not None:
            self._module.synchronize()

    def mark(self) -> None:
        """The end of one phase and the beginning of the next; after the last step of none."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        name = next(self._names, None)
        self._open = None if name is None else torch.profiler.record_function(name)
        if self._open is not None:
            self._open.__enter__()

    def durations(self, micro_batches: int) -> np.ndarray:
        """Nothing: the trace has the times. Shape (0, 6)."""
        return np.empty((0, len(PHASES)))


def write_trace(
    training: Training,
    place: Place,
    steps: int,
    barrier: Callable[[], None],
    beat: MutableSequence[int],
    folder: Path,
) -> None:
    """Run `steps` more steps under the profiler and write `rankN.json.gz`, whole or not at all."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if place.accelerated:
        activities += [a for a in torch.profiler.supported_activities() if a not in activities]
    module = place.module if place.accelerated else None
    with torch.profiler.profile(activities=activities, record_shapes=False) as profile:
        timed_steps(training, PhaseRanges(steps, training.micro_batches, module), steps, barrier, beat)
    plain = folder / f".rank{place.rank}.{os.getpid()}.json"
    packed = plain.with_suffix(".gz")
    try:
        profile.export_chrome_trace(str(plain))
        text = plain.read_bytes()
        if not text.rstrip().endswith(b"}"):  # the profiler only logs that a disk was full
            raise OSError(f"{folder}: the trace was written in part only: is the disk full?")
        packed.write_bytes(gzip.compress(text, 5))
        os.replace(packed, folder / f"rank{place.rank}.json.gz")
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
