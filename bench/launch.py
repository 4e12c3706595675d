"""One launch on this node: the engine asked, the ranks' traces taken in, the processes gone."""

import contextlib
import os
import selectors
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from bench import guard, progress, temporary
from bench.case import Case
from bench.cgroup import oom_kills
from bench.failures import RankEnd, Verdict, compiling, first_failure, moving, stuck_rank, too_slow
from bench.machine import own_python
from bench.records import Ended, Launch, Outcome, Part, RankTrace, marks_a_step

START_LIMIT_S = 120.0
BACKSTOP_S = 15.0  # beyond a launch's own limit, before the engine counts as lost
TICK_S = 0.1


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a running launch is: its slowest rank's state, and steps done of those planned."""

    state: str
    step: int
    steps: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a launch: traces of the ranks that left one, and a verdict if it failed."""

    traces: tuple[RankTrace, ...]
    failure: Verdict | None
    timed_out: bool
    wall_s: float


class EngineLost(Exception):
    """The engine died or went silent; its whole process group has been killed."""


class Halted(Exception):
    """The launch is to end, since another node has failed."""


class Engine:
    """The engine process of one block, with a fork server of its own. Use as a context manager."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._buffer = b""

    def __enter__(self) -> "Engine":
        return self  # started by the first launch, which records it if that fails

    def __exit__(self, *_: Any) -> None:
        self.kill()

    @property
    def pgid(self) -> int | None:
        """The process group of engine, fork server, ranks and loader workers."""
        return self._process.pid if self._process else None

    def ready(self) -> None:
        """Start the engine unless it runs. Raises EngineLost."""
        if self._process is None:
            self._start()

    def _start(self) -> None:
        """In a session of its own: a Ctrl-C at the terminal does not reach it."""
        self._folder = tempfile.TemporaryDirectory(
            prefix=temporary.prefix(), dir=temporary.socket_folder(), ignore_cleanup_errors=True
        )
        command = own_python("from bench.engine import main; main()")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=_engine_environment() | {"TMPDIR": self._folder.name},  # its sockets go with it
            )
        self._buffer = b""
        self._answer(time.monotonic() + START_LIMIT_S, lambda: None)

    def ask(self, launch: Launch, tick: Callable[[], None]) -> Outcome:
        """Run a launch; `tick` is called ten times a second. Raises EngineLost."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(launch) + b"\n")
            self._process.stdin.flush()
        except OSError:
            self._lost("died before the launch")
        return self._answer(time.monotonic() + launch.case.timeout_s + BACKSTOP_S, tick)

    def kill(self) -> None:
        """End the engine and everything it started."""
        if self._process is None:
            return
        guard.kill_group(self._process.pid)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process = None
        if self._folder is not None:
            self._folder.cleanup()

    def _answer(self, deadline: float, tick: Callable[[], None]) -> Outcome:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                tick()
                if selector.select(TICK_S):
                    self._read(self._process.stdout)
                elif time.monotonic() > deadline:
                    self._lost("did not answer in time")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return msgspec.json.decode(line, type=Outcome)  # the first answer, "ready", is an empty one

    def _read(self, stream: IO[bytes]) -> None:
        data = os.read(stream.fileno(), 65536)
        if not data:
            self._lost("died")
        self._buffer += data

    def _lost(self, what: str) -> None:
        code = self._process.poll() if self._process else None
        self.kill()
        tail = _tail(self._log)
        raise EngineLost(
            f"the engine {what}{f' (exit code {code})' if code else ''}{f': {tail}' if tail else ''}"
        )


def run(
    engine: Engine, launch: Launch, processes: int, show: Callable[[Progress], None], pids: Path | None = None
) -> Result:
    """Run one launch of `processes` ranks on this node. Failures are in the result, not raised.

    `pids` is a file that gets a line "engine pid", and "rank pid" for each rank, once all of them run.
    """
    return judge(launch, [collect(engine, launch, processes, show, pids)], processes)


def collect(
    engine: Engine,
    launch: Launch,
    processes: int,
    show: Callable[[Progress], None],
    pids: Path | None = None,
    halt: Callable[[], bool] = lambda: False,
) -> Part:
    """This node's part of a launch. The engine is killed when `halt`, asked ten times a second, says so."""
    scratch = Path(launch.scratch)
    progress.create(scratch, processes)
    beats = progress.open_all(scratch)
    kills, began = oom_kills(), time.monotonic()
    lost: str | None = None
    stopped = False
    outcome = Outcome()
    todo = [pids] if pids else []

    def tick() -> None:
        show(_where(beats, processes, marks_a_step(launch.case.grad_accumulation)))
        if todo and _tell_pids(todo[0], beats, processes, engine.pgid, launch.node * processes):
            todo.clear()
        if halt():
            raise Halted

    try:
        engine.ready()
        began = time.monotonic()
        outcome = engine.ask(launch, tick)
    except EngineLost as error:
        lost = str(error)
    except Halted:
        engine.kill()
        stopped = True
    return Part(
        node=launch.node,
        host=socket.gethostname(),
        outcome=outcome,
        traces=_traces(scratch, processes),
        lost=lost,
        stopped=stopped,
        oom_kills=oom_kills() - kills,
        wall_s=time.monotonic() - began,
    )


