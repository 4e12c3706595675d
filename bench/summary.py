"""Traces of the ranks -> one launch record: the window over all ranks, means a rank, what differs from the plan."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from bench import plugins
from bench.case import Case
from bench.failures import Verdict
from bench.link import Link
from bench.records import PHASES, Effective, LaunchRecord, Pair, RankSummary, RankTrace, Window
from bench.stats import tukey_outliers
from bench.variance import error_of_mean, relative_sd

SHORT_S = 0.5
_DEFAULT = Case()

# fields of a case, and of what is read back in the rank, that must be equal where the case says something
SAME = (
    *("backend", "prefetch_factor", "persistent_workers", "comm_hook", "channels_last"),
    *("gradient_as_bucket_view", "static_graph", "find_unused_parameters", "broadcast_buffers"),
)
AUTOCAST = ("bf16", "fp16")  # seen by what a layer gives out, where one could be looked at
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
COLD, WARM = 0.5, 0.9  # at most, and at least, this share of the files in the page cache


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
        step_sd=relative_sd(slowest),
        mean_error=error_of_mean(slowest),
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
        compile_s=trace.compile_s,
        last_loss=trace.last_loss,
        first_step_s=trace.first_step_s,
        effective=trace.effective,
        counts=trace.counts,
        memory=trace.memory,
        network=trace.network,
        instrumentation_s=trace.instrumentation_s,
        warnings=trace.warnings,
    )


def mean_phases(ranks: Sequence[RankSummary]) -> dict[str, float | None]:
    """Mean over ranks of each phase; null where any rank has none."""
    return {name: _mean_or_none([rank.phases_s.get(name) for rank in ranks]) for name in PHASES}


def why(failure: Verdict | None, ok: bool) -> dict[str, Any]:
    """Fields of a record that say why a launch failed; none where it did not."""
    if failure is not None:
        return {
            "reason": failure.reason,
            "detail": failure.detail,
            "first_rank": failure.first_rank,
            "first_node": failure.first_node,
            "signal": failure.signal,
        }
    return {} if ok else {"reason": "exception", "detail": "the ranks left no window"}


def with_overhead(record: LaunchRecord, traces: Sequence[RankTrace]) -> LaunchRecord:
    """The launch's cost beside its steps: its wall time less the slowest rank's recorded steps, compilation and traces."""
    if record.window is None or record.wall_s is None or not traces:
        return record
    known_s = max(
        sum(t.step_s) + (t.compile_s or 0.0) + (t.trace_s or 0.0) + (t.network_s or 0.0) for t in traces
    )
    return msgspec.structs.replace(record, overhead_s=record.wall_s - known_s)


def span_s(traces: Sequence[RankTrace]) -> tuple[float | None, float | None]:
    """The steady window of the launch in seconds of CLOCK_MONOTONIC, where the ranks have one."""
    starts = [t.window_start_ns for t in traces if t.window_start_ns]
    ends = [t.window_end_ns for t in traces if t.window_end_ns]
    return (min(starts) / 1e9 if starts else None, max(ends) / 1e9 if ends else None)


def largest(values: Iterable[float | None]) -> float | None:
    """The largest of what is known, or None."""
    return max((value for value in values if value is not None), default=None)


def mismatches(case: Case, processes: int, traces: Sequence[RankTrace]) -> tuple[str, ...]:
    """Where what ran is not what was asked for, in words. Such a row enters no comparison."""
    found = [] if len(traces) == processes else [f"{len(traces)} of {processes} ranks left a trace"]
    for trace in traces:
        if trace.effective is not None:
            found += _differences(case, trace.effective)
    nodes = len({trace.node for trace in traces})
    if traces and nodes != case.nodes:
        found.append(f"nodes: {case.nodes} asked for, {nodes} in effect")
    return tuple(dict.fromkeys(found))


def _differences(case: Case, real: Effective) -> list[str]:
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    asked: dict[str, tuple[object, object]] = {
        "threads": (case.threads or 1, real.threads),
        "batch": (case.micro_batch if strategy.single_process else case.device_batch, real.batch),
        "devices": (case.ranks if strategy.single_process else 1, real.devices_used),
        "world size": (case.devices if strategy.collective else 1, real.world_size),
    }
    if real.num_workers is not None:
        asked["num_workers"] = (case.num_workers, real.num_workers)
    for name in SAME:
        if (want := getattr(case, name)) != getattr(_DEFAULT, name):
            asked[name] = (want, getattr(real, name))
    if case.precision is not None and (case.precision not in AUTOCAST or real.compute_dtype is not None):
        asked["precision"] = (case.precision, real.precision)
    if case.grad_accumulation > 1:
        asked["grad_accumulation"] = (case.grad_accumulation, real.micro_batches)
    if case.fused:
        asked["fused"] = (True, real.fused)
    found = [
        f"{name}: {_word(want)} asked for, {_word(got)} in effect"
        for name, (want, got) in asked.items()
        if want != got
    ]
    if strategy.wrappers and real.wrapper not in strategy.wrappers:
        found.append(f"{case.strategy} asked for, the model is a {real.wrapper}")
    found += _optimizer(case, real)
    found += _page_cache(case, real)
    if case.compile is not False and not real.compiled_graphs:
        found.append("compile asked for, torch.compile made no graph")
    if case.sync_bn and not real.sync_bn_layers:
        found.append("sync_bn asked for, no SyncBN layer in effect: the model has no BatchNorm")
    if case.pin_memory and not real.pinned:
        found.append("pin_memory asked for, not in effect")
    return found


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _optimizer(case: Case, real: Effective) -> list[str]:
    """The optimizer's class, and that ZeRO is around it where it was asked for."""
    want = OPTIMIZERS.get(case.optimizer or "")
    zero = real.optimizer.startswith("ZeroRedundancyOptimizer(")
    found = []
    if want is not None and want != real.optimizer.removeprefix("ZeroRedundancyOptimizer(").rstrip(")"):
        found.append(f"optimizer: {case.optimizer} asked for, {real.optimizer} in effect")
    if zero != (case.strategy == "zero1"):
        found.append(f"{case.strategy} asked for, the optimizer is a {real.optimizer}")
    return found


