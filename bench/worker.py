"""One rank: build, measure, write the trace. Everything it learns stays in memory until the window is over."""

import contextlib
import faulthandler
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, MutableSequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from bench import binding, guard, plugins, progress, recipe
from bench.build import Source, make_model, make_source, move
from bench.errors import BenchError
from bench.loop import CpuClock, EventClock, Training, timed_steps
from bench.memory import MemoryWindow
from bench.place import Place, backend_for, find_place
from bench.probes import BUDGET_S, network
from bench.profiler import write_trace
from bench.readback import Witness, after_window, effective
from bench.records import PHASES, Cut, Effective, Launch, RankMemory, RankTrace, Samples
from bench.spelling import did_you_mean
from bench.steady import find_cut
from bench.user import workload as build_workload

TRACE_STEPS = 3
NETWORK_S = 10.0  # of the time limit are left for all-reduces after the window


def run_rank(encoded: bytes) -> None:
    """The entry point of every rank: never raises, always leaves a trace, exits 1 if it failed."""
    launch = msgspec.json.decode(encoded, type=Launch)
    rank = int(os.environ["RANK"])
    guard.end_with(launch.conductor_pid, os.getpgrp())
    multiprocessing.set_start_method(None, force=True)  # loader workers start as in the user's own script
    _log_to(Path(launch.logs) / f"{rank}.log")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the engine asks for the last stack at the time limit
    spare = os.open(
        os.devnull, os.O_RDONLY
    )  # given back at the end: a rank out of descriptors leaves a trace
    said = _collect_warnings()
    beat = progress.open_rank(Path(launch.scratch), int(os.environ["LOCAL_RANK"]))
    known: dict[str, Any] = {
        "launch": launch.launch,
        "rank": rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "node": int(os.environ["GROUP_RANK"]),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "status": "ok",
    }
    finished = Path(launch.scratch) / f"rank{known['local_rank']}.done.json"

    def keep(found: dict[str, Any]) -> None:
        _write(finished, msgspec.json.encode(RankTrace(**known | found, warnings=tuple(said))))

    try:
        known |= _measure(launch, beat, keep)
    except BaseException as error:  # noqa: BLE001 - SystemExit of user code is a failure too
        known |= _failure(error)
        traceback.print_exc()
    os.close(spare)
    _end_loader_workers()
    trace = RankTrace(**known, warnings=tuple(said))
    _write(Path(launch.scratch) / f"rank{known['local_rank']}.json", msgspec.json.encode(trace))
    beat[progress.STATE] = progress.DONE
    sys.stdout.flush()
    sys.stderr.flush()
    if trace.status != "ok":
        raise SystemExit(1)


