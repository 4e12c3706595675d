"""Tidy tables as Parquet: the columns of the CSVs, with their types and with nulls."""

import io
from collections.abc import Sequence

from bench.plugins import Exporter
from bench.store import Store
from bench.tidy import Table, tables


def files(stores: Sequence[Store], steps: bool) -> dict[str, bytes]:
    """launches.parquet and ranks.parquet, and steps.parquet where it is asked for."""
    return {f"{name}.parquet": encode(table) for name, table in tables(stores, steps).items()}


def encode(table: Table) -> bytes:
    """A table as a Parquet file; the type of a column does not depend on its values."""
    import pyarrow as pa
    from pyarrow import parquet

    types = {
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.string(),
        "json": pa.string(),
    }
    columns = {name: pa.array(values, types[kind]) for name, kind, values in table}
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


PLUGIN = Exporter("launches and ranks (--steps: steps) as Parquet tables", ".parquet", files)
