"""Hand-made Analysis values for tests of what shows them: every kind of study a reader may meet."""

from typing import Any

import msgspec

from bench import ring
from bench.answers import (
    Analysis,
    Best,
    CellResult,
    Cluster,
    Comparison,
    Curve,
    Exchanged,
    Exclusion,
    Finding,
    Interval,
    Loss,
    MemoryRow,
    Network,
    Point,
    Traffic,
)
from bench.case import Case
from bench.records import Member, Pair
from tests import checkpoints

MIB = 2**20
HOSTILE = "<script>alert('x')</script>\"&\x1b[31m\u202e$\\frac{1}{0}$\n" + "A" * 10_000


def interval(value: float, spread: float = 0.02, n: int = 5) -> Interval:
    """An interval of relative half-width `spread`; without limits for n = 1."""
    if n == 1:
        return Interval(value=value, low=None, high=None, n=1)
    return Interval(value=value, low=value * (1 - spread), high=value * (1 + spread), n=n)


def launches(value: float, n: int) -> tuple[float, ...]:
    """n launches around a mean, the same every time."""
    return tuple(value * (1 + 0.012 * ((7 * i) % 5 - 2) / 2) for i in range(n))


def phases(step_s: float, wait: float = 0.02, exchange: float = 0.0) -> dict[str, float | None]:
    """Phases that sum to the step; no copy was measured."""
    rest = step_s - wait - exchange
    return {
        "data_wait": wait,
        "h2d": None,
        "forward": rest * 0.33,
        "backward": rest * 0.6 + exchange,
        "optimizer": rest * 0.05,
        "other": rest * 0.02,
    }


def cell(case: Case, rate: float | None, n: int = 5, **fields: Any) -> CellResult:
    """A cell that trains `rate` samples/s, or one that failed where the rate is None."""
    step_s = None if rate is None else case.global_batch / rate
    values: dict[str, Any] = {
        "cell": case.id,
        "suite": "default",
        "case": case,
        "status": "failed" if rate is None else "ok",
        "reason": "rank 1: SIGKILL" if rate is None else None,
        "launches": n,
        "failed": n if rate is None else 0,
        "samples_per_s": None if rate is None else interval(rate, n=n),
        "step_s": step_s,
        "p50_s": step_s,
        "p95_s": step_s and step_s * 1.06,
        "p99_s": step_s and step_s * 1.11,
        "phases_s": {} if step_s is None else phases(step_s),
        "first_step_s": step_s and step_s * 1.7,
        "first_batch_s": None if rate is None else 0.213,
        "efficiency": None,
        "memory_bytes": None if rate is None else 512 * MIB,
        "memory_source": None if rate is None else "PSS of rank and workers",
        "marks": (),
        "converged": None if n == 1 or rate is None else True,
    }
    return CellResult(**(values | fields))


def point(case: Case, rate: float, base: float, n: int = 5, base_devices: int = 1) -> Point:
    """A point of a weak curve."""
    efficiency = rate * base_devices / (case.devices * base)
    return Point(
        cell=case.id,
        devices=case.devices,
        batch=case.batch,
        global_batch=case.global_batch,
        samples_per_s=interval(rate, n=n),
        per_device=rate / case.devices,
        speedup=interval(rate / base, 0.025, n),
        efficiency=interval(efficiency, 0.025, n),
        step_s=case.global_batch / rate,
        launches=launches(rate, n),
        marks=(),
        converged=None if n == 1 else True,
    )


def curve(label: str, cases: list[Case], rates: list[float], base: Case, n: int = 5, **fields: Any) -> Curve:
    """A weak curve over `cases`, under the first rate as the absolute value of `base`."""
    values: dict[str, Any] = {
        "label": label,
        "strategy": cases[-1].strategy,
        "scaling": "weak",
        "settings": {"data": cases[-1].data},
        "base": "single, no wrapper",
        "base_cell": base.id,
        "base_devices": 1,
        "base_samples_per_s": rates[0],
        "points": tuple(point(one, rate, rates[0], n) for one, rate in zip(cases, rates, strict=True)),
        "serial_fraction": {one.devices: None if one.devices == 1 else 0.21 for one in cases},
    }
    return Curve(**(values | fields))


