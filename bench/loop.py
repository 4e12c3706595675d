"""The timed step loop and the two clocks that read it. Nothing here prints, writes or waits for a lock.

A clock has `sync()` (the device is idle), `mark()` (a point on the device's time line) and
`durations(steps)`. The loop marks six points a step, so a step's phases sum to the step.
"""

import itertools
import time
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from bench.records import PHASES
from bench.workload import Workload

MARKS = len(PHASES)


class Clock(Protocol):
    """Reads time where the work happens."""

    name: str

    def sync(self) -> None:
        """Return when the device is idle."""

    def mark(self) -> None:
        """Put a point on the device's time line."""

    def durations(self) -> np.ndarray:
        """Seconds between marks, shape (steps, 6), in the order of PHASES."""


class CpuClock:
    """Monotonic time stamps: on a CPU the work is done when the call returns."""

    name = "cpu"

    def __init__(self) -> None:
        self._ns: list[int] = []

    def sync(self) -> None:
        """Nothing runs behind our back on a CPU."""

    def mark(self) -> None:
        """A time stamp, now."""
        self._ns.append(time.perf_counter_ns())

    def durations(self) -> np.ndarray:
        """Seconds between marks, shape (steps, 6), in the order of PHASES."""
        return np.diff(np.asarray(self._ns, dtype=np.float64)).reshape(-1, MARKS) / 1e9


class EventClock:
    """Events on the device's current stream, read after the final synchronisation.

    The gap before a batch's copy is device time in which nothing was queued. What of it the host spent
    in the loader is `data_wait`; the rest is the host being late with launches and goes to `other`.
    """

    name = "events"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._events: list[Any] = []
        self._ns: list[int] = []

    def sync(self) -> None:
        """Wait for the device."""
        self._module.synchronize()

    def mark(self) -> None:
        """An event on the current stream, and when the host got here."""
        event = self._module.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        self._ns.append(time.perf_counter_ns())

    def durations(self) -> np.ndarray:
        """Seconds between events, shape (steps, 6), in the order of PHASES."""
        pairs = itertools.pairwise(self._events)
        device = np.array([a.elapsed_time(b) for a, b in pairs]).reshape(-1, MARKS) / 1e3
        host = np.diff(np.asarray(self._ns, dtype=np.float64)).reshape(-1, MARKS) / 1e9
        waited = np.minimum(device[:, 0], host[:, 0])
        device[:, -1] += device[:, 0] - waited
        device[:, 0] = waited
        return device


@dataclass
class Training:
    """What one step needs: a wrapped model, how to train it, and where its batches come from."""

    model: nn.Module
    workload: Workload
    optimizer: torch.optim.Optimizer
    batches: Iterator[Any]
    to_device: Callable[[Any], Any]


def timed_steps(
    training: Training, clock: Clock, steps: int, barrier: Callable[[], None], beat: MutableSequence[int]
) -> tuple[np.ndarray, list[int]]:
    """Run `steps` training steps; return their phases in seconds, shape (steps, 6), and samples a step.

    The device is synchronised twice: before the first and after the last step. `beat[0]` counts the
    marks passed, in memory that the node's engine can see: it names the rank that stopped moving.
    """
    model, workload, optimizer = training.model, training.workload, training.optimizer
    batches, to_device = training.batches, training.to_device
    loss_of, count, mark = workload.loss, workload.samples, clock.mark
    samples: list[int] = []
    passed = beat[0]

    barrier()
    clock.sync()
    mark()
    for _ in range(steps):
        batch = next(batches)
        mark()  # data_wait
        beat[0] = passed + 1
        batch = to_device(batch)
        mark()  # h2d
        beat[0] = passed + 2
        loss = loss_of(model, batch)
        mark()  # forward
        beat[0] = passed + 3
        loss.backward()
        mark()  # backward
        beat[0] = passed + 4
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mark()  # optimizer
        samples.append(count(batch))
        passed += MARKS
        beat[0] = passed
        mark()  # other
    clock.sync()
    return clock.durations(), samples
