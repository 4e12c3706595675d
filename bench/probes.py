"""What a rank measures of the network once the window is over: all-reduces by size, and what they went over.

The same code for every backend. Ranks go on, repeat and stop alike: each decision is made on numbers that all
of them have agreed on, so that none waits in an exchange that another has left out.
"""

import os
import time
import warnings
from collections.abc import Iterable
from statistics import median

import torch
import torch.distributed as dist

from bench.place import Place
from bench.records import Effective, Exchange, RankNetwork

SIZES = (64 << 10, 1 << 20, 8 << 20)
BUDGET_S = 1.5
REPEATS = 7
SHARE = 0.2  # of the time left, for the repeats of one size: larger sizes need it more
FLOAT_BYTES = 4


def network(place: Place, facts: Effective, budget_s: float | None = BUDGET_S) -> RankNetwork:
    """What this rank's connections went over, and its all-reduces. To be called by all ranks, after the window.

    Without a budget, the same on every rank, there is no time for all-reduces.

    It is extra: what goes wrong with it is a warning and costs no finished window. The connection to the store
    counts as none: gradients do not pass through it.
    """
    from bench import interfaces  # psutil: not before the window

    exchanges: tuple[Exchange, ...] = ()
    try:
        if budget_s is not None:
            exchanges = all_reduces(place, sizes(facts), budget_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, the window is over
        warnings.warn(f"no all-reduce after the window: {type(error).__name__}: {error}", stacklevel=1)
    store = os.environ.get("MASTER_PORT")
    used = interfaces.used(other_than=(int(store),) if store else ())
    return RankNetwork(
        interfaces=used,
        speed_mbit=interfaces.speed_mbit(used[0]) if used else None,
        exchanges=exchanges,
    )


def sizes(facts: Effective) -> tuple[int, ...]:
    """Sizes to measure, ascending: three fixed ones, DDP's largest bucket and all gradients of the model."""
    own = (facts.gradient_bytes, max(facts.buckets_bytes or (0,)))
    return tuple(sorted({size // FLOAT_BYTES * FLOAT_BYTES for size in (*SIZES, *own)} - {0}))


def all_reduces(place: Place, sizes: Iterable[int], budget_s: float = BUDGET_S) -> tuple[Exchange, ...]:
    """All-reduces of float32 tensors of `sizes` bytes, ascending, within about `budget_s` seconds in all.

    The first size is always measured. A larger one is left out, with all that follow, where a single run of it
    would not end in time, or where a rank has no memory for it. The first run of a size is its warm-up; it
    counts only where there is no time for another.
    """
    found: list[Exchange] = []
    _agree(place, 0.0)  # from here on all ranks are here
    began_s = time.perf_counter()
    for size in sorted(sizes):
        buffer = _buffer(size, place)
        expected_s = found[-1].seconds * size / found[-1].bytes if found else 0.0
        lacking, end_s = _agree(place, float(buffer is None), time.perf_counter() - began_s + expected_s)
        if lacking or buffer is None or (found and end_s > budget_s):
            break
        first_s = _once(buffer, place)
        slowest_s, spent_s = _agree(place, first_s, time.perf_counter() - began_s)
        repeats = _repeats(slowest_s, budget_s - spent_s)
        durations_s = [_once(buffer, place) for _ in range(repeats)] or [first_s]
        found.append(Exchange(bytes=size, seconds=median(durations_s), repeats=len(durations_s)))
    return tuple(found)


def _repeats(once_s: float, left_s: float) -> int:
    """Runs beside the first one: as many as fit a share of the time left, at most REPEATS."""
    return max(0, int(min(REPEATS, SHARE * left_s / max(once_s, 1e-9))))


def _buffer(size: int, place: Place) -> torch.Tensor | None:
    """Zeros, which sums leave as they are, in pages that are really there; None where there is no memory."""
    try:
        return torch.full((size // FLOAT_BYTES,), 0.0, dtype=torch.float32, device=place.device)
    except RuntimeError:
        return None


def _once(buffer: torch.Tensor, place: Place) -> float:
    """Seconds of one all-reduce, the device synchronised at both ends."""
    _settle(place)
    began_s = time.perf_counter()
    dist.all_reduce(buffer)
    _settle(place)
    return time.perf_counter() - began_s


def _settle(place: Place) -> None:
    if place.accelerated:
        place.module.synchronize()


def _agree(place: Place, *values: float) -> list[float]:
    """The largest of each value over all ranks, the same on every rank."""
    shared = torch.tensor(values, dtype=torch.float64, device=place.device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return [float(value) for value in shared.tolist()]
