"""`scalemark report STUDY...`: one offline HTML file, and a CSV for each of its pictures and tables."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.answers import Analysis

REPORTS = Path("reports")

Studies = Annotated[
    list[str] | None, typer.Argument(help="Studies by name or path (default: the newest in results/).")
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="reports/NAME.html", help="Where the page goes.")
]


def report(studies: Studies = None, output: Output = None, json: o.Json = False) -> None:
    """Write the report of one study, or of several together, and print where it is."""
    from bench.analysis import analyse
    from bench.report import write
    from bench.store import open_store

    stores = [open_store(name) for name in studies or [_newest()]]
    path = Path(output) if output else REPORTS / f"{'-'.join(store.name for store in stores)[:80]}.html"
    analysis = analyse(stores)
    page, *files = write(analysis, path)
    if json:
        written = {"report": str(page), "files": [str(file) for file in files]}
        typer.echo(jsonlib.dumps(written | _judged(analysis), indent=2))
    else:
        typer.echo(page)


def _judged(analysis: "Analysis") -> dict[str, Any]:
    """What was judged and what it rests on: verdicts, A/A pairs, spread and cost a cell, drift, launches left out."""
    import msgspec

    answer: dict[str, Any] = msgspec.to_builtins(
        {
            "verdicts_off": analysis.off,
            "comparisons": analysis.comparisons,
            "aa": analysis.twins,
            "cells": [
                {"cell": one.cell, "spread": one.spread, "instrumentation": one.instrumentation}
                for one in analysis.cells
            ],
            "drift": analysis.drifts,
            "exclusions": analysis.exclusions,
        }
    )
    return answer


def _newest() -> str:
    """The study in results/ that was begun last. Raises UsageError where there is none."""
    from bench.errors import UsageError
    from bench.store import RESULTS, newest

    store = newest()
    if store is None:
        raise UsageError(f"no study in {RESULTS}/: run one with scalemark run SUITE, or name its folder")
    return str(store.root)


PLUGIN = report