def _where(beats: Sequence[int], processes: int, marks: int) -> Progress:
    at = [r * progress.FIELDS for r in range(processes)]
    return Progress(
        state=progress.STATES[min(beats[i + progress.STATE] for i in at)],
        step=min(beats[i + progress.MARKS] for i in at) // marks,
        steps=max(beats[i + progress.PLANNED] for i in at),
    )


def _tell_pids(path: Path, beats: Sequence[int], processes: int, engine: int | None, first: int) -> bool:
    """Write which process is which rank, from the node's `first` on, for the samplers; False while one has not started."""
    found = [beats[r * progress.FIELDS + progress.PID] for r in range(processes)]
    if not all(found):
        return False
    path.write_text(
        "".join(f"{name} {pid}\n" for name, pid in (("engine", engine), *enumerate(found, start=first)))
    )
    return True


def _traces(scratch: Path, processes: int) -> tuple[RankTrace, ...]:
    found = []
    for local_rank in range(processes):
        for name in (f"rank{local_rank}.json", f"rank{local_rank}.done.json"):  # ended; or its window has
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode((scratch / name).read_bytes(), type=RankTrace))
                break
    return tuple(found)


def judge(launch: Launch, parts: Sequence[Part], processes: int, away: Verdict | None = None) -> Result:
    """What came of a launch, from the parts of its nodes, `processes` ranks each.

    `away` is said of a node that left no part; ranks elsewhere see no more of it than closed connections.
    """
    return Result(
        traces=tuple(trace for part in parts for trace in part.traces),
        failure=_failure(launch, parts, processes, away),
        timed_out=any(part.outcome.timed_out for part in parts),
        wall_s=max((part.wall_s for part in parts), default=0.0),
    )


def _failure(launch: Launch, parts: Sequence[Part], processes: int, away: Verdict | None) -> Verdict | None:
    """Why the launch failed, from every witness; None if it did not."""
    good = sum(trace.status == "ok" for part in parts for trace in part.traces)
    if any(part.outcome.timed_out for part in parts) and good < processes * len(parts) and away is None:
        return _hang(launch, parts, processes)
    found = first_failure(
        [end for part in parts for end in _ends(part, processes)], sum(part.oom_kills for part in parts)
    )
    if found and found.reason != "communication":
        return found
    lost = next((part for part in parts if part.lost or part.outcome.error), None)
    if away or lost:
        return away or _engine_lost(launch, lost)
    if found:
        return found
    for part in (part for part in parts if not part.stopped):
        missing = sorted(set(range(processes)) - {trace.local_rank for trace in part.traces})
        if missing:
            rank = part.node * processes + missing[0]
            return Verdict(reason="exception", first_rank=rank, detail=f"rank {rank} left no trace")
    return None


def _engine_lost(launch: Launch, part: Part | None) -> Verdict:
    """A node whose engine died, or whose agent did not come as far as its ranks."""
    assert part is not None
    text = part.lost or str(part.outcome.error)
    where = f"node {part.node} ({part.host}): " if launch.case.nodes > 1 else ""
    met = launch.case.nodes > 1 and not part.outcome.ranks and part.lost is None
    return Verdict(
        reason="rendezvous" if met else "engine_lost",
        first_rank=None,
        first_node=part.node if launch.case.nodes > 1 else None,
        detail=where + text,
    )


