"""From stores to tidy pandas frames: one row a launch, one row a rank of a launch, one row a step.

Only launches.jsonl is read; the Parquet files of the steps are opened when `steps` asks for them.
Durations are in seconds, sizes in bytes; what was not measured is missing (NaN or None), never 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from bench.case import Case
from bench.contamination import replaced
from bench.environment import bare_uuid
from bench.records import PHASES, Effective, LaunchRecord, RankMemory, RankSummary, Samples, StudyHeader
from bench.store import Broken, Store

if TYPE_CHECKING:
    from pandas import DataFrame

# Declared causes, beside the classes of failures.py, for which a launch has no vote. No other is ever left out.
CAUSES = ("no throughput", "not as requested", "contaminated", "rank missing", "unsteady")
MOST_NAMED = 8  # missing ranks
CASE_FIELDS = Case.__struct_fields__
PHASE_COLUMNS = tuple(f"{phase}_s" for phase in PHASES)
MEMORY_COLUMNS = RankMemory.__struct_fields__
COUNT_COLUMNS = Samples.__struct_fields__
EFFECTIVE_COLUMNS = Effective.__struct_fields__


@dataclass(frozen=True)
class Frames:
    """Everything one pass over the stores gives. `broken` has one line of text a line that is no record."""

    headers: tuple[StudyHeader, ...]
    launches: "DataFrame"
    ranks: "DataFrame"
    broken: tuple[str, ...]


def load(stores: Sequence[Store]) -> Frames:
    """Read every store once. Raises UsageError as Store.header and Store.read do."""
    from pandas import DataFrame

    rows: list[dict[str, Any]] = []
    ranks: dict[str, list[Any]] = {name: [] for name in _RANK_COLUMNS}
    broken: list[str] = []
    headers = tuple(store.header() for store in stores)
    for store, study, header in zip(stores, study_names(stores), headers, strict=True):
        suites = {cell.id: cell.suite for cell in header.cells}
        instead: dict[str, str] = {}
        first = len(rows)
        for record in store.read():
            if isinstance(record, Broken):
                broken.append(f"{store.launches_path}:{record.line}: {record.problem}")
                continue
            row = _launch_row(record, study, suites.get(record.cell))
            if any(isinstance(value, int) and abs(value) >= 2**63 for value in row.values()):
                broken.append(f"{store.launches_path}: {record.launch}: sums of more than 64 bits")
                continue
            rows.append(row)
            instead |= replaced([record])
            _add_ranks(ranks, record, study)
        for row in rows[first:]:
            _leave_out(row, instead.get(row["launch"]))
    table = DataFrame(rows, columns=list(_LAUNCH_COLUMNS), dtype=object)
    return Frames(
        headers,
        table.astype(_types(_LAUNCH_INTS, _LAUNCH_FLOATS, ("comparable", "reference"))),
        DataFrame(ranks, dtype=object).astype(_types(("block", "rank", "node"), _RANK_FLOATS, ())),
        tuple(broken),
    )


def launches(stores: Sequence[Store]) -> "DataFrame":
    """One row a launch: identity, status, every field of the case, throughput, phases, marks.

    `y` is ln(samples/s). `reject` says why a launch enters no curve and no verdict (None: it may),
    `comparable` that it enters both; an unsteady launch has numbers to show and is not comparable.
    """
    return load(stores).launches


def ranks(stores: Sequence[Store]) -> "DataFrame":
    """One row a rank of a launch: its phases, effective settings, counts and memory."""
    return load(stores).ranks


def steps(store: Store, launch: str) -> "DataFrame":
    """Every recorded step of one launch, or an empty frame where none were kept."""
    import pandas as pd

    path = store.steps_path(launch)
    return pd.read_parquet(path) if path.exists() else pd.DataFrame()


_LAUNCH_COLUMNS = (
    *("study", "launch", "cell", "suite", "block", "run", "order"),
    *("status", "reason", "detail", "first_rank"),
    *CASE_FIELDS,
    *("devices", "global_batch", "case"),
    *("samples_per_s", "y", "step_s", "p50_s", "p95_s", "p99_s", "window_steps", "outliers"),
    *("step_sd", "mean_error"),
    *PHASE_COLUMNS,
    *("first_step_s", "first_batch_s", "compile_s"),
    *(
        "energy_per_sample_j",
        "steady",
        "drift",
        "clock",
        "implementation",
        "stand_ins",
        "marks",
        "contaminated",
    ),
    *(
        "mismatches",
        "reject",
        "cause",
        "comparable",
        "reference",
        "fingerprint",
        "environment",
        "telemetry",
        "wall_s",
        "overhead_s",
    ),
)
_RANK_COLUMNS = (
    *("study", "launch", "cell", "block", "rank", "node", "host", "status", "step_s"),
    *PHASE_COLUMNS,
    *("rendezvous_s", "build_s", "first_batch_s", "first_step_s", "warnings", "network", "instrumentation_s"),
    *EFFECTIVE_COLUMNS,
    *COUNT_COLUMNS,
    *MEMORY_COLUMNS,
)
# Types are stated, not guessed: a study without one good launch has the same columns as any other, and a
# missing text stays None (a guessed string column would turn it into NaN, which is true).
_LAUNCH_INTS = (
    "block",
    "run",
    "order",
    "ranks",
    "nodes",
    "batch",
    "num_workers",
    "steps",
    "seed",
    "devices",
    "global_batch",
)
_LAUNCH_FLOATS = (
    *(
        "samples_per_s",
        "y",
        "step_s",
        "p50_s",
        "p95_s",
        "p99_s",
        "window_steps",
        "outliers",
        "step_sd",
        "mean_error",
        "drift",
        "first_rank",
    ),
    *PHASE_COLUMNS,
    *("first_step_s", "first_batch_s", "compile_s", "wall_s", "overhead_s", "energy_per_sample_j"),
)
_RANK_FLOATS = (
    *("step_s", *PHASE_COLUMNS, "rendezvous_s", "build_s", "first_batch_s", "first_step_s"),
    *("instrumentation_s", "world_size", "devices_used", "threads", "sync_bn_layers", "batch"),
    *COUNT_COLUMNS,
    *(name for name in MEMORY_COLUMNS if name not in ("device_used_source", "per_device_allocated_bytes")),
)


def _types(ints: Iterable[str], floats: Iterable[str], bools: Iterable[str]) -> dict[str, type]:
    types: dict[str, type] = dict.fromkeys(bools, bool)
    return types | dict.fromkeys(ints, int) | dict.fromkeys(floats, float)


def study_names(stores: Sequence[Store]) -> list[str]:
    """A name a store that no other has: its folder's, or the whole path where two share one."""
    names = [store.name for store in stores]
    return [str(s.root) if names.count(s.name) > 1 else s.name for s in stores]


