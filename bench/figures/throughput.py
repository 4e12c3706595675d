"""Throughput against devices, with every launch drawn."""

from typing import TYPE_CHECKING, Any

from bench.answers import Analysis
from bench.figures import _curves
from bench.figures._canvas import INK, MUTED, SERIES, grouped
from bench.plugins import Figure, Row, clip
from bench.wording import number, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


IDEAL: Any = {"color": MUTED, "lw": 1.3, "ls": (0, (5, 3))}
COLUMNS = ("mean_samples_per_s", "low_samples_per_s", "high_samples_per_s")


def frame(analysis: Analysis) -> list[Row]:
    """One row a launch, the mean and interval of its point beside it."""
    places = _curves.lines(analysis)
    return [
        {
            **_curves.identity(curve, point, places),
            "launch": position,
            "samples_per_s": launch,
            "mean_samples_per_s": point.samples_per_s.value,
            "low_samples_per_s": point.samples_per_s.low,
            "high_samples_per_s": point.samples_per_s.high,
            "ideal_samples_per_s": curve.base_samples_per_s * point.devices / curve.base_devices,
            "base_samples_per_s": curve.base_samples_per_s,
        }
        for curve in _curves.drawable(analysis)
        for point in curve.points
        for position, launch in enumerate(point.launches, 1)
    ]


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """One line a curve, its launches beside each mean, a dashed ideal line from each base."""
    curves = _curves.shown(rows)
    every = [row for group in curves.values() for row in group]
    bases = grouped(every, lambda row: (row["base_devices"], row["base_samples_per_s"]))
    axes = _curves.start(canvas, curves, extra=1)
    for position, (group, name) in enumerate(zip(curves.values(), _curves.names(curves)[0], strict=True)):
        _dots(axes, position, group)
        _curves.line(axes, position, group, COLUMNS, name)
    for (devices, rate), group in bases.items():
        last = max(devices, *(row["devices"] for row in group))
        axes.plot([devices, last], [rate, rate * last / devices], **IDEAL)
        axes.plot([devices], [rate], color=INK, marker="_", ms=13, mew=2)
        name = f"ideal, from {clip(group[0]['base'], 30)}: {number(rate)} samples/s"
    axes.plot([], [], label=name if len(bases) == 1 else "ideal, from each curve's own base", **IDEAL)
    _limits(axes, every)
    _curves.legend(canvas, axes)


def _dots(axes: "Axes", position: int, rows: list[Row]) -> None:
    axes.plot(
        [row["devices"] for row in rows],
        [row["samples_per_s"] for row in rows],
        ls="none",
        marker="o",
        ms=3.6,
        mew=0,
        color=SERIES[position],
        alpha=0.6,
        transform=_curves.aside(axes, position, 8),
    )


def _limits(axes: "Axes", rows: list[Row]) -> None:
    """From 0 where devices stand on a linear axis, else logarithmic like that axis."""
    top = max(
        max(row["samples_per_s"], row["ideal_samples_per_s"], row["base_samples_per_s"]) for row in rows
    )
    bottom = min(min(row["samples_per_s"], row["base_samples_per_s"]) for row in rows)
    if axes.get_xscale() == "log" and bottom > 0:
        axes.set_yscale("log")
        axes.set_ylim(bottom / 1.5, top * 1.5)
    else:
        axes.set_ylim(0, top * 1.08)
    axes.yaxis.set_major_formatter(lambda value, _: tick(value))
    axes.set_ylabel("samples/s")


PLUGIN = Figure(
    question="How much faster does it get with more devices?",
    how_to_read="Small dots are single launches, the marker beside them their mean with its 95 % interval. "
    "The dashed line is the ideal: every further device adds as much as one of the base's.",
    frame=frame,
    draw=draw,
    nothing=_curves.nothing,
    note=_curves.note,
    order=10,
    half=True,
)
