"""Where warm-up ends: MSER-5 on block medians, and a drift that is judged with its interval.

White (1997), "An effective truncation heuristic for bias reduction in simulation output", on medians
of 5 steps instead of means, and one block further where it cuts at all. Numpy only: ranks decide with it, together, on the same gathered durations.
"""

import numpy as np

from bench.records import Cut

ALWAYS_DROPPED = 3
BLOCK = 5
MIN_BLOCKS = 10
MAX_DRIFT = 0.02
Z_95 = 1.959964


def find_cut(step_s: np.ndarray, *, extended: bool = False) -> tuple[Cut, bool]:
    """The steady window of one launch, and whether it should be extended first.

    `step_s` (n,) holds the slowest rank's time of every recorded step, in seconds. With fewer than
    53 steps there are too few blocks to find a cut: 3 steps and a tenth go, and steadiness is assumed.
    An extended window is never extended again: what still moves is marked `unsteady`.
    """
    usable = max(len(step_s) - ALWAYS_DROPPED, 0)
    if usable < MIN_BLOCKS * BLOCK:
        return Cut(first=_assumed_first(len(step_s)), state="assumed", extended=extended), False
    medians = _block_medians(step_s[ALWAYS_DROPPED:])
    d = mser(medians)
    at_limit = d == len(medians) // 2
    d += d > 0  # a median hides two slow steps of five: the block in which warm-up ends goes as well
    drift, low, high = theil_sen_drift(medians[d:])
    drifting = abs(drift) > MAX_DRIFT and (low > 0 or high < 0)
    moving = at_limit or drifting
    cut = Cut(
        first=ALWAYS_DROPPED + d * BLOCK,
        state="unsteady" if moving else "steady",
        drift=drift,
        drift_low=low,
        drift_high=high,
        extended=extended,
        note=_why(at_limit, drifting, drift),
    )
    return cut, moving and not extended


def mser(z: np.ndarray) -> int:
    """The d <= m/2 that minimises sum_{i>d} (z_i - mean)^2 / (m - d)^2 for z of shape (m,)."""
    m = len(z)
    scores = [np.sum((z[d:] - z[d:].mean()) ** 2) / (m - d) ** 2 for d in range(m // 2 + 1)]
    return int(np.argmin(scores))


def theil_sen_drift(z: np.ndarray) -> tuple[float, float, float]:
    """Drift over the whole window relative to its median: estimate and 95 % interval."""
    middle = float(np.median(z))
    scale = (len(z) - 1) / middle if middle > 0 else 0.0
    slope, low, high = theil_sen(np.arange(len(z)), z)
    return slope * scale, low * scale, high * scale


def theil_sen(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Slope of y (m,) over rising x (m,): estimate and 95 % interval.

    Sen (1968): the median of all pairwise slopes; the interval from the ranks of the ordered slopes
    at the normal approximation of Kendall's statistic.
    """
    m = len(y)
    i, j = np.triu_indices(m, k=1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    half = Z_95 * np.sqrt(m * (m - 1) * (2 * m + 5) / 18)
    pairs = len(slopes)
    low = slopes[max(int(np.floor((pairs - half) / 2)), 0)]
    high = slopes[min(int(np.ceil((pairs + half) / 2)), pairs - 1)]
    return float(np.median(slopes)), float(low), float(high)


def _block_medians(x: np.ndarray) -> np.ndarray:
    """Medians of whole 5-step blocks, shape (m,); an incomplete block at the end is left out."""
    m = len(x) // BLOCK
    return np.median(x[: m * BLOCK].reshape(m, BLOCK), axis=1)


def _assumed_first(steps: int) -> int:
    """First step of the window where none can be found: 3 steps and a tenth, one step at least is kept."""
    return max(min(ALWAYS_DROPPED + -(-steps // 10), steps - 1), 0)


def _why(at_limit: bool, drifting: bool, drift: float) -> str | None:
    if drifting:
        return f"step time drifts by {drift:+.1%} over the window"
    return "no steady part in the second half of the window" if at_limit else None
