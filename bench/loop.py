"""The timed step loop and the two clocks that read it. Nothing here prints, writes or waits for a lock.

A clock has `sync()` (the device is idle), `mark()` (a point on the device's time line) and
`durations(micro_batches)`. The loop marks four points a micro-batch and two more a step, so a step's phases
sum to the step.
"""

import itertools
import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from bench.records import marks_a_step

MICRO = 4  # data_wait, h2d, forward and backward come once a micro-batch; optimizer and other once a step


class Clock(Protocol):
    """Reads time where the work happens."""

    name: str

    def sync(self) -> None:
        """Return when the device is idle."""

    def mark(self) -> None:
        """Put a point on the device's time line."""

    def durations(self, micro_batches: int) -> np.ndarray:
        """Seconds a phase, shape (steps, 6), in the order of PHASES."""


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

    def durations(self, micro_batches: int) -> np.ndarray:
        """Seconds a phase, shape (steps, 6), in the order of PHASES."""
        gaps, ends = split(np.diff(np.asarray(self._ns, dtype=np.float64)) / 1e9, micro_batches)
        return np.concatenate([gaps.sum(1), ends], axis=1)


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

    def durations(self, micro_batches: int) -> np.ndarray:
        """Seconds a phase, shape (steps, 6), in the order of PHASES."""
        pairs = itertools.pairwise(self._events)
        device, ends = split(np.array([a.elapsed_time(b) for a, b in pairs]) / 1e3, micro_batches)
        host, _ = split(np.diff(np.asarray(self._ns, dtype=np.float64)) / 1e9, micro_batches)
        waited = np.minimum(device[:, :, 0], host[:, :, 0])
        ends[:, -1] += (device[:, :, 0] - waited).sum(1)
        device[:, :, 0] = waited
        return np.concatenate([device.sum(1), ends], axis=1)


def split(gaps_s: np.ndarray, micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaps between marks as those of micro-batches, shape (steps, micro_batches, 4), and of steps, (steps, 2)."""
    steps = gaps_s.reshape(-1, marks_a_step(micro_batches))
    inner = MICRO * micro_batches
    return steps[:, :inner].reshape(len(steps), micro_batches, MICRO).copy(), steps[:, inner:].copy()


def marks_cost_s(
    new_clock: Callable[[], Clock], micro_batches: int, marks: int = 200, rounds: int = 9
) -> float:
    """Seconds of a step that its marks take on this host, each with its count: the median of some rounds.

    A loop of its own, on fresh clocks: caches are warm here, so it is a bound from below.
    """
    beat, seconds = memoryview(bytearray(8)).cast("q"), []
    for _ in range(rounds):
        mark, passed = new_clock().mark, 0
        began = time.perf_counter()
        for _ in range(marks):
            mark()
            beat[0] = passed = passed + 1
        seconds.append((time.perf_counter() - began) / marks)
    return marks_a_step(micro_batches) * median(seconds)


@dataclass
class Training:
    """What one step is made of; see recipe.make_training.

    `loss(batch)`, `backward(loss)` run once a micro-batch, `step()` once a step. All micro-batches but the last
    run inside `unsynchronised()`. `count(batch)` gives a batch's samples.
    """

    batches: Iterator[Any]
    to_device: Callable[[Any], Any]
    loss: Callable[[Any], Tensor]
    backward: Callable[[Tensor], None]
    step: Callable[[], None]
    count: Callable[[Any], int]
    micro_batches: int = 1
    unsynchronised: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: Any = None
    last_loss: Tensor | None = None  # of the last micro-batch that ran, as it is divided


def timed_steps(
    training: Training, clock: Clock, steps: int, barrier: Callable[[], None], beat: MutableSequence[int]
) -> tuple[np.ndarray, list[int]]:
    """Run `steps` training steps; return their phases in seconds, shape (steps, 6), and samples a step.

    The device is synchronised twice: before the first and after the last step. `beat[0]` counts the
    marks passed, in memory that the node's engine can see: it names the rank that stopped moving.
    """
    batches, to_device, count, mark = training.batches, training.to_device, training.count, clock.mark
    loss_of, backward, step = training.loss, training.backward, training.step
    synchronised = nullcontext()
    last = training.micro_batches - 1
    samples: list[int] = []
    passed = beat[0]

    barrier()
    clock.sync()
    mark()
    for _ in range(steps):
        seen = 0
        for micro_batch in range(last + 1):
            batch = next(batches)
            mark()  # data_wait
            beat[0] = passed = passed + 1
            batch = to_device(batch)
            mark()  # h2d
            beat[0] = passed = passed + 1
            with synchronised if micro_batch == last else training.unsynchronised():
                loss = loss_of(batch)
                mark()  # forward
                beat[0] = passed = passed + 1
                backward(loss)
                mark()  # backward
                beat[0] = passed = passed + 1
            seen += count(batch)
        step()
        mark()  # optimizer
        samples.append(seen)
        beat[0] = passed = passed + 2
        mark()  # other
    clock.sync()
    training.last_loss = loss
    return clock.durations(training.micro_batches), samples
