"""What was sampled during a launch, as a summary: means and maxima, and what counters rose by."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bench.sampling import EVENTS, FLOWS

NOT_THEN = "not read in the window"
NOT_AROUND = "not read on both sides of the window"

Rows = dict[str, list[Any]]  # columns time_s (CLOCK_MONOTONIC), node, subject, measure, value
Points = list[tuple[float, float | None]]  # time and value, in order of time


class TelemetrySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, by "subject/measure"; null with a reason where nothing was."""

    measures: dict[
        str, dict[str, float | None]
    ] = {}  # {"mean": ..., "max": ...}, of a counter {"total": ...}
    reasons: dict[str, str] = {}
    readings: int = 0  # times at which anything but the sampler itself was read
    span_s: float | None = None  # first to last reading


@dataclass
class Series:
    """One measure of one subject over a launch."""

    subject: str
    measure: str
    points: Points = field(default_factory=list)

    @property
    def counts(self) -> bool:
        """Whether this only rises."""
        return self.measure in FLOWS + EVENTS

    def inside(self, begin_s: float, end_s: float) -> Points:
        """The readings between two times."""
        return [(at, value) for at, value in self.points if begin_s <= at <= end_s]

    def stat(self, begin_s: float, end_s: float) -> dict[str, float | None]:
        """Mean and maximum of the readings between two times; of a counter, what it rose by between them."""
        if self.counts:
            return {"total": self._rise(begin_s, end_s)}
        seen = [value for _, value in self.inside(begin_s, end_s) if value is not None]
        return {"mean": sum(seen) / len(seen) if seen else None, "max": max(seen, default=None)}

    def _rise(self, begin_s: float, end_s: float) -> float | None:
        """From the readings around both times. Events are whole; a flow is interpolated at both ends."""
        times = [at for at, _ in self.points]
        first = 0 if math.isinf(begin_s) else bisect_right(times, begin_s) - 1
        last = len(times) - 1 if math.isinf(end_s) else bisect_left(times, end_s)
        if not 0 <= first < last < len(times):
            return None
        before, after = self.points[first][1], self.points[last][1]
        if before is None or after is None:
            return None
        if self.measure in EVENTS:
            return after - before
        known = [(at, value) for at, value in self.points[first : last + 1] if value is not None]
        begin, end = np.interp([begin_s, end_s], [at for at, _ in known], [value for _, value in known])
        return float(end - begin)


def summarise(
    rows: Rows, reasons: dict[str, str], begin_s: float | None = None, end_s: float | None = None
) -> TelemetrySummary:
    """Every measure between two times of CLOCK_MONOTONIC, where they are given (see Series.stat).

    What a subject has, but not between them, is null. Reasons are kept for what is null, even at times.
    """
    window = (-math.inf if begin_s is None else begin_s, math.inf if end_s is None else end_s)
    series = _series(rows)
    inside = {key: one.inside(*window) for key, one in series.items()}
    present = {series[key].subject for key, points in inside.items() if points}
    stats = {key: one.stat(*window) for key, one in sorted(series.items())}
    measures = {
        key: stat
        for key, stat in stats.items()
        if series[key].subject in present or stat.get("total") is not None
    }
    gaps = {key for key, points in inside.items() if any(value is None for _, value in points)}
    empty = {key for key, stat in measures.items() if None in stat.values()}
    unread = {
        key: NOT_AROUND if series[key].counts else NOT_THEN
        for key in empty
        if all(value is not None for _, value in series[key].points)
    }
    why = {key: text for key, text in reasons.items() if key in gaps | empty or key not in series}
    times = {at for key, points in inside.items() if series[key].subject != "sampler" for at, _ in points}
    return TelemetrySummary(
        measures=measures,
        reasons=dict(sorted((unread | why).items())),
        readings=len(times),
        span_s=max(times) - min(times) if times else None,
    )


def _series(rows: Rows) -> dict[str, Series]:
    found: dict[str, Series] = {}
    columns = (rows[name] for name in ("time_s", "subject", "measure", "value"))
    for time_s, subject, measure, value in zip(*columns, strict=True):
        key = f"{subject}/{measure}"
        if key not in found:
            found[key] = Series(subject, measure)
        found[key].points.append((time_s, value))
    return found
