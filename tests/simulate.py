"""A study as the suite would have written it, without running anything: for tests of what reads studies.

`simulate(root, cells)` draws launches from a simple model of training (compute, loader, gradient exchange),
adds launch-to-launch spread, and writes them through the real Store. `change` may alter or replace any record.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log2
from pathlib import Path

import msgspec
import numpy as np

from bench.case import Case
from bench.records import (
    PHASES,
    Cell,
    Cut,
    Effective,
    LaunchRecord,
    RankMemory,
    RankSummary,
    RankTrace,
    Samples,
    StudyHeader,
    Window,
)
from bench.store import Store
from bench.verify_records import Verification

MIB = 2**20
WARMUP = 5
CPU_HOST = {
    "hostname": "simulated",
    "cpus_usable": 64,
    "cpus_counted": 64,
    "memory_bytes": 64 * 1024 * MIB,
    "shm_free_bytes": 16 * 1024 * MIB,
    "accelerator": None,
    "devices": [],
}
GPU_HOST = CPU_HOST | {
    "accelerator": "cuda",
    "devices": [{"name": "Simulated H", "uuid": f"GPU-{i}"} for i in range(8)],
}

Phases = dict[str, float | None]


def default_phases(case: Case) -> Phases:
    """Seconds a step of each phase: 40 ms compute for 16 samples, plus input and gradient exchange."""
    compute = 0.0025 * case.device_batch
    devices = case.devices
    backward = 0.6 * compute
    if case.strategy == "dp":
        backward += 0.012 * (devices - 1)
    elif case.strategy != "single":
        backward += 0.001 + 0.006 * log2(devices)
    if case.sync_bn:
        backward += 0.25 * compute
    wait = None if case.data == "device" else 0.03 / (1 + case.num_workers)
    return {
        "data_wait": wait,
        "h2d": 0.0005,
        "forward": 0.35 * compute,
        "backward": backward,
        "optimizer": 0.05 * compute,
        "other": 0.0002,
    }


def simulate(
    root: Path,
    cells: Sequence[Case],
    blocks: int = 5,
    spread: float = 0.01,
    steps: int = 45,
    step_s: Callable[[Case], float] | None = None,
    phases: Callable[[Case], Phases] = default_phases,
    change: Callable[[LaunchRecord], LaunchRecord | None] | None = None,
    skipped: Mapping[str, str] | None = None,
    header: Mapping[str, object] | None = None,
    host: Mapping[str, object] = CPU_HOST,
    suite: str = "simulated",
    write_steps: bool = False,
    quick: bool = False,
    seed: int = 0,
    twins: Mapping[str, float] | None = None,
    verified: Verification | None = None,
) -> Store:
    """Write the study `root` and return its Store.

    `cells` run once in each of `blocks` blocks (`quick`: once), in random order, with log-normal launch
    spread. `step_s` sets a cell's mean step time; `phases` splits it. `change(record)` returns what is
    stored instead of a record, or None to drop it. `skipped` maps cell ids to reasons; `header` overrides
    fields of study.json. `twins` maps ids of cells to the factor on the times of a cell that repeats each (A/A).
    `verified` is written as verify.json. Equal arguments give equal files.
    """
    store = Store(root)
    twins = twins or {}
    planned = _header(root.name, cells, suite, skipped or {}, host, quick, seed, dict(header or {}))
    again = [
        msgspec.structs.replace(cell, id=f"{cell.id}-aa", twin_of=cell.id)
        for cell in planned.cells
        if cell.id in twins
    ]
    store.create(msgspec.structs.replace(planned, cells=(*planned.cells, *again)))
    if verified is not None:
        store.write_verification(verified)
    random = np.random.default_rng(seed)
    running = [(case, case.id, 1.0) for case in cells if case.id not in (skipped or {})]
    running += [(cell.case, cell.id, twins[cell.twin_of]) for cell in again]
    for block in range(1 if quick else blocks):
        shared = random.normal(0, spread)
        for order, at in enumerate(random.permutation(len(running))):
            case, cell, longer = running[at]
            factor = longer * float(np.exp(shared + random.normal(0, spread)))
            record = launch_record(case, block, order, factor, steps, step_s, phases, host)
            record = msgspec.structs.replace(record, cell=cell, launch=f"b{block:02d}-{order:03d}-{cell}")
            kept = change(record) if change else record
            if kept is None:
                continue
            store.append(kept)
            if write_steps and kept.status == "ok":
                store.write_steps(kept.launch, _traces(kept, WARMUP + steps, random))
    return store


def failed(
    record: LaunchRecord, reason: str = "exception", detail: str = "rank 1: ValueError: no", **fields
) -> LaunchRecord:
    """The same launch as a failed one: no numbers, a reason, the rank that failed first."""
    gone = {"window": None, "phases_s": {}, "ranks": (), "first_step_s": None, "first_batch_s": None}
    blame = {"status": "failed", "reason": reason, "detail": detail, "first_rank": 1, "implementation": None}
    return msgspec.structs.replace(record, **(gone | blame | fields))


def each_rank(record: LaunchRecord, part: str, **fields) -> LaunchRecord:
    """The record with fields of every rank's `effective`, `counts` or `memory` changed."""
    ranks = [
        msgspec.structs.replace(rank, **{part: msgspec.structs.replace(getattr(rank, part), **fields)})
        for rank in record.ranks
    ]
    return msgspec.structs.replace(record, ranks=tuple(ranks))


