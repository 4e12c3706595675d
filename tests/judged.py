"""Simulated pairs of cells, measured by the stopping rule and judged by the suite's own code.

`SPREADS` are standard deviations between repeats, in per cent, of 32 configurations that were published with five to
ten repeats each: training of BERT and ResNet-50 on 1 to 32 GPUs.
"""

from typing import NamedTuple

import numpy as np

from bench import stats
from bench.plan import MAX_LAUNCHES, MIN_LAUNCHES, TARGET

SPREADS = (
    *(
        0.055,
        0.060,
        0.063,
        0.069,
        0.069,
        0.070,
        0.073,
        0.081,
        0.091,
        0.093,
        0.103,
        0.115,
        0.194,
        0.218,
        0.247,
        0.254,
    ),
    *(
        0.262,
        0.278,
        0.282,
        0.283,
        0.299,
        0.315,
        0.340,
        0.446,
        0.447,
        0.541,
        0.569,
        0.834,
        1.21,
        2.07,
        2.24,
        4.02,
    ),
)


class Judged(NamedTuple):
    """One pair: its word, the plain p-value of "no difference", and launches a side."""

    word: str
    p_value: float
    n: int


def closed(logs: np.ndarray) -> bool:
    """Has a cell had its launches: an interval as narrow as wanted, or the cap?"""
    if len(logs) < MIN_LAUNCHES:
        return False
    half = stats.mean_interval(logs).half_width
    return len(logs) >= MAX_LAUNCHES or (half is not None and half <= TARGET)


def pair(random: np.random.Generator, ratio: float, spread: float, disturbed: float = 0.0) -> Judged:
    """Two cells, throughput of the second over the first `ratio`, in blocks until each has had its launches.

    `spread` (share) is between launches. The two sides of a block have nothing in common, which is the worst case for a
    comparison by pairs. `disturbed`: half of the launches, whosever they are, lose this share of their throughput.
    """
    logs = random.normal(0, spread, (MAX_LAUNCHES, 2)) + np.array([0.0, np.log(ratio)])
    logs = logs + np.log1p(-disturbed) * (random.uniform(size=logs.shape) < 0.5)
    counts = [next(n for n in range(1, MAX_LAUNCHES + 1) if closed(logs[:n, side])) for side in (0, 1)]
    n = min(counts)
    estimate = stats.mean(logs[:n, 1] - logs[:n, 0])
    return Judged(stats.verdict(estimate), estimate.p_value or 0.0, n)


def pairs(ratio: float, spreads: tuple[float, ...], count: int = 2000, seed: int = 1) -> list[Judged]:
    """So many pairs, each with one of the spreads (in per cent) in turn."""
    random = np.random.default_rng(seed)
    return [pair(random, ratio, spreads[i % len(spreads)] / 100) for i in range(count)]


def share(found: list[Judged], *words: str) -> float:
    """Which part of the pairs got one of these words."""
    return sum(one.word in words for one in found) / len(found)
