"""What a checkpoint costs: seconds to save it, to have it on the disk, and to go on from it under the same strategy."""

from typing import TYPE_CHECKING

import msgspec

from bench.answers import Analysis
from bench.checkpoint_records import TYPICAL
from bench.figures._canvas import MARKERS, MUTED, SERIES, name_room, place, rows_of
from bench.plugins import Figure, Row, clip
from bench.report_checkpoints import FORMATS, loader, saver
from bench.wording import plural, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_ROWS = 24
ROW, TALL_ROW = 30, 46  # pixels
FAR = 30  # largest / smallest time on a linear axis
MARKS = {
    "save_s": "save, until all ranks go on",
    "durable_s": "and on the disk (fsync)",
    "load_s": "load, same strategy",
}


def frame(analysis: Analysis) -> list[Row]:
    """One row a save or load, with every field of checkpoints.jsonl."""
    return [
        {
            "by": saver(row),
            "into": loader(row) or None,
            **{name: value for name, value in msgspec.structs.asdict(row).items() if name not in ("schema", "elsewhere")},
            "elsewhere": "; ".join(f"{where}: {held}" for where, held in (row.elsewhere or {}).items()) or None,
        }
        for row in analysis.checkpoints
    ]  # fmt: skip


def _lines(rows: list[Row]) -> list[tuple[str, dict[str, float]]]:
    """A line a save that went well: its name and its times, the load by the same strategy among them."""
    loads = {
        (row["by"], row["format"], row["writer"]): row["seconds"]
        for row in rows
        if row["kind"] == "load" and row["into"] == row["by"] and row["way"] in TYPICAL and not row["made"]
    }  # fmt: skip
    found = []
    for row in rows:
        if row["kind"] == "save" and row["seconds"] is not None:
            load_s = loads.get((row["by"], row["format"], row["writer"]))
            times = {"save_s": row["seconds"], "durable_s": row["durable_s"], "load_s": load_s}
            known = {name: value for name, value in times.items() if value}
            found.append((f"{row['by']}, {FORMATS[row['format']]}, {row['writer']}", known))
    return found


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """A row a save, a mark for each of its times."""
    lines = _lines(rows)[:MOST_ROWS]
    names = [clip(name, 60) for name, _ in lines]
    left, above = name_room(names)
    height = (TALL_ROW if above else ROW) * max(1, len(lines))
    axes = place(canvas, 920, height + 96, left=left, right=24, top=40, bottom=46)
    axes.grid(axis="x")
    rows_of(axes, names, above)
    for position, (name, label) in enumerate(MARKS.items()):
        at = [(times[name] * 1e3, place) for place, (_, times) in enumerate(lines) if name in times]
        axes.plot(
            [x for x, _ in at],
            [y for _, y in at],
            MARKERS[position],
            color=SERIES[position],
            ms=8,
            label=label,
        )
    for place_, (_, times) in enumerate(lines):
        ends = [value * 1e3 for value in times.values()]
        if ends:
            axes.plot([min(ends), max(ends)], [place_, place_], color=MUTED, lw=1, zorder=0.5)
    _scale(axes, [value * 1e3 for _, times in lines for value in times.values()])
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(MARKS), frameon=False, handlelength=1.0)


def _scale(axes: "Axes", values: list[float]) -> None:
    """From zero; logarithmic where the times lie far apart."""
    if values and max(values) > FAR * min(values):
        axes.set_xscale("log")
        axes.set_xlabel("ms, logarithmic")
    else:
        axes.set_xlim(left=0)
        axes.set_xlabel("ms")
    axes.xaxis.set_major_formatter(lambda value, _: tick(value))


def note(rows: list[Row]) -> str | None:
    """What the picture leaves out."""
    said: list[str] = []
    total = len(_lines(rows))
    if total > MOST_ROWS:
        said.append(f"Showing the first {MOST_ROWS} of {total:,} saves.")
    bad = sum(row["kind"] == "save" and row["outcome"] != "ok" for row in rows)
    if bad:
        said.append(f"{plural(bad, 'save')} failed.")
    return " ".join(said) or None


PLUGIN = Figure(
    question="What does a checkpoint cost?",
    how_to_read="A row is one way to save. The training stands still until the first mark; a power cut loses nothing after "
    "the second. The load is that of the same strategy with the file in the page cache. Medians of the slowest rank.",
    frame=frame,
    draw=draw,
    nothing=lambda analysis: "The study has no checkpoints: scalemark checkpoint makes some.",
    note=note,
    order=80,
    optional=True,
)
