"""What pytest-benchmark says of a benchmark's rounds, by its own formulas (its stats.py, version 5)."""

import statistics
from collections.abc import Sequence
from typing import Any


def summary(data: Sequence[float]) -> dict[str, Any]:
    """The `stats` of a benchmark with one value a round, all positive; at least one round."""
    ordered = sorted(data)
    mean = statistics.mean(ordered)
    stddev = statistics.stdev(ordered) if len(ordered) > 1 else 0
    q1, q3 = _quartile(ordered), -_quartile([-value for value in reversed(ordered)])
    fence = 1.5 * (q3 - q1)
    inside = [value for value in ordered if q1 - fence <= value <= q3 + fence]
    far = sum(value < mean - stddev or value > mean + stddev for value in ordered)
    total = sum(data)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": len(ordered),
        "median": statistics.median(ordered),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": len(ordered) - len(inside),
        "stddev_outliers": far,
        "outliers": f"{far};{len(ordered) - len(inside)}",
        "ld15iqr": inside[0],
        "hd15iqr": inside[-1],
        "ops": len(ordered) / total,
        "total": total,
        "data": list(data),
        "iterations": 1,
    }


def _quartile(ordered: Sequence[float]) -> float:
    """The lower quartile: of an even count the lower half's median, of an odd one between two ranks."""
    n, rest = divmod(len(ordered), 4)
    if len(ordered) == 1:
        return ordered[0]
    if len(ordered) % 2 == 0:
        return statistics.median(ordered[: len(ordered) // 2])
    if rest == 1:
        return 0.25 * ordered[n - 1] + 0.75 * ordered[n]
    return 0.75 * ordered[n] + 0.25 * ordered[n + 1]
