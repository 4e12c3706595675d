"""A table as a value: what stands in each cell, and what it is sorted by."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bench import wording
from bench.answers import Interval
from bench.measures import MISSING
from bench.plugins import Row, clip

Item = TypeVar("Item")
MOST_ROWS = 300  # of a picture's data table; the CSV has all


@dataclass(frozen=True)
class Entry:
    """One cell: its text, the number that it is sorted by, and a style name."""

    text: str
    sort: float | None = None
    tone: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Line:
    """One row; other parts of the page link to its anchor."""

    entries: list[Entry]
    anchor: str = ""


@dataclass(frozen=True)
class Column:
    """One column's heading."""

    title: str
    numeric: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a caption; `csv` is the file that holds the same, and more."""

    caption: str
    columns: list[Column]
    lines: list[Line]
    csv: str | None = None
    note: str = ""


Spec = Sequence[tuple[Column, Callable[[Item], Entry]]]


def word(text: str | None, tone: str = "", most: int = 60) -> Entry:
    """A text, cut to what a table can hold; the whole of a long one is its hint."""
    if not text:
        return Entry(MISSING, tone="missing")
    short = clip(text, most)
    return Entry(short, tone=tone, hint="" if short == text else clip(text, 400))


def amount(value: float | None, text: str | None = None) -> Entry:
    """A number, and how it is written."""
    if value is None:
        return Entry(MISSING, tone="missing")
    return Entry(text if text is not None else wording.number(value), sort=float(f"{value:.7g}"))


def limits(interval: Interval | None, show: Callable[[Interval | None], str]) -> Entry:
    """An interval, sorted by its width."""
    half = interval.half_width if interval else None
    return Entry(show(interval), sort=half, tone="" if half is not None else "missing")


def build(
    caption: str, items: Iterable[Item], spec: "Spec[Item]", csv: str | None = None, note: str = ""
) -> Table:
    """A table with a line an item."""
    lines = [Line([make(item) for _, make in spec]) for item in items]
    return Table(caption, [column for column, _ in spec], lines, csv, note)


def number_column(title: str, hint: str = "") -> Column:
    """A column that is aligned and sorted as numbers."""
    return Column(title, numeric=True, hint=hint)


def data(rows: list[Row]) -> Table:
    """A picture's rows as they are."""
    keys = list(rows[0]) if rows else []
    numeric = {key for key in keys if all(_is_number(row[key]) for row in rows)}
    spec: Spec[Row] = [(Column(key, key in numeric), _reader(key)) for key in keys]
    shown = rows[:MOST_ROWS]
    note = "" if len(shown) == len(rows) else f"First {len(shown)} of {len(rows):,} rows; the CSV has all."
    return build("", shown, spec, note=note)


def _reader(key: str) -> Callable[[Row], Entry]:
    return lambda row: _value(row[key])


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _value(value: Any) -> Entry:
    if value is None or isinstance(value, str):
        return word(value)
    if isinstance(value, bool):
        return word("yes" if value else "no")
    return amount(value, f"{value:.5g}" if isinstance(value, float) else f"{value}")
