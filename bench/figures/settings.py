"""What each setting does: throughput of one side over the other, with intervals."""

from typing import TYPE_CHECKING

from bench.answers import Analysis
from bench.figures import _changes
from bench.plugins import Figure, Row, clip
from bench.wording import without_common

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_ROWS = 30


def frame(analysis: Analysis) -> list[Row]:
    """One row a comparison; `ratio` is throughput b over throughput a."""
    return [
        {
            "factor": one.factor,
            "a": one.a,
            "b": one.b,
            "context": one.context,
            "a_cell": one.a_cell,
            "b_cell": one.b_cell,
            "a_samples_per_s": one.a_samples_per_s,
            "b_samples_per_s": one.b_samples_per_s,
            "ratio": one.ratio.value,
            "low_ratio": one.ratio.low,
            "high_ratio": one.ratio.high,
            "pairs": one.ratio.n,
            "verdict": one.verdict,
            "p_value": one.p_value,
            "p_adjusted": one.p_adjusted,
            "family": one.family,
            "smallest_visible": one.smallest_visible,
            "launches_to_decide": one.launches_to_decide,
            "note": one.note,
        }
        for one in analysis.comparisons
    ]


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """A line a comparison, grouped by factor."""
    _changes.draw(rows[:MOST_ROWS], canvas)


def note(rows: list[Row]) -> str | None:
    """What the picture leaves out, and what is the same in all of its lines."""
    same = without_common([row["context"] for row in rows[:MOST_ROWS]])[1]
    sentences = [f"In all lines: {clip(same, 200)}."] if same else []
    if len(rows) > MOST_ROWS:
        sentences.append(f"Showing the first {MOST_ROWS} of {len(rows):,} comparisons; all are in the table.")
    return " ".join(sentences) or None


PLUGIN = Figure(
    question="What does each setting do?",
    how_to_read="Each line compares two cells that differ in one setting; right of the middle the second is "
    "faster. The bar is the 95 % interval. Inside the grey band (±2 %) a change does not matter.",
    frame=frame,
    draw=draw,
    nothing=lambda analysis: (
        "No two cells with a throughput differ in exactly one setting: there is nothing to compare. "
        "Add a level to a setting, for example --set num_workers=0,2."
    ),
    note=note,
    order=40,
)