def launch_record(
    case: Case,
    block: int,
    order: int,
    factor: float = 1.0,
    steps: int = 45,
    step_s: Callable[[Case], float] | None = None,
    phases: Callable[[Case], Phases] = default_phases,
    host: Mapping[str, object] = CPU_HOST,
) -> LaunchRecord:
    """One launch that went well; `factor` stretches its times."""
    parts = phases(case)
    known = sum(value for value in parts.values() if value is not None)
    scale = factor * (step_s(case) / known if step_s and known else 1.0)
    parts = {name: None if parts[name] is None else parts[name] * scale for name in PHASES}
    step = (step_s(case) * factor) if step_s else known * factor
    samples = case.global_batch * steps
    first_step = 4 * step
    recorded = first_step + (WARMUP + steps - 1) * step
    accelerator = bool(host.get("accelerator"))
    reference = not accelerator and (case.sync_bn or case.strategy == "dp")
    ranks = 1 if case.strategy in ("single", "dp") else case.devices
    return LaunchRecord(
        launch=f"b{block:02d}-{order:03d}-{case.id}",
        cell=case.id,
        block=block,
        order=order,
        status="ok",
        started_at="2025-01-01T00:00:00Z",
        wall_s=recorded + 0.5,
        overhead_s=0.5,
        requested=case,
        clock="events" if accelerator else "cpu",
        window=Window(
            steps=steps,
            samples=samples,
            wall_s=step * steps,
            samples_per_s=samples / (step * steps),
            step_s=step,
            p50_s=step * 0.995,
            p95_s=step * 1.05,
            p99_s=step * 1.1,
            outliers=1,
            step_sd=0.03,
            mean_error=0.003,
            cut=Cut(first=WARMUP, state="steady", drift=0.0, drift_low=-0.001, drift_high=0.001),
        ),
        phases_s=parts,
        first_step_s=first_step,
        first_batch_s=0.02 + 0.05 * case.num_workers,
        implementation="reference" if reference else "torch",
        mismatches=("pin_memory asked for, not in effect",) if _idle_pinning(case, accelerator) else (),
        ranks=tuple(
            _rank(case, rank, ranks, steps, step, parts, accelerator, reference) for rank in range(ranks)
        ),
        environment={},
        fingerprint="simulated-1",
    )


def _idle_pinning(case: Case, accelerator: bool) -> bool:
    return case.pin_memory and not accelerator and case.data != "device"


def _rank(
    case: Case,
    rank: int,
    ranks: int,
    steps: int,
    step: float,
    parts: Phases,
    accelerator: bool,
    reference: bool,
) -> RankSummary:
    each = case.device_batch if ranks > 1 else case.global_batch
    return RankSummary(
        rank=rank,
        node=0,
        host="simulated",
        pid=1000 + rank,
        status="ok",
        step_s=step,
        phases_s=parts,
        rendezvous_s=0.1,
        build_s=0.2,
        first_batch_s=0.02,
        first_step_s=4 * step,
        instrumentation_s=1e-5,
        effective=_effective(case, rank, ranks, each, accelerator, reference),
        counts=Samples(
            dataset_len=9600,
            per_epoch=9600 // ranks,
            padded=0,
            dropped=0,
            seen=each * (steps + WARMUP),
            in_window=each * steps,
            epochs=1,
        ),
        memory=_memory(case, rank, accelerator),
    )


