"""One launch on this node: the engine asked, the ranks' traces taken in, the processes gone."""

import contextlib
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from bench import guard, progress
from bench.case import Case
from bench.cgroup import oom_kills
from bench.failures import RankEnd, Verdict, compiling, first_failure, moving, stuck_rank, too_slow
from bench.machine import own_python
from bench.records import Ended, Launch, Outcome, RankTrace, marks_a_step

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
            prefix=f"scalemark-{os.getpid()}-", ignore_cleanup_errors=True
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


@contextlib.contextmanager
def scratch_folder() -> Any:
    """A folder of this node for traces and progress of one launch, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f"scalemark-{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_scratch() -> None:
    """Remove the folders of conductors that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob("scalemark-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


def run(
    engine: Engine, launch: Launch, processes: int, show: Callable[[Progress], None], pids: Path | None = None
) -> Result:
    """Run one launch of `processes` ranks on this node. Failures are in the result, not raised.

    `pids` is a file that gets a line "engine pid", and "rank pid" for each rank, once all of them run.
    """
    scratch = Path(launch.scratch)
    progress.create(scratch, processes)
    beats = progress.open_all(scratch)
    kills, began = oom_kills(), time.monotonic()
    lost: str | None = None
    outcome = Outcome()
    todo = [pids] if pids else []

    def tick() -> None:
        show(_where(beats, processes, marks_a_step(launch.case.grad_accumulation)))
        if todo and _tell_pids(todo[0], beats, processes, engine.pgid):
            todo.clear()

    try:
        engine.ready()
        began = time.monotonic()
        outcome = engine.ask(launch, tick)
    except EngineLost as error:
        lost = str(error)
    wall_s = time.monotonic() - began
    traces = _traces(scratch, processes)
    failure = _judge(launch, outcome, traces, processes, lost, oom_kills() - kills)
    return Result(traces=traces, failure=failure, timed_out=outcome.timed_out, wall_s=wall_s)


def _where(beats: Sequence[int], processes: int, marks: int) -> Progress:
    at = [r * progress.FIELDS for r in range(processes)]
    return Progress(
        state=progress.STATES[min(beats[i + progress.STATE] for i in at)],
        step=min(beats[i + progress.MARKS] for i in at) // marks,
        steps=max(beats[i + progress.PLANNED] for i in at),
    )


def _tell_pids(path: Path, beats: Sequence[int], processes: int, engine: int | None) -> bool:
    """Write which process is which rank, for the samplers; False while one has not started."""
    found = [beats[r * progress.FIELDS + progress.PID] for r in range(processes)]
    if not all(found):
        return False
    path.write_text("".join(f"{name} {pid}\n" for name, pid in (("engine", engine), *enumerate(found))))
    return True


def _traces(scratch: Path, processes: int) -> tuple[RankTrace, ...]:
    found = []
    for local_rank in range(processes):
        for name in (f"rank{local_rank}.json", f"rank{local_rank}.done.json"):  # ended; or its window has
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode((scratch / name).read_bytes(), type=RankTrace))
                break
    return tuple(found)


def _judge(
    launch: Launch,
    outcome: Outcome,
    traces: tuple[RankTrace, ...],
    processes: int,
    lost: str | None,
    kills: int,
) -> Verdict | None:
    """Why the launch failed, from every witness; None if it did not."""
    if outcome.timed_out and not (len(traces) == processes and all(t.status == "ok" for t in traces)):
        return _hang(launch, outcome, traces, kills)
    found = first_failure(_ends(outcome, traces, processes), kills)
    if found:
        return found
    if lost or outcome.error:
        return Verdict(reason="engine_lost", first_rank=None, detail=lost or str(outcome.error))
    if len(traces) < processes:
        missing = sorted(set(range(processes)) - {trace.local_rank for trace in traces})
        return Verdict(reason="exception", first_rank=missing[0], detail=f"rank {missing[0]} left no trace")
    return None


def _hang(launch: Launch, outcome: Outcome, traces: tuple[RankTrace, ...], kills: int) -> Verdict:
    """A launch at its time limit: a rank that failed for a reason of its own, or the one that is stuck."""
    own = [end for end in _ends(outcome, traces, len(outcome.ranks)) if end.error is not None]
    found = first_failure(own, kills)
    if found and found.reason != "communication":
        return found
    slow = _slow(launch.case, outcome)
    if slow:
        return slow
    # on a device the host runs ahead: how many marks it has passed does not say where the device is
    marks = outcome.marks_passed if launch.device_kind == "cpu" else (0,) * len(outcome.states)
    at = [state * 10**9 + passed for state, passed in zip(outcome.states, marks, strict=True)]
    rank, why = stuck_rank(at, outcome.stopped)
    states = ", ".join(f"rank {r} in {progress.STATES[state]}" for r, state in enumerate(outcome.states))
    return Verdict(reason="hang", first_rank=rank, detail=f"time limit reached: {why} ({states})")


def _slow(case: Case, outcome: Outcome) -> Verdict | None:
    """A launch that was still at work at its time limit: no rank stands still, or all of them compile."""
    if set(outcome.states) == {progress.COMPILING} and not any(outcome.stopped):
        return compiling(case.timeout_s)
    if outcome.in_window_s is None or not moving(outcome.still_s, outcome.longest_s, outcome.stopped):
        return None
    steps = min(outcome.marks_passed) / marks_a_step(case.grad_accumulation)
    return too_slow(case.timeout_s, steps, outcome.planned, outcome.in_window_s)


def _ends(outcome: Outcome, traces: tuple[RankTrace, ...], processes: int) -> list[RankEnd]:
    """What is known of each local rank's end; ranks nobody has seen end are left out."""
    by_rank = {trace.local_rank: trace for trace in traces}
    seen = {ended.local_rank: ended for ended in outcome.ranks}
    ends = []
    for local_rank in range(processes):
        trace, ended = by_rank.get(local_rank), seen.get(local_rank)
        if trace is None and ended is None:
            continue
        ends.append(
            RankEnd(
                rank=trace.rank if trace else local_rank,
                exitcode=ended.exitcode if ended else None,
                ok=trace is not None and trace.status == "ok",
                error_type=trace.error_type if trace else None,
                error=trace.error if trace else None,
                failed_ns=(trace.failed_ns if trace else None) or (ended.died_ns if ended else None),
                killed_by_us=ended is not None and _killed_by_us(ended, outcome.ranks),
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
