"""What the two pictures of a scaling curve share: which curves, the axis of devices, lines and legend."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.answers import Analysis, Curve, Point
from bench.figures._canvas import MARKERS, PAPER, SERIES, grouped, place
from bench.plugins import Row, clip
from bench.wording import without_common

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_CURVES = len(SERIES)
LEGEND_ROW = 18  # pixels
STRAIGHT_UP_TO = 8  # largest / smallest count on a linear axis; beyond it both axes are logarithmic

Curves = dict[tuple[Any, ...], list[Row]]


def drawable(analysis: Analysis) -> list[Curve]:
    """Curves with two device counts or more, the base's count among them."""
    return [curve for curve in analysis.curves if len(counts(curve)) > 1]


def counts(curve: Curve) -> set[int]:
    """Device counts of a curve, its base's included."""
    return {curve.base_devices, *(point.devices for point in curve.points)}


def nothing(analysis: Analysis) -> str:
    """Why there is no curve."""
    if not any(cell.samples_per_s for cell in analysis.cells):
        return "No launch gave a throughput, so there is no curve."
    found = sorted({count for curve in analysis.curves for count in counts(curve)})
    if len(found) == 1:
        return f"Only one device count ({found[0]}) was measured: a curve needs two."
    return "No two device counts were measured with the same settings: a curve needs two."


def lines(analysis: Analysis) -> dict[str, int]:
    """Name of a curve (with its scaling and base) -> which line it is, from 1, in every picture of the page.

    Where there are more curves than colours: the one with the fewest settings off their defaults, which the
    others are read against, and the ones that train the most samples a second.
    """
    curves = drawable(analysis)
    by_rate = sorted(curves, key=lambda curve: -max(point.samples_per_s.value for point in curve.points))
    first = sorted(by_rate, key=lambda curve: len(curve.settings))[:1]
    first += [curve for curve in by_rate if curve not in first]
    chosen = {_name(curve) for curve in first[:MOST_CURVES]}
    order = [name for name in dict.fromkeys(map(_name, curves)) if name in chosen]
    return {name: place for place, name in enumerate(order, 1)}


def _name(curve: Curve) -> str:
    return repr((curve.label, curve.scaling, curve.base, curve.base_devices))


def identity(curve: Curve, point: Point, places: Mapping[str, int]) -> Row:
    """The columns that say which point of which curve a row is about; `line` is None for a curve not drawn."""
    return {
        "line": places.get(_name(curve)),
        "curve": curve.label,
        "strategy": curve.strategy,
        "scaling": curve.scaling,
        "reference": curve.reference,
        "base": curve.base,
        "base_devices": curve.base_devices,
        "cell": point.cell,
        "devices": point.devices,
        "batch": point.batch,
        "global_batch": point.global_batch,
    }


def key(row: Row) -> tuple[Any, ...]:
    """What makes rows one curve."""
    return row["curve"], row["scaling"], row["base"], row["base_devices"]


def shown(rows: list[Row]) -> Curves:
    """The curves that have a line, in the order of the lines: the same in every picture."""
    drawn = sorted((row for row in rows if row["line"] is not None), key=lambda row: int(row["line"]))
    return grouped(drawn, key)


def names(curves: Curves) -> tuple[list[str], str]:
    """What sets each curve apart from the others, and what all of them share."""
    firsts = [rows[0] for rows in curves.values()]
    short, common = without_common([row["curve"] for row in firsts])
    marked = [
        clip(text, 56) + " (reference)" * row["reference"] for text, row in zip(short, firsts, strict=True)
    ]
    return marked, common


def note(rows: list[Row]) -> str | None:
    """What the picture leaves out, and what its curves share."""
    curves, total = shown(rows), len({key(row) for row in rows})
    _, common = names(curves)
    said = [f"All curves: {clip(common, 200)}."] if common else []
    if total > len(curves):
        said.append(
            f"Showing {len(curves)} of {total} curves, the plainest and the fastest; all are in the tables."
        )
    return " ".join(said) or None


def start(canvas: "Canvas", curves: Curves, extra: int) -> "Axes":
    """Axes with room for a legend row a curve and `extra` ones, logarithmic where counts go far."""
    legend = LEGEND_ROW * (len(curves) + extra)
    axes = place(canvas, 540, 306 + legend, left=72, right=16, top=12, bottom=46 + legend)
    axes.grid(axis="y")
    every = [row for rows in curves.values() for row in rows]
    ticks = sorted({row["devices"] for row in every} | {row["base_devices"] for row in every})
    if is_far(ticks):
        axes.set_xscale("log")
        axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
    else:
        room = 0.08 * (ticks[-1] - ticks[0])
        axes.set_xlim(ticks[0] - room, ticks[-1] + room)
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("devices")
    return axes


def is_far(ticks: list[int]) -> bool:
    """Whether counts span more than a linear axis can show."""
    return ticks[-1] / ticks[0] > STRAIGHT_UP_TO


def line(axes: "Axes", position: int, rows: list[Row], columns: tuple[str, str, str], name: str) -> None:
    """One curve: line, markers and 95 % intervals. `columns` are those of mean, low and high."""
    points = [group[0] for group in grouped(rows, lambda row: row["devices"]).values()]
    points.sort(key=lambda row: int(row["devices"]))
    middle, low, high = columns
    axes.plot(
        [row["devices"] for row in points],
        [row[middle] for row in points],
        color=SERIES[position],
        marker=MARKERS[position],
        ms=7,
        markeredgecolor=PAPER,
        ls=":" if points[0]["reference"] else "-",
        label=name,
        transform=aside(axes, position),
        zorder=4,
    )
    sure = [row for row in points if row[low] is not None and row[high] is not None]
    axes.vlines(
        [row["devices"] for row in sure],
        [row[low] for row in sure],
        [row[high] for row in sure],
        color=SERIES[position],
        lw=1.6,
        transform=aside(axes, position),
        zorder=3,
    )


def aside(axes: "Axes", position: int, pixels: float = 0) -> Any:
    """Data coordinates moved sideways a little, so that curves do not hide each other's intervals."""
    from matplotlib.transforms import ScaledTranslation

    shift = ScaledTranslation((position * 3 + pixels) / 72, 0, axes.figure.dpi_scale_trans)
    return axes.transData + shift


def legend(canvas: "Canvas", axes: "Axes") -> None:
    """Names below the axes, a line each."""
    canvas.legend(
        *axes.get_legend_handles_labels(),
        loc="lower left",
        bbox_to_anchor=(0.0, 0.0),
        frameon=False,
        fontsize=11,
        handlelength=2.4,
        labelspacing=0.55,
        borderaxespad=0.2,
    )
