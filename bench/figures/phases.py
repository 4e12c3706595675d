"""Step time by phase, one stacked bar a cell."""

from typing import TYPE_CHECKING

from bench.answers import Analysis, CellResult
from bench.figures._canvas import (
    FILLS,
    LOW,
    PAPER,
    WIDE,
    fastest,
    grouped,
    left_out,
    name_room,
    place,
    rows_of,
    swatches,
)
from bench.plugins import Figure, Row
from bench.records import PHASES
from bench.wording import cell_labels, duration, plural, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_CELLS = 24
BAR = 26  # pixels a cell
RIGHT = 72  # pixels for the whole step's time
COLOURS = dict(zip(PHASES, ("orange", "sky", "blue", "green", "purple", "grey"), strict=True))


def frame(analysis: Analysis) -> list[Row]:
    """One row a cell and phase; `seconds` is None where the phase was not measured."""
    labels = cell_labels(analysis.cells)
    return [
        {
            "cell": cell.cell,
            "label": labels[cell.cell],
            "devices": cell.case.devices,
            "samples_per_s": cell.samples_per_s.value if cell.samples_per_s else None,
            "step_s": cell.step_s,
            "phase": phase,
            "seconds": cell.phases_s.get(phase),
            "share": _share(cell, phase),
        }
        for cell in analysis.cells
        if any(value is not None for value in cell.phases_s.values())
        for phase in PHASES
    ]


def _share(cell: CellResult, phase: str) -> float | None:
    """Part of the measured phases' sum."""
    seconds = cell.phases_s.get(phase)
    total = sum(value for value in cell.phases_s.values() if value is not None)
    return None if seconds is None or not total else seconds / total


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """The fastest cells in the study's order, top to bottom; shares written where they fit."""
    cells = list(grouped(fastest(rows, MOST_CELLS), lambda row: row["cell"]).values())
    names = [cell[0]["label"] for cell in cells]
    left, above = name_room(names)
    row = BAR + 18 * above
    axes = place(canvas, WIDE, row * len(cells) + 76, left=left, right=RIGHT, top=34, bottom=42)
    longest = max(sum(row["seconds"] or 0 for row in cell) for cell in cells)
    for at, cell in enumerate(cells):
        height = at + LOW * above
        end = _bar(axes, height, cell, longest, width=WIDE - left - RIGHT, thickness=0.72 * BAR / row)
        axes.text(end + longest * 0.012, height, duration(cell[0]["step_s"]), va="center", fontsize=11)
    rows_of(axes, names, above)
    axes.set_xlim(0, longest or 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: tick(value * 1e3))
    axes.set_xlabel("milliseconds a step")
    found = {row["phase"] for cell in cells for row in cell if row["seconds"]}
    colours = {phase: COLOURS[phase] for phase in PHASES if phase in found}
    swatches(canvas, colours, loc="upper left", bbox_to_anchor=((left - 6) / WIDE, 1.0))


def _bar(axes: "Axes", height: float, cell: list[Row], longest: float, width: int, thickness: float) -> float:
    """One cell's phases, one after the other; returns where the bar ends."""
    start = 0.0
    for row in cell:
        seconds = row["seconds"]
        if not seconds:
            continue
        fill, ink = FILLS[COLOURS[row["phase"]]]
        axes.barh(height, seconds, left=start, height=thickness, color=fill, edgecolor=PAPER, lw=0.8)
        if longest and seconds / longest * width > 34:
            text = f"{row['share'] * 100:.0f} %"
            axes.text(start + seconds / 2, height, text, color=ink, ha="center", va="center", fontsize=10)
        start += seconds
    return start


def note(rows: list[Row]) -> str | None:
    """Cells and phases that have no part in the picture."""
    absent = [_absent(phase, rows) for phase in PHASES]
    sentences = [left_out(rows, MOST_CELLS, "cells"), *absent]
    return " ".join(filter(None, sentences)) or None


def _absent(phase: str, rows: list[Row]) -> str | None:
    same = [row for row in rows if row["phase"] == phase]
    missing = sum(row["seconds"] is None for row in same)
    if not missing:
        return None
    where = "any cell" if missing == len(same) else f"{plural(missing, 'cell')} of {len(same)}"
    return f"{phase} was not measured in {where}."


PLUGIN = Figure(
    question="Where does a step's time go?",
    how_to_read="A bar is one step, the mean over ranks and launches. data_wait is waiting for the loader, "
    "h2d the copy to the device; under DDP, backward holds the gradient exchange and the wait for others.",
    frame=frame,
    draw=draw,
    nothing=lambda analysis: "No launch recorded the phases of its steps.",
    note=note,
    order=30,
)
