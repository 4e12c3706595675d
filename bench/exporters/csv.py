"""Tidy tables as CSV: UTF-8, a heading, missing values empty, nested values as JSON text."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from bench.plugins import Exporter
from bench.store import Store
from bench.tidy import Table, tables


def files(stores: Sequence[Store], steps: bool) -> dict[str, bytes]:
    """launches.csv and ranks.csv, and steps.csv where it is asked for."""
    return {f"{name}.csv": text(table).encode() for name, table in tables(stores, steps).items()}


def text(table: Table) -> str:
    """A table as CSV text."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow([column.name for column in table])
    lines.writerows(zip(*([_field(value) for value in column.values] for column in table), strict=True))
    return out.getvalue()


def _field(value: Any) -> Any:
    """Missing is empty, and no text is taken for a formula by a spreadsheet."""
    if isinstance(value, str):
        whole = value.encode(errors="replace").decode()
        return f"'{whole}" if whole.startswith(("=", "+", "-", "@")) else whole
    return "" if value is None else value


PLUGIN = Exporter("launches and ranks (--steps: steps) as CSV tables", ".csv", files)
