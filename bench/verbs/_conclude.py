"""The end of a study: the table of results, the findings and the next command, and the exit code."""

import shlex
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from bench.store import Store


def conclude(store: "Store") -> int:
    """Print the table of results, the findings and the next command; return the exit code."""
    from bench.analysis import analyse
    from bench.console import results

    analysis = analyse([store])
    typer.echo(results(analysis))
    typer.echo(f"report: scalemark report {shlex.quote(str(store.root))}")
    traces = sorted(store.root.glob("traces/*/*.json.gz"))
    if traces:
        typer.echo(
            f"traces: {store.root / 'traces'}: {len(traces)} files, for https://ui.perfetto.dev or chrome://tracing"
        )
    ran = [cell for cell in analysis.cells if cell.status != "skipped"]
    good = [cell for cell in ran if cell.samples_per_s is not None]
    if not good:
        return 4
    return 1 if any(cell.failed or cell.samples_per_s is None for cell in ran) else 0