def _hang(launch: Launch, parts: Sequence[Part], processes: int) -> Verdict:
    """A launch at its time limit: a rank that failed for a reason of its own, or the one that is stuck."""
    own = [end for part in parts for end in _ends(part, processes) if end.error is not None]
    found = first_failure(own, sum(part.oom_kills for part in parts))
    if found and found.reason != "communication":
        return found
    late = [part for part in parts if part.outcome.timed_out]
    slow = _slow(launch.case, [part.outcome for part in late])
    if slow:
        return slow
    states = [state for part in late for state in part.outcome.states]
    stopped = [stop for part in late for stop in part.outcome.stopped]
    # on a device the host runs ahead: how many marks it has passed does not say where the device is
    passed = [n for part in late for n in part.outcome.marks_passed]
    marks = passed if launch.device_kind == "cpu" else [0] * len(states)
    ranks = [part.node * processes + r for part in late for r in range(len(part.outcome.states))]
    at = [state * 10**9 + mark for state, mark in zip(states, marks, strict=True)]
    if launch.case.nodes > 1 and set(states) == {progress.RENDEZVOUS} and not any(stopped):
        return _never_met(launch, parts, len(ranks), processes)
    rank, why = stuck_rank(at, stopped, ranks)
    told = ", ".join(f"rank {r} in {progress.STATES[state]}" for r, state in zip(ranks, states, strict=True))
    return Verdict(reason="hang", first_rank=rank, detail=f"time limit reached: {why} ({told})")


def _never_met(launch: Launch, parts: Sequence[Part], came: int, processes: int) -> Verdict:
    """Ranks that waited for others to the time limit; the node that none came of is named where it is one."""
    absent = [part for part in parts if not part.outcome.ranks and not part.traces]
    text = f"{came} of {launch.case.nodes * processes} ranks came within {launch.case.timeout_s:g} s"
    text += "".join(f", none of node {part.node} ({part.host})" for part in absent)
    return Verdict(
        reason="rendezvous",
        first_rank=None,
        first_node=absent[0].node if len(absent) == 1 else None,
        detail=f"the ranks did not all meet: {text}",
    )


def _slow(case: Case, outcomes: Sequence[Outcome]) -> Verdict | None:
    """A launch that was still at work at its time limit: no rank stands still, or all of them compile."""
    stopped = [stop for outcome in outcomes for stop in outcome.stopped]
    if {state for outcome in outcomes for state in outcome.states} == {progress.COMPILING} and not any(
        stopped
    ):
        return compiling(case.timeout_s)
    still = [s for outcome in outcomes for s in outcome.still_s]
    longest = [s for outcome in outcomes for s in outcome.longest_s]
    inside = [outcome.in_window_s for outcome in outcomes if outcome.in_window_s is not None]
    if len(inside) < len(outcomes) or not moving(still, longest, stopped):
        return None
    steps = min(n for outcome in outcomes for n in outcome.marks_passed) / marks_a_step(
        case.grad_accumulation
    )
    return too_slow(case.timeout_s, steps, max(o.planned for o in outcomes), min(inside))


def _ends(part: Part, processes: int) -> list[RankEnd]:
    """What is known of each rank's end on a node; ranks nobody has seen end are left out."""
    by_rank = {trace.local_rank: trace for trace in part.traces}
    seen = {ended.local_rank: ended for ended in part.outcome.ranks}
    ends = []
    for local_rank in range(processes):
        trace, ended = by_rank.get(local_rank), seen.get(local_rank)
        if trace is None and ended is None:
            continue
        ends.append(
            RankEnd(
                rank=trace.rank if trace else part.node * processes + local_rank,
                exitcode=ended.exitcode if ended else None,
                ok=trace is not None and trace.status == "ok",
                error_type=trace.error_type if trace else None,
                error=trace.error if trace else None,
                failed_ns=(trace.failed_ns if trace else None) or (ended.died_ns if ended else None),
                killed_by_us=ended is not None and _killed_by_us(ended, part.outcome.ranks),
            )
        )
    return ends


def _killed_by_us(ended: Ended, ranks: Sequence[Ended]) -> bool:
    """The engine's SIGKILL, or the agent's SIGTERM, which it sends only when another rank has ended before."""
    if ended.killed:
        return True
    died = ended.died_ns or 0
    earlier = (other.died_ns for other in ranks if other.local_rank != ended.local_rank)
    return ended.exitcode == -15 and any(ns is not None and ns < died for ns in earlier)


def _engine_environment() -> dict[str, str]:
    """The fork server's environment is what every rank starts from: quiet, and with small thread pools.

    Whether CUDA is there is asked of NVML: asking CUDA itself would spoil it for every process forked later.
    """
    calm = {"OPENBLAS_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONUNBUFFERED": "1"}
    return calm | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} | dict(os.environ)


def _tail(log: Path) -> str:
    """The last line of the engine's log, for the message."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""
