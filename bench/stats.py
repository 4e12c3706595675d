"""Arrays in, numbers out. Throughputs are compared as logarithms: a difference of logs is a ratio.

The launch is the unit of inference: every function takes one value a launch (or a block), never steps.
An interval is Student's t; with one launch there is none. No bootstrap: under 20 launches it is too narrow.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.answers import Interval, Verdict

DELTA = 0.02  # margin: smaller differences do not matter
DECIDABLE = 3  # launches a side below which no verdict is given
MOST_TO_DECIDE = 200  # launches a side: that more would decide is not told
LEVEL = 0.95
_LARGEST = 709.0  # its exponential is the largest of a float
CLAIMS: tuple[Verdict, ...] = ("faster", "slower", "small change")  # words that claim a difference


def exp(x: float) -> float:
    """e^x, or the largest that a float holds: only launches that were edited differ by as much."""
    return math.exp(min(x, _LARGEST))


@dataclass(frozen=True)
class Estimate:
    """A mean of logs: its standard error, degrees of freedom and number of launches (the smaller side's).

    `sides` are what the error is made of: variance and number of the differences, or of each side's launches.
    """

    mean: float
    error: float | None
    freedom: float
    n: int
    sides: tuple[tuple[float, int], ...] = ()

    def interval(self, level: float = LEVEL) -> Interval:
        """The estimate and its t interval, exponentiated; without limits where n = 1."""
        if self.error is None:
            return Interval(value=exp(self.mean), low=None, high=None, n=self.n)
        half = quantile((1 + level) / 2, self.freedom) * self.error
        low, high = exp(self.mean - half), exp(self.mean + half)
        return Interval(value=exp(self.mean), low=low, high=high, n=self.n)

    @property
    def p_value(self) -> float | None:
        """Two-sided p of "no difference", or None where n = 1."""
        from scipy.special import stdtr

        if self.error is None:
            return None
        if self.error == 0:
            return 0.0 if self.mean else 1.0
        return float(2 * stdtr(self.freedom, -abs(self.mean) / self.error))


def mean(logs: ArrayLike) -> Estimate:
    """The mean of logs of one value a launch: mean ± t s / sqrt(n)."""
    y = np.asarray(logs, float)
    if len(y) < 2:
        return Estimate(mean=float(y.mean()), error=None, freedom=0, n=len(y))
    error = float(y.std(ddof=1) / math.sqrt(len(y)))
    return Estimate(mean=float(y.mean()), error=error, freedom=len(y) - 1, n=len(y), sides=(_side(y),))


def mean_interval(logs: ArrayLike, level: float = LEVEL) -> Interval:
    """The geometric mean of what `logs` are the logarithms of, with its interval."""
    return mean(logs).interval(level)


def welch(a: ArrayLike, b: ArrayLike) -> Estimate:
    """mean(b) - mean(a) of logs from launches that are not paired (Welch-Satterthwaite)."""
    x, y = np.asarray(a, float), np.asarray(b, float)
    difference, n = float(y.mean() - x.mean()), min(len(x), len(y))
    if n < 2:
        return Estimate(mean=difference, error=None, freedom=0, n=n)
    sides = (_side(x), _side(y))
    error, freedom = _error(sides)
    return Estimate(mean=difference, error=error, freedom=freedom, n=n, sides=sides)


def _side(logs: NDArray[np.float64]) -> tuple[float, int]:
    return float(logs.var(ddof=1)), len(logs)


def _error(sides: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a difference of means (Welch-Satterthwaite); of one mean n - 1."""
    parts = [(variance / n, n - 1) for variance, n in sides]
    whole = math.fsum(part for part, _ in parts)
    if whole == 0:
        return 0.0, sum(freedom for _, freedom in parts)
    return math.sqrt(whole), whole**2 / math.fsum(part**2 / freedom for part, freedom in parts)


def verdict(estimate: Estimate, delta: float = DELTA, significant: bool = True) -> Verdict:
    """The word for a difference of log throughputs, b against a.

    Interval above +delta: faster; below -delta: slower; 90 % interval inside ±delta: equivalent;
    excludes 0 but crosses delta: small change; else, and with fewer than 3 launches, inconclusive. The margin
    is ±ln(1 + delta), so exchanging a and b exchanges faster and slower. `significant` False (a
    correction for many comparisons) rules out every word that claims a difference.
    """
    if estimate.error is None or estimate.n < DECIDABLE:
        return "inconclusive"
    margin = math.log1p(delta)
    half = quantile((1 + LEVEL) / 2, estimate.freedom) * estimate.error
    narrow = quantile(0.95, estimate.freedom) * estimate.error
    if abs(estimate.mean) + narrow < margin:
        return "equivalent"
    if not significant or half >= abs(estimate.mean):
        return "inconclusive"
    if abs(estimate.mean) - half > margin:
        return "faster" if estimate.mean > 0 else "slower"
    return "small change"


def smallest_visible(estimate: Estimate, power: float = 0.8) -> float | None:
    """The smallest relative effect that as many launches would have shown, with this power.

    exp((t(0.975) + t(power)) SE) - 1: the usual minimum detectable effect. None where n = 1.
    """
    if estimate.error is None:
        return None
    reach = quantile((1 + LEVEL) / 2, estimate.freedom) + quantile(power, estimate.freedom)
    return exp(reach * estimate.error) - 1.0


def still_to_decide(estimate: Estimate, delta: float = DELTA, cap: int = MOST_TO_DECIDE) -> int | None:
    """Launches (or other units) a side after which a verdict other than "inconclusive" is to be expected.

    The fewest at which a mean as it is now, with each side's variance as it is now, has a 95 % interval that excludes 0 or
    a 90 % interval inside ±delta. A side that has more launches keeps them. None where that is not known, past the
    cap, or where what is there would decide but for a correction for many comparisons.
    """
    if estimate.error is None or verdict(estimate, delta) != "inconclusive":
        return None
    for n in range(DECIDABLE, cap + 1):
        error, freedom = _error([(variance, max(n, count)) for variance, count in estimate.sides])
        if verdict(Estimate(estimate.mean, error, freedom, n), delta) != "inconclusive":
            return n
    return None


def holm_adjusted(p: ArrayLike) -> NDArray[np.float64]:
    """Holm's adjusted p-values (1979), in the order given: at most alpha where the gate may claim a difference.

    Step-down: the k-th smallest of m times m - k + 1, never less than the one before, at most 1.
    """
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    stepped = values[order] * np.arange(len(values), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def benjamini_hochberg_adjusted(p: ArrayLike) -> NDArray[np.float64]:
    """Benjamini and Hochberg's adjusted p-values (1995), in the order given: at most q where rejected.

    Step-up: the k-th smallest of m times m / k, never more than the one after, at most 1.
    """
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    stepped = values[order] * len(values) / np.arange(1, len(values) + 1)
    adjusted[order] = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
    return adjusted


def bimodal(values: ArrayLike) -> bool:
    """Do launches fall in two groups, with a gap between them that one group would not show?

    The widest gap between neighbours is compared with the standard deviation inside the two groups it
    makes. The threshold 2 + 14 / (n - 4) flags 1 % of normal samples (simulated, n = 5 to 30). Below 5
    launches: False.
    """
    x = np.sort(np.asarray(values, float))
    if len(x) < 5:
        return False
    gaps = np.diff(x)
    cut = int(np.argmax(gaps)) + 1
    inside = sum(float(((part - part.mean()) ** 2).sum()) for part in (x[:cut], x[cut:]))
    return bool(gaps[cut - 1] > (2 + 14 / (len(x) - 4)) * math.sqrt(inside / (len(x) - 2)))


def tukey_outliers(values: ArrayLike) -> NDArray[np.bool_]:
    """Which values lie more than 1.5 quartile ranges outside the quartiles (Tukey 1977)."""
    x = np.asarray(values, float)
    low, high = np.quantile(x, [0.25, 0.75]) if len(x) else (0.0, 0.0)
    reach = 1.5 * (high - low)
    return (x < low - reach) | (x > high + reach)


def karp_flatt(speedup: float, devices: float) -> float | None:
    """Experimentally determined serial fraction of strong scaling (Karp & Flatt 1990); None for 1 device."""
    return None if devices <= 1 else (1 / speedup - 1 / devices) / (1 - 1 / devices)


def gustafson(efficiency: float, devices: float) -> float | None:
    """Serial fraction of weak scaling (Gustafson 1988), from N E = N - s (N - 1); None for 1 device."""
    return None if devices <= 1 else (devices - devices * efficiency) / (devices - 1)


def knee(levels: Sequence[int], values: Sequence[float], noise: float = DELTA) -> int:
    """The smallest level whose value lies within `noise` (relative) of the best."""
    best = max(values)
    return min(level for level, value in zip(levels, values, strict=True) if value >= best * (1 - noise))


@cache
def quantile(p: float, freedom: float) -> float:
    """Student's t quantile. (scipy.stats takes a second to import; its kernel does not.)"""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))