def _measure(
    launch: Launch, beat: MutableSequence[int], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Build what the case asks for and run its window; returns fields of a RankTrace.

    They go to `keep` before anything more is tried: what happens then costs no finished window.
    """
    case, started = launch.case, time.monotonic()
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    place = find_place(launch, strategy)
    if case.cpu_binding is not None:
        binding.bind(case.cpu_binding, place.local_rank, strategy.processes(case), place.numa)
    _set_threads(case.threads or 1)
    recipe.set_precision(case)

    began = time.perf_counter()
    beat[progress.STATE] = progress.RENDEZVOUS
    if strategy.collective:
        _join(launch, place)
    joined = time.perf_counter()

    beat[progress.STATE] = progress.BUILDING
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
        "rendezvous_s": joined - began if strategy.collective else None,
        "build_s": built - joined,
        "first_batch_s": loaded - asked if source.loader is not None else None,
        "compile_s": compile_s,
        "last_loss": loss if loss is not None and math.isfinite(loss) else None,
        "loss_finite": math.isfinite(loss) if loss is not None else None,
        "effective": facts,
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
    timed_steps(training, _clock(place), recipe.COMPILE_STEPS, _barrier(place), beat)
    recipe.end_compile_workers()
    if place.accelerated:
        place.module.empty_cache()  # what compiling tried out is not the training's
    beat[progress.MARKS] = 0
    return time.perf_counter() - began


def _left(started: float, until_s: float, place: Place) -> bool:
    """Whether no rank has spent so much of its time: what is done after the window must not cost it."""
    spent_s = np.array([time.monotonic() - started])
    return bool(_slowest(spent_s, place)[0] < until_s)


def _trace_steps(folder: str, training: Training, place: Place, beat: MutableSequence[int]) -> float:
    """Profiler traces are extra: what goes wrong with them is a warning. Returns the seconds they took."""
    beat[progress.STATE] = progress.TRACING
    began = time.perf_counter()
    try:
        write_trace(training, place, TRACE_STEPS, _barrier(place), beat, Path(folder))
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
    phases, samples = timed_steps(training, clock, steps, _barrier(place), beat)
    cut, extend = find_cut(_slowest(phases.sum(1), place))
    segments = [steps]
    if extend and not _time_for(phases, limit_s, place):
        cut = msgspec.structs.replace(cut, note=f"{cut.note}; not extended: the time limit is near")
    elif extend:
        beat[progress.PLANNED] = 2 * steps
        more, more_samples = timed_steps(training, _clock(place), steps, _barrier(place), beat)
        phases, samples = np.concatenate([phases, more]), samples + more_samples
        cut, _ = find_cut(_slowest(phases.sum(1), place), extended=True)
        segments.append(steps)
    ended_ns = time.monotonic_ns()
    return _Window(phases, samples, cut, segments, memory.end(), clock.name, started_ns, ended_ns)


def _time_for(phases: np.ndarray, limit_s: float, place: Place) -> bool:
    """Whether as many steps again end well within the time limit on every rank."""
    expected_s = time.monotonic() + 1.5 * phases.sum() - limit_s
    return bool(_slowest(np.array([expected_s]), place)[0] < 0)


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


def _join(launch: Launch, place: Place) -> None:
    """Form the process group. One node talks over loopback; the time limit is the launch's own.

    gloo would offer the address that the host's name stands for, which may be loopback: it is told the interface.
    Ranks of several nodes meet in the study's store, under the launch's own name: it outlives every launch.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", launch.interface or "lo")
    backend = backend_for(launch, place.device)
    limit = timedelta(seconds=launch.case.timeout_s)
    how: dict[str, Any] = {"device_id": place.device} if backend in ("nccl", "xccl") else {}
    if launch.store is not None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
        how |= {
            "store": PrefixStore(launch.launch, store),
            "rank": place.rank,
            "world_size": place.world_size,
        }
    dist.init_process_group(backend, timeout=limit, **how)


def _barrier(place: Place) -> Callable[[], None]:
    if not dist.is_initialized():
        return lambda: None
    token = torch.zeros(1, device=place.device)
    return lambda: dist.all_reduce(token)  # every rank has arrived when the sum is there


def _slowest(step_s: np.ndarray, place: Place) -> np.ndarray:
    """The slowest rank's time of every step, the same on every rank, so that they decide alike."""
    if not dist.is_initialized():
        return step_s
    shared = torch.tensor(step_s, dtype=torch.float64, device=place.device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.cpu().numpy()


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


def _set_threads(threads: int) -> None:
    """Equal threads in every rank and in the base; the variable is for libraries that load later."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)


def _failure(error: BaseException) -> dict[str, Any]:
    return {
        "status": "failed",
        "failed_ns": time.monotonic_ns(),
        "error_type": type(error).__name__,
        "error": (str(error) + did_you_mean(error))[:4000],
    }


def _collect_warnings() -> list[str]:
    """Each distinct warning once, for the record, and in the log as always."""
    said: list[str] = []
    show = warnings.showwarning

    def keep(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        text = f"{category.__name__}: {message}"[:500]
        if text not in said and len(said) < 20:
            said.append(text)
            show(message, category, filename, lineno, *rest)

    warnings.showwarning = keep  # type: ignore[assignment]
    return said


def _log_to(path: Path) -> None:
    """Both streams of this rank, and of the workers it forks, go to one file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _end_loader_workers() -> None:
    """Nothing they hold is needed any more, and a busy worker would be waited for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would take their end for a fault
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError, AttributeError):
            child.kill()


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
