"""One side as the conductor of both sees it: a process in its own environment that runs what it is told."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench import guard
from bench.ab_side import Side
from bench.errors import BenchError, UsageError
from bench.launch import BACKSTOP_S, START_LIMIT_S
from bench.orders import (
    Answer,
    Begin,
    Block,
    Done,
    Landed,
    Moved,
    Order,
    Planned,
    Ready,
    Refused,
    Request,
    Run,
)
from bench.plugins import clip
from bench.records import Cell, LaunchRecord

PLAN_S = 600.0  # a user's model is built once; devices are looked for
PREPARE_S = 3600.0  # files of data that are made the first time
END_S = 15.0  # to record what runs and to end by itself

_Wanted = TypeVar("_Wanted")


class SideLost(BenchError):
    """A side's process has ended, or does not answer; what it measured is on the disk."""

    exit_code = 4


class SideProcess:
    """Starts one side; use as a context manager: it has ended afterwards, with everything it started.

    `lent` is a folder that holds this package alone, for environments without one. Its messages go to `log`.
    """

    def __init__(self, name: str, side: Side, log: Path, lent: Path) -> None:
        self.name, self.side = name, side
        self._log, self._lent = log, lent
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def __enter__(self) -> "SideProcess":
        """In a session of its own: a Ctrl-C at the terminal is for the conductor to pass on."""
        environment = dict(os.environ)
        if self.side.borrowed:
            known = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join([str(self._lent), *([known] if known else [])])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.side.python, "-P", "-m", "bench.led"], cwd=self.side.folder, env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.end(asked=kind is None)

    def plan(self, request: Request) -> None:
        """Ask for the side's plan."""
        self._send(request)

    def planned(self) -> Planned:
        """The plan. Raises UsageError with the side's own words where there is none."""
        return self._answer(Planned, PLAN_S)

    def begin(self, resume: bool) -> None:
        """Have the study written."""
        self._send(Begin(resume=resume))
        self._answer(Ready, PREPARE_S)

    def block(self, block: int) -> None:
        """Have an engine started."""
        self._send(Block(block=block))

    def ready(self) -> None:
        """Wait for the engine of the block."""
        self._answer(Ready, START_LIMIT_S + BACKSTOP_S)

    def run(self, cell: Cell, order: int, show: Callable[[Moved], None]) -> list[LaunchRecord]:
        """One launch, and another one where that was disqualified. `show` is told how far they are."""
        self._send(Run(cell=cell.id, order=order))
        limit_s = START_LIMIT_S + cell.case.timeout_s + 4 * BACKSTOP_S
        records: list[LaunchRecord] = []

        def take(answer: Answer) -> None:
            if isinstance(answer, Landed):
                records.append(answer.record)
            elif isinstance(answer, Moved):
                show(answer)

        self._answer(Ready, 2 * limit_s, take)
        return records

    def done(self) -> None:
        """End the block."""
        self._send(Done())

    def end(self, asked: bool) -> None:
        """Let it end by itself, `asked` after its study, else by a signal that records what runs; then by force."""
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()  # what it still has to tell is on the disk
        if not asked:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            guard.kill_group(process.pid)  # its engine and ranks end with it
            process.wait()

    def _send(self, order: Order | Request) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # reading the answer tells why it has ended
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()

    def _answer(
        self, wanted: type[_Wanted], limit_s: float, hear: Callable[[Answer], None] = lambda answer: None
    ) -> _Wanted:
        """The next answer of this kind; `hear` gets what comes before it."""
        deadline = time.monotonic() + limit_s
        while True:
            answer = msgspec.json.decode(self._line(deadline, limit_s), type=Answer)
            if isinstance(answer, Refused):
                raise UsageError(f"{self.name} ({self.side.python} in {self.side.folder}): {answer.why}")
            if isinstance(answer, wanted):
                return answer
            hear(answer)

    def _line(self, deadline: float, limit_s: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise SideLost(f"{self.name}: did not answer within {limit_s:.0f} s; see {self._log}")
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise SideLost(f"{self.name}: {self._how_it_ended()}")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _how_it_ended(self) -> str:
        """In words, with the last line that it left."""
        assert self._process is not None
        code = self._process.wait()
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"its process {how}" + (f": {clip(lines[-1], 300)}" if lines and code > 0 else "")
