"""One side of two that are compared: a conductor that does not choose what to run next, but is told.

It runs in the environment and the folder that are under test, and writes an ordinary study. Orders come on
standard input and answers go to standard output (orders.py); what anything else prints goes to standard error.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from bench import __version__, guard, orders
from bench.errors import BenchError, UsageError
from bench.launch import Progress
from bench.machine import Host
from bench.orders import PROTOCOL, Answer, Begin, Block, Done, Landed, Moved, Order, Planned, Ready, Refused
from bench.plan import Plan
from bench.records import Cell, LaunchRecord

TOLD_S = 0.2  # between two words on how far a launch is


def main() -> None:
    """Serve one request, to the end of standard input. The exit code is 130 after a signal."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    from bench.study import Interrupted

    line = Line(sys.stdin.buffer, answers)
    try:
        serve(line)
    except (BenchError, OSError) as error:
        line.answer(Refused(why=_told(error)))
        sys.exit(2)
    except (Interrupted, KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)


class Line:
    """Orders in, answers out; also what a study shows while it runs."""

    def __init__(self, incoming: IO[bytes], answers: IO[bytes]) -> None:
        self._incoming, self._answers = incoming, answers
        self._told_s = 0.0

    def request(self) -> orders.Request:
        """The first line. Raises UsageError where it is of another version of this suite."""
        line = self._incoming.readline()
        found = msgspec.json.decode(line, type=_Protocol).protocol
        if found != PROTOCOL:
            raise UsageError(
                f"the scalemark here ({__version__}) is led by protocol {PROTOCOL}, not {found}: install the same"
                " version on both sides"
            )
        return msgspec.json.decode(line, type=orders.Request)

    def orders(self) -> Iterator[Order]:
        """Every line until standard input ends."""
        for line in self._incoming:
            yield msgspec.json.decode(line, type=Order)

    def answer(self, answer: Answer) -> None:
        """One line; nothing where nobody reads any more."""
        with suppress(BrokenPipeError):
            self._answers.write(msgspec.json.encode(answer) + b"\n")

    def block(self, block: int, cells: int) -> None:
        """The conductor knows."""

    def launching(self, cell: Cell, block: int) -> None:
        """The conductor knows."""

    def progress(self, progress: Progress) -> None:
        """Tell how far the launch is, a few times a second."""
        if time.monotonic() - self._told_s >= TOLD_S:
            self._told_s = time.monotonic()
            self.answer(Moved(state=progress.state, step=progress.step, steps=progress.steps))

    def landed(self, record: LaunchRecord, left_s: float | None) -> None:
        """Tell what came of a launch."""
        self.answer(Landed(record=record))

    def say(self, text: str) -> None:
        """Into the log."""
        print(text, file=sys.stderr, flush=True)


class _Protocol(msgspec.Struct):
    protocol: int = 0


def serve(line: Line) -> None:
    """Plan what the request asks for, begin when told to, run what is ordered."""
    from bench.machine import comparable, probe_host
    from bench.plan import make_plan

    request = line.request()
    _end_with(request.conductor_pid)
    host = probe_host()
    plan = make_plan(
        request.suites,
        host,
        sets=request.sets,
        nproc=request.nproc,
        oversubscribe=request.oversubscribe,
        devices=request.devices,
    )
    line.answer(
        Planned(
            version=__version__,
            cells=plan.cells,
            launch_s={cell.id: plan.launch_s(cell) for cell in plan.runnable},
            host=comparable(host) | {"hostname": host.hostname},
            notes=plan.notes,
        )
    )
    given = line.orders()
    for order in given:
        if isinstance(order, Begin):
            _conduct(line, request, plan, host, order.resume, given)


def _conduct(
    line: Line, request: orders.Request, plan: Plan, host: Host, resume: bool, given: Iterator[Order]
) -> None:
    """Write study.json and run blocks. Raises UsageError, or study.Interrupted with everything on disk."""
    from bench.begin import check_resumed, header, prepare
    from bench.store import Store
    from bench.study import Study

    store = Store(Path(request.root))
    with store.lock():
        before = store.header() if resume else None
        if before is not None:
            check_resumed(plan, before, store.root, request.quick)
        prepare(plan)
        head = header(store.name, plan, host, request.rules, request.command, request.quick, before)
        store.create(head, resume=resume)
        line.answer(Ready())
        Study(plan, store, host, request.rules, line).led(_blocks(line, given, plan))


def _blocks(
    line: Line, given: Iterator[Order], plan: Plan
) -> Iterator[tuple[int, Iterator[tuple[int, Cell]]]]:
    """The blocks that are ordered, each with its cells as they are ordered."""
    known = {cell.id: cell for cell in plan.runnable}
    for order in given:
        if isinstance(order, Block):
            yield order.block, _cells(line, given, known)


def _cells(line: Line, given: Iterator[Order], known: dict[str, Cell]) -> Iterator[tuple[int, Cell]]:
    """The cells of one block; asked for the first time when its engine runs."""
    line.answer(Ready())
    for order in given:
        if isinstance(order, Done):
            return
        if isinstance(order, orders.Run):
            yield order.order, known[order.cell]
            line.answer(Ready())


def _end_with(conductor: int) -> None:
    """When the conductor has gone, stop as after a signal: the running launch is recorded, all processes end."""

    def stop(_: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    fd = guard.open_pidfd(conductor)
    if fd is None:
        stop(0)
    else:
        guard.watch({fd: 0}, stop)


def _told(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return str(error)


if __name__ == "__main__":
    main()