def _page_cache(case: Case, real: Effective) -> list[str]:
    """Cold and warm as mincore saw it; nothing is said where it could not tell."""
    share = real.page_cache_share
    if share is None or case.page_cache is None:
        return []
    held = share <= COLD if case.page_cache == "cold" else share >= WARM
    return (
        []
        if held
        else [f"page_cache: {case.page_cache} asked for, {share:.0%} of the files' pages were cached"]
    )


def loss_mark(traces: Sequence[RankTrace]) -> str | None:
    """Said where training has run away: such steps may take another time than those of a real training."""
    return "loss is not finite" if any(trace.loss_finite is False for trace in traces) else None


def bound_mark(case: Case, traces: Sequence[RankTrace], usable: int) -> str | None:
    """Said where the model's own code took CPUs from its rank; `usable` are those that ranks of node 0 start with."""
    for trace in traces:
        if trace.effective is None or trace.node or case.cpu_binding is not None:
            continue
        left = len(trace.effective.affinity)
        if left < usable:
            return f"rank {trace.rank} bound by its model's code: {left} of {usable} CPUs"
    return None


def link_mark(link: Link, pairs: Sequence[Pair]) -> list[str]:
    """Said where this host's CPUs cannot carry a link's rate, as measured before it was shaped."""
    slowest = min((pair.bits_per_s for pair in pairs if pair.bits_per_s is not None), default=None)
    if slowest is None or slowest >= link.rate_bits_per_s:
        return []
    return [f"link {link}: this host carries {slowest / 1e9:.1f} Gbit/s"]


def sync_bn_mark(traces: Sequence[RankTrace]) -> str | None:
    """Said where a model's own SyncBN layers have no process group to go over, and compute plain BatchNorm."""
    found = [trace.effective for trace in traces if trace.effective is not None]
    alone = any(one.sync_bn_layers and one.backend is None for one in found)
    return "SyncBN without a process group: plain BatchNorm" if alone else None


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