def comparison(factor: str, a: str, b: str, ratio: Interval, verdict: str, **fields: Any) -> Comparison:
    """Two cells that differ in one factor."""
    values: dict[str, Any] = {
        "factor": factor,
        "a": a,
        "b": b,
        "a_cell": f"{factor}-{a}",
        "b_cell": f"{factor}-{b}",
        "context": "DDP × 2, photos",
        "a_samples_per_s": 40.0,
        "b_samples_per_s": 40.0 * ratio.value,
        "ratio": ratio,
        "verdict": verdict,
        "smallest_visible": None if ratio.low is None else 0.018,
        "launches_to_decide": 12 if verdict == "inconclusive" else None,
    }
    return Comparison(**(values | fields))


def memory(
    cell_id: str, rank: int, rank_mib: int = 420, workers_mib: int | None = 160, **fields: Any
) -> MemoryRow:
    """Host memory of one rank; device fields by name."""
    values: dict[str, Any] = dict.fromkeys(MemoryRow.__struct_fields__)
    values |= {"cell": cell_id, "rank": rank, "rank_pss_bytes": rank_mib * MIB}
    values |= {"workers_pss_bytes": workers_mib and workers_mib * MIB, "shm_used_bytes": 24 * MIB}
    return MemoryRow(**(values | fields))


def analysis(**fields: Any) -> Analysis:
    """An analysis of nothing, but for the fields given."""
    values: dict[str, Any] = {
        "study": "sample",
        "studies": ("results/sample",),
        "quick": False,
        "cells": (),
        "curves": (),
        "comparisons": (),
        "findings": (),
        "memory": (),
        "exclusions": (),
        "best": None,
        "best_note": "no launch finished, so nothing can be called best",
        "device_kind": "CPU rank",
        "host": {},
        "environment": {},
        "command": ("scalemark", "run", "default"),
        "target": 0.02,
        "created_at": "2026-01-05T10:00:00+00:00",
        "left_out": (),
        "truncated_lines": 0,
    }
    return Analysis(**(values | fields))


def empty() -> Analysis:
    """A study without a single cell."""
    return analysis()


def all_failed() -> Analysis:
    """Every launch of every cell failed."""
    cases = [Case(strategy="single"), Case(strategy="ddp", ranks=2)]
    lost = tuple(
        Exclusion(launch=f"b{block}-{case.id}", cell=case.id, status="failed", reason="rank 1: SIGKILL")
        for block in range(2)
        for case in cases
    )
    return analysis(cells=tuple(cell(case, None, n=2) for case in cases), exclusions=lost)


def one_point() -> Analysis:
    """One cell on one device."""
    case = Case(strategy="single")
    best = Best(
        cell=case.id,
        label="single",
        samples_per_s=interval(25.4),
        efficiency=None,
        base=None,
        loss=None,
    )
    return analysis(
        cells=(cell(case, 25.4),), curves=(curve("single", [case], [25.4], case),), best=best, best_note=None
    )


