"""An Outcome as GitHub-flavoured Markdown: the changes on top, the rest folded."""

import re
from collections.abc import Iterator, Sequence

from bench import outcome_words as words
from bench.outcome import Outcome, Row

MOST = 100  # rows of a table: a comment on GitHub holds 65,536 characters
_PLAIN = re.compile(r"[^\W_]|[ ,%±–×]")


def render(outcome: Outcome) -> str:
    """The comparison as a comment on a pull request."""
    names, common = words.short_names(outcome.rows)
    changed, rest = words.split(outcome)
    parts = [f"### scalemark compare: {escape(words.headline(outcome))}", escape(words.method(outcome))]
    if common:
        parts.append(f"All cells: {_code(common)}")
    parts.append("\n".join(f"- **{escape(word)}**: {escape(text)}" for word, text in words.remarks(outcome)))
    parts += (
        _rows(outcome, changed, names) if changed else ["No cell changed by more than is known."] * bool(rest)
    )
    if rest:
        count = len(rest)
        summary = (
            f"<summary>{count} {'other ' if changed else ''}{'cell' if count == 1 else 'cells'}</summary>"
        )
        parts += ["<details>" + summary, *_rows(outcome, rest, names), "</details>"]
    return "\n\n".join(filter(None, parts)) + "\n"


def _rows(outcome: Outcome, rows: Sequence[Row], names: dict[str, str]) -> list[str]:
    told = [f"- {_code(who)}: {escape(note)}" for who, note in words.notes(outcome, rows)]
    more = f"And {len(rows) - MOST} more: --json has all." if len(rows) > MOST else ""
    return ["\n".join(_table(outcome, rows[:MOST], names)), more, "\n".join(told[:MOST])]


def _table(outcome: Outcome, rows: Sequence[Row], names: dict[str, str]) -> Iterator[str]:
    columns = words.columns(outcome, names)
    yield "| " + " | ".join(escape(heading) for heading, _ in columns) + " |"
    yield "| " + " | ".join("---" if heading in words.LEFT else "---:" for heading, _ in columns) + " |"
    for row in rows:
        cells = [_code(show(row)) if heading == "cell" else show(row) for heading, show in columns]
        yield "| " + " | ".join(cells) + " |"


def _code(text: str) -> str:
    """Text in a code span that nothing in it can leave; GitHub links no names and numbers in there."""
    return f"<code>{escape(text)}</code>"


def escape(text: str) -> str:
    """Text that no reader of Markdown or HTML takes for anything else: all that could mean something as entities.

    Points, hyphens and underscores between letters or digits mean nothing and stay.
    """
    shown = []
    for at, ch in enumerate(text):
        inside = ch in ".-_" and text[at - 1 : at].isalnum() and text[at + 1 : at + 2].isalnum()
        shown.append(ch if _PLAIN.match(ch) or inside else f"&#{ord(ch)};")
    return "".join(shown)
