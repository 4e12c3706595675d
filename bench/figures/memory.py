"""Memory a rank: device and host apart, kinds that include one another drawn inside one another."""

from typing import TYPE_CHECKING

from bench.answers import Analysis
from bench.figures import _ranks
from bench.figures._canvas import grouped
from bench.plugins import Figure, Row
from bench.wording import cell_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_RANKS = 32
MOST_RANKS_A_CELL = 8


def frame(analysis: Analysis) -> list[Row]:
    """One row a rank and kind of memory that was measured."""
    labels = cell_labels(analysis.cells)
    rates = {cell.cell: cell.samples_per_s.value for cell in analysis.cells if cell.samples_per_s}
    return [
        {
            "cell": one.cell,
            "label": labels.get(one.cell, one.cell),
            "samples_per_s": rates.get(one.cell),
            "rank": one.rank,
            "where": where,
            "kind": kind,
            "bytes": getattr(one, field),
            "device_total_bytes": one.device_total_bytes if where == "device" else None,
        }
        for one in analysis.memory
        for kind, (field, where, _, _) in _ranks.KINDS.items()
        if getattr(one, field) is not None
    ]


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """A panel for the device and one for the host, where there is something to show."""
    _ranks.draw(_shown(rows), canvas)


def _shown(rows: list[Row]) -> list[Row]:
    """Of the fastest cells their fullest ranks, as many as the picture holds, in the study's order."""
    chosen: set[tuple[str, int]] = set()
    cells = grouped(rows, lambda row: row["cell"])
    for cell in sorted(cells, key=lambda one: -(cells[one][0]["samples_per_s"] or 0.0)):
        ranks = grouped(cells[cell], lambda row: row["rank"])
        fullest = sorted(ranks, key=lambda rank: -max(row["bytes"] for row in ranks[rank]))[
            :MOST_RANKS_A_CELL
        ]
        if len(chosen) + len(fullest) <= MOST_RANKS:
            chosen |= {(cell, rank) for rank in fullest}
    return [row for row in rows if (row["cell"], row["rank"]) in chosen]


def note(rows: list[Row]) -> str | None:
    """What the picture leaves out."""
    total, shown = len(_ranks.by_rank(rows)), len(_ranks.by_rank(_shown(rows)))
    if total == shown:
        return None
    return f"Showing {shown} of {total:,} ranks, the fullest of the fastest cells; all are in the CSV."


def nothing(analysis: Analysis) -> str:
    """Why there is no memory to show."""
    if not analysis.memory:
        return "No rank reported its memory."
    return "This platform reports neither device memory nor the proportional set size of a process."


PLUGIN = Figure(
    question="How full is each rank?",
    how_to_read="A bar is one rank. Allocated is part of reserved, reserved part of used: those lie over "
    "each other. Host memory of a rank and of its workers adds up: each has its part of what they share.",
    frame=frame,
    draw=draw,
    nothing=nothing,
    note=note,
    order=50,
)
