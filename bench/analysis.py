"""From studies on disk to an Analysis: everything the report and the command line say, as values."""

import math
from collections.abc import Iterable, Sequence

from bench.answers import Analysis, CellResult, Curve, Exclusion, Interval, MemoryRow
from bench.best import best
from bench.checkpoint_records import CheckpointRow
from bench.checkpoint_rows import read
from bench.checks.checkpoints import told
from bench.checks.seen import Known
from bench.comparisons import comparisons
from bench.curves import curves
from bench.evidence import Cell, Evidence, gather
from bench.findings import findings
from bench.records import PHASES
from bench.spread import drifts, instrumentation, spread
from bench.store import Store
from bench.traffic import network
from bench.twins import differs, twins

MEMORY = tuple(name for name in MemoryRow.__struct_fields__ if name.endswith("_bytes"))


def analyse(stores: Sequence[Store]) -> Analysis:
    """Analyse one study, or several together (cells with equal ids are one).

    Raises UsageError where a folder is no study, or its files are broken or of a newer version.
    """
    stores = list({store.root.resolve(): store for store in stores}.values())
    evidence = gather(stores)
    found = curves(evidence)
    pairs = twins(evidence)
    off = differs(evidence, pairs)
    compared = comparisons(evidence, off=off)
    moved = drifts(evidence)
    memory = _memory(evidence)
    winner = best(evidence, found)
    nodes = network(evidence)
    known = Known(evidence, found, compared, nodes, pairs, off, moved)
    saved, broken = _checkpoints(stores)
    header = evidence.headers[0]
    return Analysis(
        study=" + ".join(header.study for header in evidence.headers),
        studies=tuple(str(store.root) for store in stores),
        quick=any(header.quick for header in evidence.headers),
        cells=_cells(evidence, found, memory),
        curves=found,
        comparisons=compared,
        findings=(*findings(known), *told(saved, broken)),
        memory=memory,
        exclusions=_exclusions(evidence),
        best=winner.best,
        best_note=winner.note,
        more=winner.more,
        more_ratio=winner.more_ratio,
        device_kind=_device_kind(evidence),
        host=header.host,
        environment=_environment(evidence),
        command=header.command,
        target=header.target,
        created_at=max(header.created_at for header in evidence.headers),
        left_out=tuple(text for header in evidence.headers for text in header.left_out),
        truncated_lines=len(evidence.frames.broken),
        traces=_traces(stores),
        network=nodes,
        checkpoints=saved,
        twins=pairs,
        off=off,
        drifts=moved,
        verified=evidence.verified,
    )


def _cells(evidence: Evidence, found: Iterable[Curve], memory: Iterable[MemoryRow]) -> tuple[CellResult, ...]:
    efficiency = {point.cell: point.efficiency for curve in found for point in curve.points}
    fullest: dict[str, int] = {}
    for row in memory:
        held = _held(row)
        if held is not None:
            fullest[row.cell] = max(held, fullest.get(row.cell, 0))
    shares = instrumentation(evidence)
    return tuple(
        _cell(evidence, cell, efficiency.get(cell.id), fullest.get(cell.id), shares.get(cell.id))
        for cell in evidence.cells.values()
    )


def _cell(
    evidence: Evidence, cell: Cell, efficiency: Interval | None, memory: int | None, marks_share: float | None
) -> CellResult:
    status, reason = _status(cell)
    sources = evidence.said(cell.id, "device_used_source")
    replaced = sum(row.cause == "contaminated" for row in cell.launches)
    return CellResult(
        cell=cell.id,
        suite=cell.suite,
        case=cell.case,
        status=status,
        reason=reason,
        launches=len(cell.launches) - replaced,
        replaced=replaced,
        failed=len(cell.failures),
        samples_per_s=cell.samples_per_s,
        step_s=cell.average("step_s"),
        p50_s=cell.average("p50_s"),
        p95_s=cell.average("p95_s"),
        p99_s=cell.average("p99_s"),
        phases_s={phase: cell.average(f"{phase}_s") for phase in PHASES} if cell.shown else {},
        first_step_s=cell.average("first_step_s"),
        first_batch_s=cell.average("first_batch_s"),
        efficiency=efficiency,
        memory_bytes=memory,
        memory_source=None if memory is None else sources[0] if sources else "PSS of rank and workers",
        marks=cell.width_marks + cell.marks,
        converged=cell.converged,
        stopped=cell.stopped,
        energy_per_sample_j=cell.average("energy_per_sample_j"),
        twin_of=cell.twin_of,
        spread=spread(cell),
        instrumentation=marks_share,
    )


