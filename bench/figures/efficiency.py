"""Efficiency against devices: the share of the ideal that is left."""

from typing import TYPE_CHECKING

from bench.answers import Analysis
from bench.figures import _curves
from bench.figures._canvas import MUTED
from bench.plugins import Figure, Row
from bench.wording import share

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

HIGHEST = 1.6  # of the axis; an interval from two launches may reach far beyond


def frame(analysis: Analysis) -> list[Row]:
    """One row a point: efficiency and speed-up with their intervals."""
    places = _curves.lines(analysis)
    return [
        {
            **_curves.identity(curve, point, places),
            "efficiency": point.efficiency.value,
            "low_efficiency": point.efficiency.low,
            "high_efficiency": point.efficiency.high,
            "speedup": point.speedup.value,
            "low_speedup": point.speedup.low,
            "high_speedup": point.speedup.high,
            "launches": point.efficiency.n,
            "serial_fraction": curve.serial_fraction.get(point.devices),
        }
        for curve in _curves.drawable(analysis)
        for point in curve.points
    ]


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """One line a curve under the line of 100 %."""
    curves = _curves.shown(rows)
    axes = _curves.start(canvas, curves, extra=1)
    bases = {f"{row['base']}" for group in curves.values() for row in group}
    name = f"100 % of the base: {bases.pop()}" if len(bases) == 1 else "100 % of each curve's own base"
    axes.axhline(1.0, color=MUTED, lw=1.3, ls=(0, (5, 3)))
    for position, (group, text) in enumerate(zip(curves.values(), _curves.names(curves)[0], strict=True)):
        _curves.line(axes, position, group, ("efficiency", "low_efficiency", "high_efficiency"), text)
    axes.plot([], [], color=MUTED, lw=1.3, ls=(0, (5, 3)), label=name)
    top = max(row["high_efficiency"] or row["efficiency"] for group in curves.values() for row in group)
    highest = max(row["efficiency"] for group in curves.values() for row in group) * 1.08
    axes.set_ylim(0, max(1.1, highest, min(top * 1.03, HIGHEST)))
    axes.yaxis.set_major_formatter(lambda value, _: share(value))
    axes.set_ylabel("efficiency")
    _curves.legend(canvas, axes)


PLUGIN = Figure(
    question="What share of the ideal is left?",
    how_to_read="At 100 % every device is worth as much as one of the base's. The bar is the 95 % interval. "
    "Above 105 % something other than the device count differs from the base.",
    frame=frame,
    draw=draw,
    nothing=_curves.nothing,
    note=_curves.note,
    order=20,
    half=True,
)
