"""The engine: one process a node and block that starts ranks through torch's elastic agent.

It reads launches from its standard input, one JSON line each, and answers with a line each. The
conductor can kill it at any time; it never touches an accelerator, and neither does its fork server.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import msgspec

from bench import guard, plugins, progress
from bench.records import Ended, Launch, Outcome

MONITOR_S = 0.02
STACK_S = 0.3  # for the stacks of ranks that hang
GRACE_S = 3.0  # after a first failure, peers get this long to say what they saw
TRACE_S = 10.0  # ranks write their profiler traces at about the same time


def main() -> None:
    """Serve launches until standard input closes."""
    conductor = int(sys.argv[1])
    guard.end_with(conductor)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever libraries print goes to the engine's log
    sys.path.append(os.getcwd())  # last: a user's own `bench` must not shadow ours
    forkserver.set_forkserver_preload(["bench.preload"])
    forkserver.ensure_running()  # preloads torch while this process does the same
    _end_with_fork_server()
    logging.disable(logging.WARNING)
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = (
        "1"  # every node has as many ranks: none waits to be told its own
    )
    _warm_up()
    answers.write(b'{"ready":true}\n')
    for line in sys.stdin.buffer:
        launch = msgspec.json.decode(line, type=Launch)
        try:
            outcome = run(launch)
        except Exception as error:  # noqa: BLE001 - the agent's own failure is an answer too
            outcome = Outcome(launch=launch.launch, error=f"{type(error).__name__}: {error}"[:2000])
        answers.write(msgspec.json.encode(outcome) + b"\n")
    guard.kill_group(os.getpgrp())


def _end_with_fork_server() -> None:
    """Ranks outlive the fork server, and the agent takes its end for theirs: the engine ends, with all of them."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]

    def ended(_: int) -> None:
        os.write(2, b"the fork server died\n")
        guard.kill_group(os.getpgrp())

    fd = guard.open_pidfd(pid)
    if fd is None:
        ended(0)
    else:
        guard.watch({fd: 0}, ended)


def _warm_up() -> None:
    """Return when both processes have loaded what a launch needs, so that no launch pays for it."""
    import bench._agent
    import bench.measuring  # noqa: F401

    first = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    first.start()
    first.join()


