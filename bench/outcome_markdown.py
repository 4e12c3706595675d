"""An Outcome as GitHub-flavoured Markdown: the changes on top, the rest folded; never longer than a comment may be."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench import outcome_words as words
from bench.outcome import Outcome, Row

LIMIT = 65_536  # characters that a comment on GitHub holds
MOST = 1000  # lines that may fit: one of a table has more than 65 characters
_PLAIN = re.compile(r"[^\W_]|[ ,%±–×]")
# GitHub links these in the finished page, where entities are characters again: after each stands a space of no width
_LINKED = re.compile(r"[@#]|(?<=\bwww)\.|(?<=\bgh)-(?=\d)", re.IGNORECASE)
_APART = "&#8203;"


class _Said(NamedTuple):
    """Everything that the comment could hold, the first to stay first; `names` by cell, without what is `common`."""

    remarks: list[tuple[str, str]]
    changed: list[Row]
    rest: list[Row]
    names: dict[str, str]
    common: str


def render(outcome: Outcome) -> str:
    """The comparison as a comment on a pull request.

    Where it is too long for one, the last rows that did not change are left out, then rows that did, then remarks.
    """
    said = _Said(list(words.remarks(outcome)), *words.split(outcome), *words.short_names(outcome.rows))
    first, second = len(said.remarks), len(said.remarks) + len(said.changed)
    count = second + len(said.rest)

    def without(last: int) -> str:
        kept = count - last
        sizes = (min(kept, first), min(kept, second) - min(kept, first), kept - min(kept, second))
        return "\n\n".join(filter(None, _parts(outcome, said, *sizes))) + "\n"

    tries = range(max(0, count - MOST), count)
    return without(tries.start + bisect_left(tries, True, key=lambda last: len(without(last)) <= LIMIT))


def _parts(outcome: Outcome, said: _Said, remarks: int, changed: int, rest: int) -> Iterator[str]:
    """Paragraphs and tables with so many of the remarks, and of the rows that changed and did not."""
    yield f"### scalemark compare: {escape(words.headline(outcome))}"
    yield escape(words.method(outcome))
    if said.common:
        yield f"All cells: {_code(said.common)}"
    yield "\n".join(f"- **{escape(word)}**: {escape(text)}" for word, text in said.remarks[:remarks])
    yield _left_out(len(said.remarks) - remarks, "remark")
    if said.changed:
        yield from _rows(outcome, said.changed, changed, said.names)
    elif said.rest:
        yield "No cell changed by more than is known."
    if said.rest:
        count = len(said.rest)
        other = "other " * bool(said.changed)
        yield f"<details><summary>{count} {other}{'cell' if count == 1 else 'cells'}</summary>"
        yield from _rows(outcome, said.rest, rest, said.names)
        yield "</details>"


def _rows(outcome: Outcome, rows: Sequence[Row], kept: int, names: dict[str, str]) -> Iterator[str]:
    shown = rows[:kept]
    if shown:
        yield "\n".join(_table(outcome, shown, names))
    yield _left_out(len(rows) - kept, "row")
    yield "\n".join(f"- {_code(who)}: {escape(note)}" for who, note in words.notes(outcome, shown))


def _left_out(count: int, what: str) -> str:
    """`900 more rows are left out: a comment holds 65,536 characters; --json has all.`"""
    if not count:
        return ""
    these = f"1 more {what} is" if count == 1 else f"{count:,} more {what}s are"
    return f"{these} left out: a comment holds {LIMIT:,} characters; --json has all."


def _table(outcome: Outcome, rows: Sequence[Row], names: dict[str, str]) -> Iterator[str]:
    columns = words.columns(outcome, names)
    written = {"cell": _code, "marks": escape}  # the rest are words and numbers of this program's own
    yield "| " + " | ".join(escape(heading) for heading, _ in columns) + " |"
    yield "| " + " | ".join("---" if heading in words.LEFT else "---:" for heading, _ in columns) + " |"
    for row in rows:
        cells = [written.get(heading, str)(show(row)) for heading, show in columns]
        yield "| " + " | ".join(cells) + " |"


def _code(text: str) -> str:
    """Text in a code span that nothing in it can leave; GitHub links no names and numbers in there."""
    return f"<code>{escape(text)}</code>"


def escape(text: str) -> str:
    """Text that no reader of Markdown or HTML takes for anything else: all that could mean something as entities.

    Points, hyphens and underscores between letters or digits mean nothing and stay; those that GitHub would make a
    link, a mention or a reference of do not.
    """
    linked = {found.start() for found in _LINKED.finditer(text)}
    shown = []
    for at, ch in enumerate(text):
        inside = ch in ".-_" and text[at - 1 : at].isalnum() and text[at + 1 : at + 2].isalnum()
        plain = at not in linked and (inside or _PLAIN.match(ch))
        shown.append((ch if plain else f"&#{ord(ch)};") + _APART * (at in linked))
    return "".join(shown)