def study(n: int = 5, quick: bool = False) -> Analysis:
    """The default suite on a host of two cores: bases, curves, settings, memory, failures, findings."""
    single = Case(strategy="single", data="photos")
    ddp = [Case(strategy="ddp", ranks=ranks, data="photos") for ranks in (1, 2, 4)]
    dp = [Case(strategy="dp", ranks=ranks, data="photos") for ranks in (1, 2)]
    workers = Case(strategy="ddp", ranks=2, data="photos", num_workers=2)
    pinned = msgspec.structs.replace(workers, pin_memory=True)
    syncbn = Case(strategy="ddp", ranks=2, data="photos", sync_bn=True)
    broken = Case(strategy="ddp", ranks=8, data="photos")
    ddp_curve = curve("DDP, photos", ddp, [25.4, 41.2, 52.0], single, n)
    dp_curve = curve(
        "DataParallel, photos", dp, [25.4, 31.0], single, n, reference=True, note="reference implementation"
    )
    rates = [(single, 25.4), *zip(ddp, (25.1, 41.2, 52.0), strict=True), *zip(dp, (25.0, 31.0), strict=True)]
    rates += [(workers, 44.9), (pinned, 44.7), (syncbn, 36.8)]
    efficiency = {one.cell: one.efficiency for one in (*ddp_curve.points, *dp_curve.points)}
    cells = [cell(case, rate, n, efficiency=efficiency.get(case.id)) for case, rate in rates]
    cells[3] = msgspec.structs.replace(cells[3], marks=("oversubscribed",), converged=False)
    cells[4] = msgspec.structs.replace(cells[4], marks=("reference",))
    return analysis(
        study="default-2cpu",
        quick=quick,
        cells=(*cells, cell(broken, None, n)),
        curves=(ddp_curve, dp_curve),
        comparisons=comparisons(n),
        findings=FINDINGS,
        memory=tuple(
            memory(case.id, rank, 420 - 30 * rank, 160 * case.num_workers or None)
            for case, _ in rates
            for rank in range(case.ranks)
        ),
        exclusions=(
            Exclusion(launch="b0-l9", cell=broken.id, status="timeout", reason="rank 3: no step for 60 s"),
        ),
        best=Best(
            cell=ddp[1].id,
            label="DDP × 2",
            samples_per_s=interval(41.2, n=n),
            efficiency=interval(0.811, 0.025, n),
            base="single, no wrapper",
            loss=Loss(
                label="waiting in backward for the other rank", phase="backward", seconds=0.118, share=0.152
            ),
        ),
        best_note=None if not quick else "one launch a cell: no intervals and no verdicts",
        host={
            "hostname": "node0",
            "cpus": {"usable": 2, "counted": 8},
            "memory_bytes": 8 * 2**30,
            "devices": [],
        },
        environment={"torch": "2.13.0+cpu", "python": "3.11.9", "OMP_NUM_THREADS": "1"},
        left_out=("ddp at 8 ranks with SyncBN: over the time budget",),
        truncated_lines=1,
    )


def comparisons(n: int = 5) -> tuple[Comparison, ...]:
    """One comparison of every verdict."""
    if n == 1:
        return (comparison("num_workers", "0", "2", interval(1.09, n=1), "inconclusive"),)
    return (
        comparison("num_workers", "0", "2", interval(1.09, 0.03), "faster"),
        comparison("num_workers", "2", "4", interval(1.004, 0.05), "inconclusive"),
        comparison(
            "pin_memory", "off", "on", interval(0.996, 0.008), "equivalent", note="no accelerator to copy to"
        ),
        comparison("sync_bn", "off", "on", interval(0.893, 0.02), "slower"),
        comparison("strategy", "dp", "ddp", interval(1.027, 0.015), "small change"),
    )


FINDINGS = (
    Finding(
        code="reference-used",
        level="info",
        message="DataParallel is a reference implementation here: torch's own does not run on CPUs.",
        remedy="Read these rows as a test of the method.",
    ),
    Finding(
        code="pinning-without-accelerator",
        level="info",
        message="Pinned memory was asked for on a host without an accelerator: it did nothing.",
        remedy="Leave pin_memory off here.",
    ),
    Finding(
        code="oversubscribed",
        level="problem",
        message="4 ranks ran on 2 usable CPUs, so their numbers say nothing about scaling.",
        remedy="Use at most 2 ranks on this host, or add CPUs.",
        evidence={"ranks": "4", "usable CPUs": "2"},
        cells=(Case(strategy="ddp", ranks=4, data="photos").id,),
    ),
    Finding(
        code="not-converged",
        level="warning",
        message="1 cell stopped at ±5 % instead of ±2 %.",
        remedy="Run again with --budget 20m, or on a quieter host.",
        cells=(Case(strategy="ddp", ranks=4, data="photos").id,),
    ),
)


def quick() -> Analysis:
    """One launch a cell."""
    return study(n=1, quick=True)


