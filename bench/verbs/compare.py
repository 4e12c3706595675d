"""`scalemark compare BASE NEW`: is what is new slower?"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.errors import UsageError
from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.outcome import Outcome, Row

MARGIN = "2%"

Base = Annotated[
    str,
    typer.Argument(
        metavar="BASE", help="A study, or several with commas between; or a folder of scalemark ab."
    ),
]
New = Annotated[str | None, typer.Argument(metavar="NEW", help="What is compared with it, likewise.")]
Margin = Annotated[
    str | None,
    typer.Option("--margin", metavar=MARGIN, help="Smaller differences do not matter (default: 2%)."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="FIELD", help="Compare although this field differs; may be repeated."),
]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE.html", help="Write a page too.")]
Markdown = Annotated[
    str | None,
    typer.Option(
        "--markdown", metavar="FILE", help="Write GitHub's Markdown too; - prints it, and no table."
    ),
]


def compare(
    base: Base,
    new: New = None,
    margin: Margin = None,
    allow: Allow = None,
    output: Output = None,
    markdown: Markdown = None,
    json: o.Json = False,
) -> None:
    """Compare two sides cell by cell. Exit code 0: same or better, 1: slower, 3: not comparable, 5: undecided."""
    from bench.allocations import decide
    from bench.verbs import _sides

    check_printed(json, markdown)
    asked = None if margin is None else parse_margin(margin)
    sides = _sides.find(base, new, asked, parse_margin(MARGIN))
    outcome = decide(
        sides.base, sides.new, paired=sides.paired, delta=sides.delta, gate=True, allow=allow or ()
    )
    written = show(outcome, output, markdown, json)
    if written and not json and markdown != "-":
        typer.echo("\n".join(["", *map(str, written)]))
    raise typer.Exit(outcome.exit_code)


def check_printed(json: bool, markdown: str | None) -> None:
    """Raise UsageError for two texts on one standard output."""
    if json and markdown == "-":
        raise UsageError("--json and --markdown -: both print; give --markdown a file, or leave one out")


def show(outcome: "Outcome", output: str | None, markdown: str | None, json: bool) -> list[Path]:
    """Write what is asked for, print the table, JSON or Markdown, and return the files written."""
    from bench import outcome_markdown, outcome_page

    written = [outcome_page.write(outcome, Path(output))] if output else []
    if markdown and markdown != "-":
        text = outcome_markdown.render(outcome)
        written.append(outcome_page.save(Path(markdown), text, "--markdown"))
    if json:
        typer.echo(as_json(outcome))
    else:
        typer.echo(outcome_markdown.render(outcome).rstrip() if markdown == "-" else as_text(outcome))
    return written


def parse_margin(text: str) -> float:
    """`2%` or `2 %` as 0.02. Raises UsageError for anything else, and for what is not between 0 and 50 %."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text, re.ASCII)
    value = float(match[1]) / 100 if match else 0.0
    if not 0 < value <= 0.5:
        raise UsageError(f"--margin {text!r}: write a share such as 2%, above 0 and up to 50%")
    return value


def as_json(outcome: "Outcome") -> str:
    """The whole outcome as one JSON object."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(outcome)).decode()


def as_text(outcome: "Outcome") -> str:
    """The verdict, what changed, the rest, and what has to be said besides."""
    from bench import outcome_words as words

    changed, rest = words.split(outcome)
    names, common = words.short_names(outcome.rows)
    lines = [words.headline(outcome), words.method(outcome)]
    lines += [f"all cells: {common}"] if common else []
    for rows, heading in ((changed, "changed:"), (rest, "the rest:" if changed else "")):
        if rows:
            lines += ["", *filter(None, [heading]), _table(outcome, rows, names)]
    said = [f"{word}: {text}" for word, text in words.remarks(outcome)]
    lines += ["", *said, *(f"{who}: {note}" for who, note in words.notes(outcome, [*changed, *rest]))]
    return "\n".join(lines)


def _table(outcome: "Outcome", rows: "Sequence[Row]", names: dict[str, str]) -> str:
    from bench import outcome_words as words
    from bench.console import table

    columns = words.columns(outcome, names)
    return table([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


PLUGIN = compare