def _launch_row(record: LaunchRecord, study: str, suite: str | None) -> dict[str, Any]:
    case, window = record.requested, record.window
    rate = window.samples_per_s if window else None
    cause, reject = _reject(record)
    row = {name: getattr(record, name) for name in _LAUNCH_COLUMNS if name in _RECORD_FIELDS}
    row |= {name: getattr(case, name) for name in CASE_FIELDS}
    row |= {"study": study, "suite": suite, "case": case}
    row |= {"devices": case.devices, "global_batch": case.global_batch}
    row |= {f"{phase}_s": record.phases_s.get(phase) for phase in PHASES}
    row |= {"samples_per_s": rate, "y": math.log(rate) if rate and rate > 0 else None}
    if window:
        row |= {"step_s": window.step_s, "p50_s": window.p50_s, "p95_s": window.p95_s, "p99_s": window.p99_s}
        row |= {"window_steps": window.steps, "outliers": window.outliers}
        row |= {"step_sd": window.step_sd, "mean_error": window.mean_error}
        row |= {"steady": window.cut.state, "drift": window.cut.drift}
        row |= {"energy_per_sample_j": _energy_per_sample(record, window.samples)}
    row["stand_ins"] = _stand_ins(record.ranks)
    row |= {"reject": reject, "reference": record.implementation == "reference"}
    row["comparable"] = reject is None and row.get("steady") != "unsteady"
    row["cause"] = cause or (None if row["comparable"] else "unsteady")
    return row