def gpus() -> Analysis:
    """Eight ranks on accelerators with device memory, 1 to 64 devices on the curve."""
    single = Case(strategy="single", model="resnet50", batch=128)
    cases = [Case(strategy="ddp", ranks=ranks, model="resnet50", batch=128) for ranks in (1, 2, 4, 8)]
    cases += [Case(strategy="ddp", ranks=8, nodes=nodes, model="resnet50", batch=128) for nodes in (2, 4, 8)]
    rates = [1380.0 * one.devices * 0.975 ** (one.devices.bit_length() - 1) for one in cases]
    scaling = curve("DDP, resnet50", cases, rates, single)
    eight = cases[3].id
    rows = [
        memory(
            eight,
            rank,
            3100,
            1900,
            peak_allocated_bytes=(18_000 + 900 * (rank == 0)) * MIB,
            peak_reserved_bytes=(21_000 + 900 * (rank == 0)) * MIB,
            device_used_bytes=(23_000 + 1800 * (rank == 0)) * MIB,
            device_total_bytes=81_920 * MIB,
        )
        for rank in range(8)
    ]
    cells = [
        cell(single, 1391.0, energy_per_sample_j=0.503),
        *(
            cell(one, rate, efficiency=p.efficiency, energy_per_sample_j=0.51 if one.nodes == 1 else None)
            for one, rate, p in zip(cases, rates, scaling.points, strict=True)
        ),
    ]
    best = Best(
        cell=cases[-1].id,
        label="DDP × 64",
        samples_per_s=interval(rates[-1], 0.006),
        efficiency=interval(scaling.points[-1].efficiency.value, 0.006),
        base="single, no wrapper",
        loss=None,
    )
    return analysis(
        study="resnet50-gpus",
        cells=tuple(cells),
        curves=(scaling,),
        memory=tuple(rows),
        best=best,
        best_note=None,
        device_kind="CUDA device",
    )


def traffic(case: Case, share: float = 0.9, link_bits_per_s: float | None = 100e6, **fields: Any) -> Traffic:
    """A cell whose larger all-reduces come near `share` of a link; small ones wait 1 ms."""
    rate = share * (link_bits_per_s or 1e9) / 8
    found = []
    for size in (65_536, 1_048_576, 4_000_000, 8_388_608):
        seconds = 0.001 + ring.ring_bytes(size, case.devices) / rate
        bandwidths = (
            ring.algbw_bytes_per_s(size, seconds),
            ring.busbw_bytes_per_s(size, seconds, case.devices),
        )
        found.append((size, seconds, *bandwidths))
    values: dict[str, Any] = {
        "cell": case.id,
        "nodes": case.nodes,
        "ranks": case.devices,
        "interfaces": dict.fromkeys(range(case.nodes), ("eth0",)),
        "step_s": 0.4,
        "sender": 1,
        "sent_bytes": 1.05 * ring.ring_bytes(4_000_000, case.devices),
        "ring_bytes": ring.ring_bytes(4_000_000, case.devices),
        "link_bits_per_s": link_bits_per_s,
        "link_source": f"link {case.link}" if case.link else "speed of eth0" if link_bits_per_s else None,
        "exchanges": tuple(
            Exchanged(bytes=size, seconds=seconds, launches=5, algbw_bytes_per_s=alg, busbw_bytes_per_s=bus)
            for size, seconds, alg, bus in found
        ),
    }
    return Traffic(**(values | fields))


def members(count: int, name: str = "n") -> tuple[Member, ...]:
    """So many nodes, of which the last says neither speed nor clock."""
    return tuple(
        Member(
            node=node,
            hostname=f"{name}{node}",
            address=f"10.0.0.{node + 1}",
            interface="eth0",
            speed_mbit=None if node == count - 1 else 1000,
            clock_ahead_s=None if node == count - 1 else 0.0 - 0.0021 * node,
        )
        for node in range(count)
    )


def network(*cells: Traffic, nodes: int = 2, name: str = "n", box: bool = False) -> Network:
    """One study on so many nodes, of whose pairs the last failed."""
    ends = [(first, second) for second in range(nodes) for first in range(second)]
    some = [Pair(first=a, second=b, latency_s=5.2e-5, bits_per_s=941e6) for a, b in ends]
    some[-1] = Pair(first=ends[-1][0], second=ends[-1][1], error="no route to host")
    return Network(
        clusters=(Cluster(study="nodes", nodes=members(nodes, name), pairs=tuple(some), box=box),),
        cells=cells,
    )


