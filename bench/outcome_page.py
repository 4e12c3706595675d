"""An Outcome as one offline HTML file, with the look of the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import outcome_words as words
from bench.answers import Interval
from bench.errors import UsageError
from bench.measures import MISSING
from bench.outcome import Outcome, Row
from bench.plugins import clip
from bench.report import page, put
from bench.tables import Column, Entry, Line, Table

SORTED: dict[str, Callable[[Row], float | None]] = {
    "change": lambda row: row.ratio.value if row.ratio else None,
    "95 % interval": lambda row: _width(row.ratio),
    "from launches alone": lambda row: _width(row.over_launches),
    "smallest visible": lambda row: row.smallest_visible,
    "memory": lambda row: row.new_memory_bytes,
    "launches": lambda row: row.base_launches + row.new_launches,
}


@dataclass(frozen=True)
class Part:
    """One table of the page, or a sentence that says why there is none."""

    id: str
    heading: str
    table: Table | None
    notes: list[tuple[str, str]]
    folded: bool = False
    nothing: str = ""


def render(outcome: Outcome) -> str:
    """The page."""
    names, common = words.short_names(outcome.rows)
    changed, rest = words.split(outcome)
    nothing = "No cell changed by more than is known." if rest else "No cell was measured on both sides."
    parts = [
        _part("changes", "What changed?", outcome, changed, names, nothing=nothing),
        _part(
            "rest",
            "What did not, or cannot be told?",
            outcome,
            rest,
            names,
            folded=bool(changed),
            nothing="Nothing else.",
        ),
    ]
    values = {
        "title": f"{', '.join(map(_short, outcome.base))} → {', '.join(map(_short, outcome.new))}",
        "headline": words.headline(outcome),
        "method": words.method(outcome),
        "common": common,
        "remarks": list(words.remarks(outcome)),
        "family": outcome.family,
        "sources": ", ".join([*outcome.base, *outcome.new]),
        "parts": parts,
    }
    return page("compare.html.j2", values)


def write(outcome: Outcome, path: Path) -> Path:
    """Write the page, whole. Raises UsageError where the path is no HTML file or cannot be written."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            f"-o {clip(str(path))}: a comparison is an HTML file; give a name that ends in .html"
        )
    return save(path, render(outcome), "-o")


def save(path: Path, text: str, option: str) -> Path:
    """Write a file, whole. Raises UsageError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return put(path, text)
    except OSError as error:
        where, why = clip(str(path), 200), error.strerror or error
        raise UsageError(f"{option} {where}: cannot be written: {why}; choose another place") from None


def _part(
    id: str,
    heading: str,
    outcome: Outcome,
    rows: Sequence[Row],
    names: dict[str, str],
    *,
    folded: bool = False,
    nothing: str,
) -> Part:
    if not rows:
        return Part(id, heading, None, [], nothing=nothing)
    return Part(id, heading, _table(outcome, rows, names), list(words.notes(outcome, rows)), folded=folded)


def _table(outcome: Outcome, rows: Sequence[Row], names: dict[str, str]) -> Table:
    columns = words.columns(outcome, names)
    heads = [Column(heading, numeric=heading not in words.LEFT) for heading, _ in columns]
    lines = [Line([_entry(heading, show(row), row) for heading, show in columns]) for row in rows]
    return Table("", heads, lines)


def _entry(heading: str, text: str, row: Row) -> Entry:
    if heading == "verdict":
        return Entry(text, tone=text.replace(" ", "-"))
    if heading in words.LEFT:
        return Entry(text, hint=clip(words.marks(row), 600) if heading == "marks" else "")
    value = _rate(heading, row) if "(" in heading else SORTED.get(heading, lambda row: row.to_decide)(row)
    return Entry(text, sort=value, tone="missing" if text.startswith((MISSING, "–")) else "")


def _rate(heading: str, row: Row) -> float | None:
    return row.base_rate if heading.startswith("base") else row.new_rate


def _width(interval: Interval | None) -> float | None:
    return interval.half_width if interval else None


def _short(name: str) -> str:
    return Path(name).name
