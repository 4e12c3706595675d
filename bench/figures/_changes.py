"""Changes with their intervals, a line each, around a line of no change."""

from typing import TYPE_CHECKING

from bench.figures._canvas import (
    BAND,
    GRID,
    LONG,
    LOW,
    MUTED,
    SERIES,
    WIDE,
    grouped,
    label_width,
    place,
    rows_of,
)
from bench.measures import format_change
from bench.plugins import Row, clip
from bench.stats import DELTA
from bench.wording import without_common

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.transforms import Transform

ROW = 32  # pixels a line
RIGHT = 190  # pixels for the verdict
COLOURS = {"faster": SERIES[2], "slower": SERIES[1], "equivalent": SERIES[0], "small change": SERIES[3]}
SHAPES = {"faster": "^", "slower": "v", "equivalent": "s", "small change": "D"}


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """A line a comparison under its factor, the margin as a band around 0 %, the verdict at the right."""
    lines = _lines(rows)
    left = max(150, int(label_width([text for name, context, _ in lines for text in (name, context)]) * 0.92))
    above = left > LONG
    left = 12 if above else left
    axes = place(canvas, WIDE, (ROW + 8 * above) * len(lines) + 50, left=left, right=RIGHT, top=4, bottom=42)
    reach = _reach(rows)
    axes.axvspan(-DELTA, DELTA, color=BAND, lw=0)
    axes.axvline(0, color=MUTED, lw=1.0)
    for height, (name, context, row) in enumerate(lines):
        start = _edge(axes, 0.0)
        if row is None:
            axes.text(4 - left, height + 0.1, name, transform=start, va="center", weight="bold")
            axes.axhline(height + 0.5, color=GRID, lw=0.8)
            continue
        _names(axes, height, name, context, above)
        _comparison(axes, height + LOW * above, row, reach)
    rows_of(axes, [""] * len(lines))
    axes.set_xlim(-reach, reach)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * 100:+.0f} %" if abs(value) > 1e-9 else "0 %")
    axes.set_xlabel("change of throughput")


def _names(axes: "Axes", height: int, name: str, context: str, above: bool) -> None:
    """What is compared, and where: at the left in two lines, or above the interval in one."""
    start = _edge(axes, 0.0)
    if above:
        text = " · ".join(filter(None, (name, context)))
        axes.text(0, height - 0.24, text, transform=start, ha="left", va="center", size=10)
        return
    axes.text(-10, height - 0.2 * bool(context), name, transform=start, ha="right", va="center")
    axes.text(-10, height + 0.2, context, transform=start, ha="right", va="center", color=MUTED, size=10)


def _lines(rows: list[Row]) -> list[tuple[str, str, Row | None]]:
    """The picture's lines: a factor's name, then its comparisons with what is equal on both sides."""
    contexts = dict(zip(map(id, rows), without_common([row["context"] for row in rows])[0], strict=True))
    lines: list[tuple[str, str, Row | None]] = []
    for factor, group in grouped(rows, lambda row: row["factor"]).items():
        lines.append((clip(factor, 48), "", None))
        for row in group:
            lines.append((clip(f"{row['a']} → {row['b']}", 48), clip(contexts[id(row)], 60), row))
    return lines


def _reach(rows: list[Row]) -> float:
    """Half the axis: every change is inside, an interval that is far wider is cut off with an arrow."""
    widest = max(abs(row["ratio"] - 1) for row in rows)
    limits = [
        abs(end - 1) for row in rows for end in (row["low_ratio"], row["high_ratio"]) if end is not None
    ]
    reach: float = max(2.5 * DELTA, 1.15 * widest, min(max(limits, default=0) * 1.05, 2 * widest + 5 * DELTA))
    return reach


def _comparison(axes: "Axes", height: float, row: Row, reach: float) -> None:
    middle, colour = row["ratio"] - 1, COLOURS.get(row["verdict"], MUTED)
    if row["low_ratio"] is not None and row["high_ratio"] is not None:
        low, high = max(row["low_ratio"] - 1, -reach), min(row["high_ratio"] - 1, reach)
        axes.hlines(height, low, high, color=colour, lw=2)
        for end, shape in ((low, "<"), (high, ">")):
            if abs(end) >= reach:
                axes.plot([end], [height], marker=shape, ms=6, color=colour, clip_on=False)
    axes.plot([middle], [height], marker=SHAPES.get(row["verdict"], "o"), ms=7, color=colour, zorder=4)
    end = _edge(axes, 1.0)
    axes.text(62, height, format_change(row["ratio"]), transform=end, ha="right", va="center")
    axes.text(74, height, row["verdict"], transform=end, va="center", color=colour, weight="bold")


def _edge(axes: "Axes", side: float) -> "Transform":
    """x in pixels from one side of the axes, y in data."""
    from matplotlib.transforms import Affine2D, blended_transform_factory

    x = Affine2D().translate(axes.transAxes.transform((side, 0))[0], 0)
    return blended_transform_factory(x, axes.transData)