def cluster() -> Analysis:
    """Four nodes, of which cells took two or four; links of 100 Mbit/s, 1 Gbit/s, and one that is not known."""
    single = Case(strategy="single")
    cases = [
        Case(strategy="ddp", nodes=nodes, link=link)
        for nodes, link in ((2, "100mbit"), (2, "1gbit"), (4, None))
    ]
    links = [100e6, 1e9, None]
    rates = [20.0, 38.0, 60.0]
    return analysis(
        study="nodes",
        cells=(cell(single, 22.0), *(cell(case, rate) for case, rate in zip(cases, rates, strict=True))),
        curves=(curve("ddp, weak", [cases[1], cases[2]], rates[1:], single),),
        best_note="this sample names no best",
        checkpoints=checkpoints.some(),
        network=network(
            *(traffic(case, link_bits_per_s=link) for case, link in zip(cases[:2], links, strict=False)),
            traffic(cases[2], 0.4, None, sender=None, sent_bytes=None, interfaces={}),
            nodes=4,
        ),
    )


def many_nodes() -> Analysis:
    """60 cells on two nodes each."""
    cases = [Case(strategy="ddp", nodes=2, batch=16 + i) for i in range(60)]
    cells = [traffic(case, 0.5 + 0.005 * i) for i, case in enumerate(cases)]
    return analysis(
        cells=tuple(cell(case, 20.0) for case in cases),
        network=network(*cells),
        checkpoints=checkpoints.many(),
    )


def hostile() -> Analysis:
    """Every name is hostile: markup, terminal codes, mathematics, direction marks, 10,000 letters."""
    good = study()
    case = Case(strategy=HOSTILE, ranks=2, model=HOSTILE, data=HOSTILE)
    bad = msgspec.structs.replace(good.curves[0], label=HOSTILE, base=HOSTILE)
    return msgspec.structs.replace(
        good,
        study=HOSTILE,
        studies=(HOSTILE,),
        cells=(cell(case, 12.0, cell=HOSTILE, suite=HOSTILE, marks=(HOSTILE,), reason=HOSTILE), *good.cells),
        curves=(bad, *good.curves),
        comparisons=(
            comparison(HOSTILE, HOSTILE, HOSTILE, interval(1.1), "faster", context=HOSTILE),
            *good.comparisons,
        ),
        findings=(
            Finding(code=HOSTILE, level="problem", message=HOSTILE, remedy=HOSTILE, cells=(HOSTILE,)),
            *good.findings,
        ),
        memory=(memory(HOSTILE, 0), *good.memory),
        exclusions=(Exclusion(launch=HOSTILE, cell=HOSTILE, status="failed", reason=HOSTILE),),
        host={HOSTILE: HOSTILE},
        environment={HOSTILE: HOSTILE},
        network=network(
            traffic(case, cell=HOSTILE, link_source=HOSTILE, interfaces={0: (HOSTILE,)}), name=HOSTILE
        ),
        command=("scalemark", HOSTILE),
        left_out=(HOSTILE,),
        checkpoints=(
            checkpoints.save(HOSTILE, stand_in=HOSTILE),
            checkpoints.bad("refused", HOSTILE, way=HOSTILE, into=HOSTILE, saver=HOSTILE),
        ),
    )


def large(cells: int = 200, per_cell: int = 5, ranks: int = 8) -> Analysis:
    """`cells` × `per_cell` launches of `ranks` ranks."""
    cases = [
        Case(strategy="ddp", ranks=2 ** (i % 4), batch=16 + i // 4, num_workers=i % 3, data="synthetic")
        for i in range(cells)
    ]
    rates = [20.0 * one.devices**0.9 + 0.01 * i for i, one in enumerate(cases)]
    groups = [(cases[i : i + 4], rates[i : i + 4]) for i in range(0, cells, 4)]
    return analysis(
        study="large",
        best_note="this sample names no best",
        cells=tuple(cell(one, rate, per_cell) for one, rate in zip(cases, rates, strict=True)),
        curves=tuple(
            curve(f"DDP, batch {some[0].batch}", some, values, some[0], per_cell) for some, values in groups
        ),
        comparisons=tuple(
            comparison("num_workers", "0", f"{i}", interval(0.8 + 0.002 * i), "inconclusive")
            for i in range(cells)
        ),
        memory=tuple(memory(one.id, rank) for one in cases for rank in range(ranks)),
    )


SAMPLES = {
    "study": study,
    "empty": empty,
    "all-failed": all_failed,
    "one-point": one_point,
    "quick": quick,
    "gpus": gpus,
    "cluster": cluster,
    "hostile": hostile,
    "large": large,
}