def _effective(
    case: Case, rank: int, ranks: int, batch: int, accelerator: bool, reference: bool
) -> Effective:
    wrappers = {"single": "ResNet", "dp": "DataParallel"}
    loads = case.data != "device"
    return Effective(
        wrapper=wrappers.get(case.strategy, "DistributedDataParallel"),
        implementation="reference" if reference else "torch",
        stand_ins=_stand_ins(case, reference),
        world_size=ranks,
        backend=None
        if case.strategy in ("single", "dp")
        else case.backend or ("nccl" if accelerator else "gloo"),
        device=f"cuda:{rank}" if accelerator else "cpu",
        device_name="Simulated H" if accelerator else None,
        device_uuids=_uuids(case, rank, ranks) if accelerator else (),
        devices_used=case.devices if ranks == 1 else 1,
        threads=case.threads or 1,
        interop_threads=1,
        omp_num_threads="1",
        affinity=(0, 1),
        batch_norm_layers=0 if case.sync_bn else 9,
        sync_bn_layers=9 if case.sync_bn else 0,
        sync_bn="SyncBatchNorm" if case.sync_bn else None,
        num_workers=case.num_workers if loads else None,
        pinned=(case.pin_memory and accelerator) if loads else None,
        prefetch_factor=(case.prefetch_factor or 2) if case.num_workers else None,
        persistent_workers=bool(case.persistent_workers) if loads else None,
        batch=batch,
        batch_bytes=batch * 150_528,
        parameters=1_000_000,
        gradient_bytes=4_000_000,
        optimizer="SGD",
        precision="float32",
        weights_hash="c0ffee",
    )


def _uuids(case: Case, rank: int, ranks: int) -> tuple[str, ...]:
    return tuple(f"GPU-{i}" for i in range(case.devices)) if ranks == 1 else (f"GPU-{rank}",)


def _stand_ins(case: Case, reference: bool) -> tuple[str, ...]:
    found = ["reference DataParallel on CPU"] * (reference and case.strategy == "dp")
    found += ["reference SyncBN on CPU"] * (reference and case.sync_bn)
    found += ["paced model"] * (case.model == "paced") + ["paced data"] * (case.data == "paced")
    return tuple(found)


def _memory(case: Case, rank: int, accelerator: bool) -> RankMemory:
    allocated = (100 + 10 * case.device_batch + 5 * (rank == 0)) * MIB
    return RankMemory(
        peak_allocated_bytes=allocated if accelerator else None,
        peak_reserved_bytes=allocated * 5 // 4 if accelerator else None,
        device_used_bytes=allocated * 5 // 4 + 500 * MIB if accelerator else None,
        device_used_source="nvml" if accelerator else None,
        device_total_bytes=80 * 1024 * MIB if accelerator else None,
        rank_pss_bytes=(300 + case.device_batch) * MIB + rank * MIB,
        workers_pss_bytes=150 * MIB * case.num_workers if case.num_workers else None,
        workers=case.num_workers,
        open_fds_start=20 + 4 * case.num_workers,
        open_fds=20 + 4 * case.num_workers,
    )


def _traces(record: LaunchRecord, count: int, random: np.random.Generator) -> list[RankTrace]:
    noise = np.exp(random.normal(0, 0.03, size=count))
    noise[0] *= 4
    return [_trace(record, rank, count, noise) for rank in record.ranks]


def _trace(record: LaunchRecord, rank: RankSummary, count: int, noise: np.ndarray) -> RankTrace:
    def spread_out(mean: float | None) -> tuple[float, ...] | None:
        return None if mean is None else tuple((mean * noise).tolist())

    each = rank.counts.in_window // record.window.steps
    return RankTrace(
        launch=record.launch,
        rank=rank.rank,
        local_rank=rank.rank,
        node=rank.node,
        host=rank.host,
        pid=rank.pid,
        status="ok",
        clock=record.clock,
        step_s=spread_out(rank.step_s),
        phases_s={name: spread_out(mean) for name, mean in rank.phases_s.items()},
        samples=(each,) * count,
        cut=record.window.cut,
        segments=(count,),
    )


def _header(name, cells, suite, skipped, host, quick, seed, fields) -> StudyHeader:
    values = {
        "study": name,
        "version": "0.1.0",
        "suites": (suite,),
        "cells": tuple(
            Cell(id=case.id, case=case, suite=suite, skipped=skipped.get(case.id)) for case in cells
        ),
        "factors": _factors(cells),
        "created_at": "2025-01-01T00:00:00Z",
        "seed": seed,
        "command": ("scalemark", "run", suite),
        "quick": quick,
        "target": 0.02,
        "min_launches": 5,
        "max_launches": 10,
        "budget_s": None,
        "git": None,
        "host": dict(host),
    }
    return StudyHeader(**(values | fields))


def _factors(cells: Sequence[Case]) -> dict[str, tuple]:
    """The fields that differ between cells, with their levels in order of appearance."""
    names = [name for name in Case.__struct_fields__ if not name.endswith("_args")]
    levels = {name: tuple(dict.fromkeys(getattr(case, name) for case in cells)) for name in names}
    return {name: values for name, values in levels.items() if len(values) > 1}
