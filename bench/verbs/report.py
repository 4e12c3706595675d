"""`scalemark report STUDY...`: one offline HTML file, and a CSV for each of its pictures and tables."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from bench.verbs import _options as o

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
    page, *files = write(analyse(stores), path)
    if json:
        typer.echo(jsonlib.dumps({"report": str(page), "files": [str(file) for file in files]}, indent=2))
    else:
        typer.echo(page)


def _newest() -> str:
    """The study in results/ that was begun last. Raises UsageError where there is none."""
    from bench.errors import UsageError
    from bench.store import RESULTS, newest

    store = newest()
    if store is None:
        raise UsageError(f"no study in {RESULTS}/: run one with scalemark run SUITE, or name its folder")
    return str(store.root)


PLUGIN = report
