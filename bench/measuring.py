"""Measure one case in a rank: build it, run its timed window, then what explains it."""

import math
import time
import warnings
from collections.abc import Callable, MutableSequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from bench import plugins, progress, recipe
from bench.build import Source, make_model, make_source, move
from bench.errors import BenchError
from bench.joining import barrier, enter, slowest
from bench.loop import CpuClock, EventClock, Training, marks_cost_s, timed_steps
from bench.memory import MemoryWindow
from bench.place import Place
from bench.probes import BUDGET_S, network
from bench.profiler import write_trace
from bench.readback import Witness, after_window, effective
from bench.records import PHASES, Cut, Effective, Launch, RankMemory, Samples
from bench.steady import find_cut
from bench.user import workload as build_workload

TRACE_STEPS = 3
NETWORK_S = 10.0  # of the time limit are left for all-reduces after the window


def work(
    launch: Launch, beat: MutableSequence[int], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Build what the case asks for and run its window; returns fields of a RankTrace.

    They go to `keep` before anything more is tried: what happens then costs no finished window.
    """
    case, started = launch.case, time.monotonic()
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    place, rendezvous_s = enter(launch, strategy, beat)

    joined = time.perf_counter()
    torch.manual_seed(case.seed)  # equal on every rank: the same model
    workload = build_workload(case)
    model = make_model(case, workload, strategy, place)
    optimizer = recipe.make_optimizer(case, workload, strategy, model)
    built = time.perf_counter()

    torch.manual_seed(case.seed + 1 + place.rank)  # different on every rank: the data
    source = make_source(case, workload, strategy, place)
    _agree_on_steps(source, place)
    asked = time.perf_counter()
    first = next(source.batches)  # makes the loader's iterator, and its workers
    loaded = time.perf_counter()
    facts = effective(case, strategy, place, model, optimizer, source, first)
    witness = Witness(model)

    batches = _then(first, source)
    training = recipe.make_training(
        case, workload, place, model, optimizer, batches, lambda batch: move(batch, place.device, case)
    )
    compile_s = _compile(training, place, beat) if case.compile is not False else None
    window = _window(launch, place, training, beat, started + case.timeout_s)
    if isinstance(case.compile, str):  # CUDA graphs took their memory before the window began
        gone = {"peak_allocated_bytes": None, "per_device_allocated_bytes": None}
        window.memory = msgspec.structs.replace(window.memory, **gone)
    loss = _loss(training)
    facts = after_window(facts, case, model, optimizer, training, source, witness)
    found = {
        "rendezvous_s": rendezvous_s,
        "build_s": built - joined,
        "first_batch_s": loaded - asked if source.loader is not None else None,
        "compile_s": compile_s,
        "last_loss": loss if loss is not None and math.isfinite(loss) else None,
        "loss_finite": math.isfinite(loss) if loss is not None else None,
        "effective": facts,
        "instrumentation_s": marks_cost_s(lambda: _clock(place), training.micro_batches),
        **_trace(window, place, source, facts),
    }
    if launch.probe_network and place.world_size > 1:
        keep(found)
        beat[progress.STATE] = progress.NETWORK
        began = time.perf_counter()
        budget_s = BUDGET_S if _left(started, case.timeout_s - NETWORK_S, place) else None
        found |= {"network": network(place, facts, budget_s), "network_s": time.perf_counter() - began}
    if launch.traces is not None and _left(started, case.timeout_s / 2, place):
        keep(found)
        found["trace_s"] = _trace_steps(launch.traces, training, place, beat)
    return found


def _loss(training: Training) -> float | None:
    """The last micro-batch's loss, as the workload gave it."""
    last = training.last_loss
    return None if last is None else float(last.detach()) * training.micro_batches


def _compile(training: Training, place: Place, beat: MutableSequence[int]) -> float:
    """Seconds of the steps in which torch.compile works, before the window; its helpers end with them."""
    beat[progress.STATE] = progress.COMPILING
    began = time.perf_counter()
    timed_steps(training, _clock(place), recipe.COMPILE_STEPS, barrier(place), beat)
    recipe.end_compile_workers()
    if place.accelerated:
        place.module.empty_cache()  # what compiling tried out is not the training's
    beat[progress.MARKS] = 0
    return time.perf_counter() - began


def _left(started: float, until_s: float, place: Place) -> bool:
    """Whether no rank has spent so much of its time: what is done after the window must not cost it."""
    spent_s = np.array([time.monotonic() - started])
    return bool(slowest(spent_s, place)[0] < until_s)


def _trace_steps(folder: str, training: Training, place: Place, beat: MutableSequence[int]) -> float:
    """Profiler traces are extra: what goes wrong with them is a warning. Returns the seconds they took."""
    beat[progress.STATE] = progress.TRACING
    began = time.perf_counter()
    try:
        write_trace(training, place, TRACE_STEPS, barrier(place), beat, Path(folder))
    except Exception as error:  # noqa: BLE001 - whatever it is, the window is over
        warnings.warn(f"no profiler trace: {type(error).__name__}: {error}", stacklevel=1)
    return time.perf_counter() - began


def _then(first: Any, source: Source) -> Any:
    """The batches with the one that was taken to be looked at put back in front."""
    yield first
    yield from source.batches


class _Window(msgspec.Struct):
    """Both segments of a timed window, concatenated."""

    phases_s: np.ndarray  # (steps, 6)
    samples: list[int]
    cut: Cut
    segments: list[int]
    memory: RankMemory
    clock: str
    started_ns: int
    ended_ns: int


def _window(
    launch: Launch, place: Place, training: Training, beat: MutableSequence[int], limit_s: float
) -> _Window:
    """Run the timed steps; extend them once, to twice the length, where they are not steady yet.

    Not where that could run into the time limit (`limit_s`, of the monotonic clock): a finished window is kept.
    """
    steps = launch.case.steps
    memory = MemoryWindow(place.module if place.accelerated else None, place.devices)
    memory.start()
    beat[progress.STATE], beat[progress.PLANNED] = progress.WINDOW, steps
    clock, started_ns = _clock(place), time.monotonic_ns()
    phases, samples = timed_steps(training, clock, steps, barrier(place), beat)
    cut, extend = find_cut(slowest(phases.sum(1), place))
    segments = [steps]
    if extend and not _time_for(phases, limit_s, place):
        cut = msgspec.structs.replace(cut, note=f"{cut.note}; not extended: the time limit is near")
    elif extend:
        beat[progress.PLANNED] = 2 * steps
        more, more_samples = timed_steps(training, _clock(place), steps, barrier(place), beat)
        phases, samples = np.concatenate([phases, more]), samples + more_samples
        cut, _ = find_cut(slowest(phases.sum(1), place), extended=True)
        segments.append(steps)
    ended_ns = time.monotonic_ns()
    return _Window(phases, samples, cut, segments, memory.end(), clock.name, started_ns, ended_ns)


def _time_for(phases: np.ndarray, limit_s: float, place: Place) -> bool:
    """Whether as many steps again end well within the time limit on every rank."""
    expected_s = time.monotonic() + 1.5 * phases.sum() - limit_s
    return bool(slowest(np.array([expected_s]), place)[0] < 0)


def _trace(window: _Window, place: Place, source: Source, facts: Effective) -> dict[str, Any]:
    """Fields of a RankTrace from a finished window."""
    phases, first = window.phases_s, window.cut.first
    step_s = phases.sum(1)
    columns: dict[str, Any] = {name: _column(phases[:, i]) for i, name in enumerate(PHASES)}
    if not place.accelerated or source.loader is None:
        columns["h2d"] = None  # nothing is copied: not measured, its microseconds go to `other`
        columns["other"] = _column(phases[:, -1] + phases[:, 1])
    return {
        "clock": window.clock,
        "step_s": _column(step_s),
        "phases_s": columns,
        "samples": tuple(window.samples),
        "cut": window.cut,
        "window_s": float(step_s[first:].sum()),
        "window_start_ns": window.started_ns + int(step_s[:first].sum() * 1e9),
        "window_end_ns": window.ended_ns,
        "segments": tuple(window.segments),
        "first_step_s": float(step_s[0]),
        "counts": _counts(window, source, place, facts),
        "memory": window.memory,
    }


def _counts(window: _Window, source: Source, place: Place, facts: Effective) -> Samples:
    """What an epoch gives each rank: DistributedSampler pads to equal ranks, the loader drops the tail."""
    length, per_epoch, padded, dropped = source.dataset_len, None, None, None
    if source.steps_per_epoch is not None and length is not None:
        per_epoch = source.steps_per_epoch * facts.batch
        sampled = len(source.sampler) if source.sampler is not None else length
        padded = sampled * place.world_size - length
        dropped = (sampled - per_epoch) * place.world_size
    return Samples(
        dataset_len=length,
        per_epoch=per_epoch,
        padded=padded,
        dropped=dropped,
        seen=sum(window.samples),
        in_window=sum(window.samples[window.cut.first :]),
        epochs=source.epochs[0],
    )


def _agree_on_steps(source: Source, place: Place) -> None:
    """Refuse ranks with unequal numbers of batches before one of them waits for ever."""
    if not dist.is_initialized() or source.steps_per_epoch is None:
        return
    steps = source.steps_per_epoch
    pair = torch.tensor([steps, -steps], dtype=torch.int64, device=place.device)
    dist.all_reduce(pair, op=dist.ReduceOp.MAX)
    most, least = int(pair[0]), -int(pair[1])
    if most != least:
        raise BenchError(
            f"uneven number of batches: {least} vs {most} steps an epoch (rank {place.rank} has {steps});"
            " give every rank a data set of the same length"
        )


def _clock(place: Place) -> CpuClock | EventClock:
    return EventClock(place.module) if place.accelerated else CpuClock()


def _column(values: np.ndarray) -> tuple[float, ...]:
    return tuple(values.tolist())
