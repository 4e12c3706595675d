"""What a comparison of two sides says, cell by cell and in one exit code."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.answers import Interval, Verdict
from bench.differences import Difference

SAME, SLOWER, NOT_COMPARABLE, INCONCLUSIVE = 0, 1, 3, 5  # exit codes

Method = Literal["blocks", "allocations"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One cell on both sides; `ratio` is the rate new / base, over blocks or over allocations.

    With one allocation a side `ratio` has no limits, and `over_launches` has those that hold for these two
    allocations alone.
    """

    cell: str
    label: str
    verdict: Verdict
    ratio: Interval | None  # None where a side has no number
    base_rate: float | None
    new_rate: float | None
    base_launches: int
    new_launches: int
    p_value: float | None = None  # of "no difference", alone
    p_adjusted: float | None = None  # for all cells together; None where the cell is not judged
    smallest_visible: float | None = None  # the smallest relative effect that as many units would have shown
    to_decide: int | None = None  # blocks, or allocations a side
    over_launches: Interval | None = None
    base_memory_bytes: int | None = None
    new_memory_bytes: int | None = None
    memory_source: str | None = None
    base_marks: tuple[str, ...] = ()  # of the launches: what has to be said beside their numbers
    new_marks: tuple[str, ...] = ()
    note: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a comparison says. `refusals` are the differences that may not be, `differences` the others.

    `base_environment` and `new_environment` are the Python, folder and versions of sides that ran in one allocation.
    """

    method: Method
    base: tuple[str, ...]
    new: tuple[str, ...]
    unit: str  # of the rates
    delta: float
    family: Literal["Holm", "Benjamini-Hochberg"]
    rows: tuple[Row, ...]
    only_base: tuple[str, ...]
    only_new: tuple[str, ...]
    refusals: tuple[Difference, ...]
    differences: tuple[Difference, ...]
    exit_code: int
    off: str | None = None  # why no verdict holds: an A/A pair differs
    note: str | None = None  # why nothing can be decided, and what would
    base_environment: str | None = None
    new_environment: str | None = None
    base_unreadable: int = 0  # lines of its launches that are no records, and in no number here
    new_unreadable: int = 0


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a cell is slower; else 3 if one is not comparable, or there is none; else 5 if one is undecided; else 0.

    A small change for the worse is undecided: it is real, and may be larger than the margin.
    """
    words = {row.verdict for row in rows}
    if "slower" in words:
        return SLOWER
    if "not comparable" in words or not rows:
        return NOT_COMPARABLE
    return INCONCLUSIVE if any(map(undecided, rows)) else SAME


def undecided(row: Row) -> bool:
    """Could the cell be slower by more than the margin, or not, for all that is known?"""
    worse = row.ratio is not None and row.ratio.value < 1
    return row.verdict == "inconclusive" or (row.verdict == "small change" and worse)
