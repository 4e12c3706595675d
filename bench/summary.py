"""Traces of the ranks -> one launch record: the window over all ranks, means a rank, what differs from the plan."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from bench import plugins
from bench.case import Case
from bench.records import PHASES, Effective, RankSummary, RankTrace, Window
from bench.stats import tukey_outliers

BUSY = "busy host: other processes used "
MUCH_CPU = 0.3  # CPUs
SHORT_S = 0.5

WRAPPERS = {
    "ddp": ("DistributedDataParallel",),
    "dp": ("DataParallel", "ReferenceDataParallel"),
}


def window(traces: Sequence[RankTrace]) -> Window | None:
    """The steady window over all ranks, or None where a rank has none.

    Throughput = samples stepped by all ranks / the longest rank's wall time; step time = that wall time
    / steps. Percentiles and outliers are of the slowest rank's time in each step.
    """
    if not traces or any(trace.cut is None or trace.counts is None for trace in traces):
        return None
    cut = traces[0].cut
    assert cut is not None
    slowest = np.max([trace.step_s for trace in traces], axis=0)[cut.first :]
    wall_s = max(trace.window_s or 0.0 for trace in traces)
    samples = sum(trace.counts.in_window for trace in traces if trace.counts)
    p50, p95, p99 = (float(q) for q in np.percentile(slowest, [50, 95, 99]))
    return Window(
        steps=len(slowest),
        samples=samples,
        wall_s=wall_s,
        samples_per_s=samples / wall_s if wall_s > 0 else None,
        step_s=wall_s / len(slowest),
        p50_s=p50,
        p95_s=p95,
        p99_s=p99,
        outliers=int(tukey_outliers(slowest).sum()),
        cut=cut,
    )


def rank_summary(trace: RankTrace) -> RankSummary:
    """One rank's means over its steady window; a phase that was not measured stays null."""
    first = trace.cut.first if trace.cut else 0
    steps = len(trace.step_s) - first
    return RankSummary(
        rank=trace.rank,
        node=trace.node,
        host=trace.host,
        pid=trace.pid,
        status=trace.status,
        step_s=trace.window_s / steps if trace.window_s is not None and steps else None,
        phases_s={name: _mean((trace.phases_s.get(name) or ())[first:]) for name in PHASES} if steps else {},
        rendezvous_s=trace.rendezvous_s,
        build_s=trace.build_s,
        first_batch_s=trace.first_batch_s,
        first_step_s=trace.first_step_s,
        effective=trace.effective,
        counts=trace.counts,
        memory=trace.memory,
        warnings=trace.warnings,
    )


def mean_phases(ranks: Sequence[RankSummary]) -> dict[str, float | None]:
    """Mean over ranks of each phase; null where any rank has none."""
    return {name: _mean_or_none([rank.phases_s.get(name) for rank in ranks]) for name in PHASES}


def mismatches(case: Case, processes: int, traces: Sequence[RankTrace]) -> tuple[str, ...]:
    """Where what ran is not what was asked for, in words. Such a row enters no comparison."""
    found = [] if len(traces) == processes else [f"{len(traces)} of {processes} ranks left a trace"]
    for trace in traces:
        if trace.effective is not None:
            found += _differences(case, trace.effective)
    return tuple(dict.fromkeys(found))


def _differences(case: Case, real: Effective) -> list[str]:
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    asked: dict[str, tuple[object, object]] = {
        "threads": (case.threads or 1, real.threads),
        "batch": (case.global_batch if strategy.single_process else case.device_batch, real.batch),
        "devices": (case.ranks if strategy.single_process else 1, real.devices_used),
        "world size": (case.devices if strategy.collective else 1, real.world_size),
    }
    if real.num_workers is not None:
        asked["num_workers"] = (case.num_workers, real.num_workers)
    if case.backend is not None:
        asked["backend"] = (case.backend, real.backend)
    if case.prefetch_factor is not None:
        asked["prefetch_factor"] = (case.prefetch_factor, real.prefetch_factor)
    if case.persistent_workers is not None:
        asked["persistent_workers"] = (case.persistent_workers, real.persistent_workers)
    found = [
        f"{name}: {want} asked for, {got} in effect" for name, (want, got) in asked.items() if want != got
    ]
    wrappers = WRAPPERS.get(case.strategy, ())
    if wrappers and real.wrapper not in wrappers:
        found.append(f"{case.strategy} asked for, the model is a {real.wrapper}")
    if case.sync_bn and not real.sync_bn_layers:
        found.append("sync_bn asked for, no SyncBN layer in effect: the model has no BatchNorm")
    if case.pin_memory and not real.pinned:
        found.append("pin_memory asked for, not in effect")
    return found


def busy_mark(telemetry: Mapping[str, Mapping[str, float | None]], cpus: int) -> str | None:
    """What other processes took of this node's CPUs during the window, where it is worth saying; None otherwise.

    The node's CPU time less that of ranks, loader workers, engine and sampler, in CPUs.
    """
    node = telemetry.get("node/cpu_percent", {}).get("mean")
    own = [
        stat["mean"] or 0.0
        for key, stat in telemetry.items()
        if key.endswith("/cpu_percent") and key.startswith(("rank ", "engine", "sampler"))
    ]
    if node is None or not any(key.startswith("rank ") for key in telemetry):
        return None
    others = (node - sum(own)) / 100
    return f"{BUSY}{others:.1f} of {cpus} CPUs" if others > MUCH_CPU else None


def window_mark(window: Window | None) -> str | None:
    """Said where the window is so short that a hiccup decides it."""
    if window is None or window.wall_s >= SHORT_S:
        return None
    return f"window of {window.wall_s * 1e3:.0f} ms: raise steps"


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None