def _status(cell: Cell) -> tuple[str, str | None]:
    """ok, partly (some launches failed), the status of the failed ones, skipped or not run; with the reason."""
    if not cell.launches:
        return ("skipped", cell.skipped) if cell.skipped else ("not run", None)
    bad = cell.failures
    reason = next((row.detail or row.reason for row in bad), None)
    if not bad:
        return "ok", None
    return ("partly" if any(row.status == "ok" for row in cell.launches) else bad[-1].status), reason


def _exclusions(evidence: Evidence) -> tuple[Exclusion, ...]:
    """Every launch that is not in the numbers, or in them without a vote."""
    rows = (row for cell in evidence.cells.values() for row in cell.launches if not row.comparable)
    return tuple(
        Exclusion(
            launch=row.launch,
            cell=row.cell,
            status=row.status,
            reason=": ".join(filter(None, (row.reject, row.detail))) or "unsteady: shown, no verdict",
            study=row.study,
            cause=row.cause,
        )
        for row in rows
    )


def _memory(evidence: Evidence) -> tuple[MemoryRow, ...]:
    """The largest reading of every rank of every cell, in the order of the plan."""
    largest = evidence.ranks.groupby(["cell", "rank"], sort=True)[list(MEMORY)].max()
    rows: dict[str, list[MemoryRow]] = {}
    for (cell, rank), *values in largest.itertuples(name=None):
        known = {
            name: None if math.isnan(value) else int(value)
            for name, value in zip(MEMORY, values, strict=True)
        }
        rows.setdefault(cell, []).append(MemoryRow(cell=cell, rank=int(rank), **known))
    return tuple(row for cell in evidence.cells for row in rows.get(cell, ()))


def _held(row: MemoryRow) -> int | None:
    """What decides whether it fits: the device as a whole, or the host's pages of rank and workers."""
    if row.device_used_bytes is not None or row.rank_pss_bytes is None:
        return row.device_used_bytes
    return row.rank_pss_bytes + (row.workers_pss_bytes or 0)


def _traces(stores: Iterable[Store]) -> dict[str, int]:
    """Folders that hold profiler traces, and how many files each has."""
    found = {str(store.traces_dir): len(list(store.traces_dir.glob("*/*.json*"))) for store in stores}
    return {folder: count for folder, count in found.items() if count}


def _checkpoints(stores: Iterable[Store]) -> tuple[tuple[CheckpointRow, ...], int]:
    """What was saved and loaded, of all studies, and lines that could not be read."""
    found = [read(store.root) for store in stores]
    return tuple(row for rows, _ in found for row in rows), sum(broken for _, broken in found)


def _device_kind(evidence: Evidence) -> str:
    devices = {
        str(device).split(":")[0] for cell in evidence.measured for device in evidence.said(cell.id, "device")
    }
    kind = next(iter(devices - {"cpu"}), None) or (None if devices else evidence.host.get("accelerator"))
    return f"{kind.upper()} device" if kind else "CPU rank"


def _environment(evidence: Evidence) -> dict[str, str]:
    """Speed-changing variables of all launches; several values are shown side by side."""
    values: dict[str, list[str]] = {}
    for cell in evidence.cells.values():
        for row in cell.launches:
            for name, value in row.environment.items():
                if value not in values.setdefault(name, []):
                    values[name].append(value)
    return {name: " | ".join(values[name]) for name in sorted(values)}