def run(launch: Launch) -> Outcome:
    """Run one launch's ranks on this node and say how each ended."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    from bench._agent import Agent
    from bench.worker import run_rank

    strategy: plugins.Strategy = plugins.load("strategies", launch.case.strategy)
    ranks = strategy.processes(launch.case)
    watcher = Watcher(Path(launch.scratch), ranks, launch.case.timeout_s)
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        entrypoint=run_rank,
        args=(msgspec.json.encode(launch),),
        rdzv_handler=_rendezvous(launch),
        max_restarts=0,
        monitor_interval=MONITOR_S,
    )
    agent = Agent(
        spec,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        start_method="forkserver",
        started=watcher.follow,
    )
    with contextlib.closing(watcher):
        agent.run()
    return watcher.outcome(launch.launch, agent.exitcodes())


def _rendezvous(launch: Launch) -> Any:
    """Where the ranks of this node meet, and the others."""
    from bench._agent import LoopbackRendezvous, StudyRendezvous

    limit = timedelta(seconds=launch.case.timeout_s)
    if launch.store is None:
        return LoopbackRendezvous(launch.launch, limit)
    return StudyRendezvous(launch.launch, limit, launch.node, launch.case.nodes, launch.store)


class Watcher:
    """Stamps each rank's death in nanoseconds, ends the rest after a failure, and keeps the time limit."""

    def __init__(self, scratch: Path, ranks: int, timeout_s: float) -> None:
        self._scratch, self._ranks = scratch, ranks
        self._deadline = time.monotonic() + timeout_s
        self._beats = progress.open_all(scratch)
        self._motion = progress.Motion(self._beats, ranks, time.monotonic())
        self._pids: dict[int, int] = {}
        self._died_ns: dict[int, int] = {}
        self._killed: set[int] = set()
        self._hung: dict[str, Any] = {}
        self._all_done_s: float | None = None
        self._kept_s: float | None = None
        self._closed = threading.Event()

    def follow(self, pids: dict[int, int]) -> None:
        """Begin: `pids` maps local rank to process."""
        self._pids = pids
        fds: dict[int, int] = {}
        for local_rank, pid in pids.items():
            fd = guard.open_pidfd(pid)
            if fd is None:
                self._died(local_rank)
            else:
                fds[fd] = local_rank
        guard.watch(fds, self._died)
        threading.Thread(target=self._keep_time, daemon=True, name="time limit").start()

    def close(self) -> None:
        """The agent has returned."""
        self._closed.set()

    def outcome(self, launch: str, exitcodes: dict[int, int | None]) -> Outcome:
        """The answer for the conductor."""
        ended = tuple(
            Ended(
                local_rank=r,
                pid=self._pids[r],
                exitcode=exitcodes.get(r),
                died_ns=self._died_ns.get(r),
                killed=r in self._killed,
            )
            for r in sorted(self._pids)
        )
        return Outcome(launch=launch, ranks=ended, **self._hung)

    def _died(self, local_rank: int) -> None:
        self._died_ns.setdefault(local_rank, time.monotonic_ns())

    def _keep_time(self) -> None:
        while not self._closed.wait(0.05):
            self._motion.look(time.monotonic())
            if time.monotonic() > self._deadline:
                self._hung = self._evidence()
                self._tell_rest(signal.SIGUSR1)  # each writes its stack to its log
                time.sleep(STACK_S)
                self._kill_rest()
                return
            if self._failed_since() > GRACE_S or self._done_since() > GRACE_S or self._kept_since() > TRACE_S:
                self._kill_rest()
                return

    def _done_since(self) -> float:
        """Seconds since every rank had written its trace; a thread of the user's may keep one from ending."""
        if not all(self._left_trace(r) for r in range(self._ranks)):
            self._all_done_s = None
            return 0.0
        self._all_done_s = self._all_done_s or time.monotonic()
        return time.monotonic() - self._all_done_s

    def _kept_since(self) -> float:
        """Seconds since a rank had ended and every window was kept: one of the others waits for it in a trace."""
        kept = all((self._scratch / f"rank{r}.done.json").exists() for r in range(self._ranks))
        if not (kept and any(self._left_trace(r) for r in range(self._ranks))):
            self._kept_s = None
            return 0.0
        self._kept_s = self._kept_s or time.monotonic()
        return time.monotonic() - self._kept_s

    def _failed_since(self) -> float:
        """Seconds since a rank died without having left a good trace; 0 where none has."""
        died = [ns for r, ns in list(self._died_ns.items()) if not self._left_trace(r)]
        return (time.monotonic_ns() - min(died)) / 1e9 if died else 0.0

    def _left_trace(self, local_rank: int) -> bool:
        try:
            text = (self._scratch / f"rank{local_rank}.json").read_bytes()
        except OSError:
            return False
        return b'"status":"ok"' in text[:2000]

    def _kill_rest(self) -> None:
        """SIGKILL, since a stopped or stuck process heeds nothing else."""
        self._killed = set(self._pids) - set(self._died_ns)
        self._tell_rest(signal.SIGKILL)

    def _tell_rest(self, number: signal.Signals) -> None:
        for local_rank, pid in self._pids.items():
            if local_rank not in self._died_ns:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _evidence(self) -> dict[str, Any]:
        """What each rank is doing at the time limit."""
        beats, now_s = self._beats, time.monotonic()
        at = [r * progress.FIELDS for r in range(self._ranks)]
        return {
            "timed_out": True,
            "marks_passed": tuple(beats[i + progress.MARKS] for i in at),
            "states": tuple(beats[i + progress.STATE] for i in at),
            "stopped": tuple(_stopped(self._pids.get(r)) for r in range(self._ranks)),
            "still_s": self._motion.still_s(now_s),
            "longest_s": self._motion.longest_s(),
            "planned": max(beats[i + progress.PLANNED] for i in at),
            "in_window_s": self._motion.in_window_s(now_s),
        }


def _stopped(pid: int | None) -> bool:
    """Whether the kernel has the process stopped (state T)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "Tt"
