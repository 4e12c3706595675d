"""`scalemark export STUDY...`: launches, ranks and steps for other programs."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from bench.verbs import _options as o
from bench.verbs.report import REPORTS

Studies = Annotated[list[str], typer.Argument(help="Studies by name or path.")]
Format = Annotated[
    str, typer.Option("--format", "-f", metavar="FORMAT", help="One of: scalemark list exporters.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="PATH", help="A folder, or a file's name (default: reports/NAME/)."
    ),
]
Steps = Annotated[bool, typer.Option("--steps", help="A table of every recorded step too.")]


def export(
    studies: Studies,
    format: Format = "csv",
    output: Output = None,
    steps: Steps = False,
    json: o.Json = False,
) -> None:
    """Write studies as CSV or Parquet tables or as pytest-benchmark's JSON, and print the files."""
    from bench.export import write
    from bench.store import open_store

    stores = [open_store(name) for name in studies]
    place = Path(output) if output else REPORTS / "-".join(store.name for store in stores)[:80]
    o.say_unreadable(stores)
    files = write(format, stores, place, steps)
    if json:
        typer.echo(jsonlib.dumps({"files": [str(file) for file in files]}, indent=2))
    else:
        typer.echo("\n".join(map(str, files)))


PLUGIN = export