_RECORD_FIELDS = frozenset(LaunchRecord.__struct_fields__) - frozenset(CASE_FIELDS)


def _leave_out(row: dict[str, Any], instead: str | None) -> None:
    """A contaminated launch in whose place another counts has no vote; `instead` says which."""
    if instead is not None and row["reject"] is None:
        words = "; ".join((*row["contaminated"], instead))
        row |= {"cause": "contaminated", "reject": words, "comparable": False}


def _reject(record: LaunchRecord) -> tuple[str, str] | tuple[None, None]:
    """The cause, a failure's class or one of CAUSES, and the reason why a launch has no place in curves and comparisons."""
    if record.status != "ok":
        return record.reason or record.status, record.reason or record.status
    if record.window is None or not record.window.samples_per_s:
        return "no throughput", "window too short: no throughput"
    if record.mismatches:
        return "not as requested", "; ".join(record.mismatches)
    missing = _missing_ranks(record.ranks)
    return ("rank missing", f"{missing} missing") if missing else (None, None)


def _missing_ranks(summaries: Sequence[RankSummary]) -> str:
    """ "rank 3" where the others say that there were four: no silent average over three."""
    sizes = [rank.effective.world_size for rank in summaries if rank.effective]
    there, size = {rank.rank for rank in summaries}, max(sizes, default=0)
    gone = list(islice((rank for rank in range(size) if rank not in there), MOST_NAMED + 1))
    more = ", ..." if len(gone) > MOST_NAMED else ""
    return f"rank {', '.join(map(str, gone[:MOST_NAMED]))}{more}" if gone else ""


def _energy_per_sample(record: LaunchRecord, samples: int) -> float | None:
    """What the devices of all ranks took in the window over its samples; None where one does not say."""
    said = {}
    for key, stat in record.telemetry.items():
        subject, _, measure = key.rpartition("/")
        if measure == "energy_j":
            said[bare_uuid(subject)] = stat.get("total")
    used = {
        bare_uuid(uuid) for rank in record.ranks if rank.effective for uuid in rank.effective.device_uuids
    }
    parts = [energy for uuid in used if (energy := said.get(uuid)) is not None]
    return math.fsum(parts) / samples if samples and parts and len(parts) == len(used) else None


def _stand_ins(summaries: Sequence[RankSummary]) -> tuple[str, ...]:
    names = (name for rank in summaries if rank.effective for name in rank.effective.stand_ins)
    return tuple(dict.fromkeys(names))


def _add_ranks(columns: dict[str, list[Any]], record: LaunchRecord, study: str) -> None:
    """Append one row a rank to the columns: lists of plain values, which is several times faster than rows."""
    for rank in record.ranks:
        head = (study, record.launch, record.cell, record.block, rank.rank, rank.node, rank.host, rank.status)
        times = (rank.step_s, *(rank.phases_s.get(phase) for phase in PHASES))
        start = (rank.rendezvous_s, rank.build_s, rank.first_batch_s, rank.first_step_s)
        told = (rank.warnings, rank.network, rank.instrumentation_s)
        parts = (
            *_values(rank.effective, EFFECTIVE_COLUMNS),
            *_values(rank.counts, COUNT_COLUMNS),
            *_values(rank.memory, MEMORY_COLUMNS),
        )
        for column, value in zip(columns.values(), (*head, *times, *start, *told, *parts), strict=True):
            column.append(value)


def _values(part: Any, names: Iterable[str]) -> Iterable[Any]:
    return (None if part is None else getattr(part, name) for name in names)
