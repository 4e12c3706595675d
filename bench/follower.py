"""A node that follows: it takes launches from the node that leads, runs its part of each, and sends it back.

It writes nothing under results/. It ends when the study does, when the leader is gone, or when it is told to.
"""

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bench import launch as launching
from bench import messages as m
from bench import plugins, temporary
from bench.begin import prepare_case
from bench.case import Case
from bench.errors import BenchError, UsageError
from bench.launch import Engine, EngineLost, Progress
from bench.leader import LOOK_S, GivenUp, Leader, LeaderLost, Refused
from bench.machine import Host, device_kind, slots, unwatched, watched_uuids
from bench.netcheck import Responder
from bench.pairs import measured
from bench.records import Launch, Member, Part
from bench.sameness import mine
from bench.telemetry import Telemetry
from bench.wire import Wire, WireLost

LOG_BYTES = 256 << 10  # of each rank's log, the end
TRACE_BYTES = 64 << 20


class Follower:
    """One node that follows. `serve()` returns when the study is over."""

    def __init__(
        self,
        wire: Wire,
        me: Member,
        host: Host,
        say: Callable[[str], None],
        devices: tuple[int, ...] | None = None,
        quiet: bool = False,
    ) -> None:
        """`quiet`: another node shows what runs. Raises Refused for another secret."""
        self._me, self._host, self._say, self._devices, self._quiet = me, host, say, devices, quiet
        self._over: m.End | m.GivenUp | None = None
        self._ran = False
        temporary.sweep()
        self._folder = tempfile.TemporaryDirectory(prefix=temporary.prefix(), ignore_cleanup_errors=True)
        self._engine = Engine(self._log(0))
        self._responder: Responder | None = None
        self._address = me.address or wire.host
        self._leader = Leader(wire, me.node)

    def _log(self, block: int) -> Path:
        return Path(self._folder.name) / f"engine-b{block:02d}.log"

    def serve(self) -> None:
        """Follow to the end. Raises LeaderLost, GivenUp, Refused and UsageError; KeyboardInterrupt passes, and is told."""
        self._leader.start()
        try:
            self._introduce()
            while self._over is None:
                self._do(self._leader.next())
            with suppress(WireLost):  # the leader may have ended already, too
                self._leader.bye()
        except WireLost as error:
            raise LeaderLost(str(error)) from None
        except (KeyboardInterrupt, BenchError) as error:
            if not isinstance(error, LeaderLost):
                self._leave("was stopped by a signal" if isinstance(error, KeyboardInterrupt) else str(error))
            raise
        finally:
            self._leader.stop()
            self._engine.kill()
            self._close_responder()
            self._folder.cleanup()
        self._conclude(self._over)

    def _conclude(self, over: m.End | m.GivenUp) -> None:
        name, leader = f"node {self._me.node}", self._leader.address
        if isinstance(over, m.GivenUp):
            raise GivenUp(
                f"{name} was given up by the leader at {leader}: {over.why}; start it again to come back"
            )
        if over.why is not None:
            raise UsageError(f"{name}: {over.why}")
        if not self._ran and not self._quiet:
            self._say(f"{name}: the study at {leader} is over; nothing was left to run here")

    def _leave(self, why: str) -> None:
        with suppress(WireLost):
            self._leader.send(m.Left(why=why))
            self._leader.bye()

    # -- messages -----------------------------------------------------------------------------------

    def _introduce(self) -> None:
        hello = secrets.token_hex(8)
        self._leader.send(m.Hello(token=hello, hostname=self._me.hostname, pid=os.getpid(), versions=mine()))
        if not self._leader.speaks(LOOK_S):
            self._say(
                f"node {self._me.node} waits for the leader at {self._leader.address} to take it in: when the running"
                f" block ends, or an earlier node {self._me.node} is given up"
            )
        answer = self._leader.next()
        if not isinstance(answer, m.Welcome):
            self._do(answer)
        elif answer.token == hello:
            self._make_ready(answer.cases)
        else:
            raise Refused(
                f"node {self._me.node}: the answer at {self._leader.address} is not to this node's question"
            )

    def _make_ready(self, cases: Sequence[Case]) -> None:
        for case in cases:
            prepare_case(case)
        token = secrets.token_bytes(16)
        self._responder = Responder(self._address, token)
        port = self._responder.port
        self._leader.send(m.Ready(member=self._me, versions=mine(cases), port=port, token=token))
        self._say(f"node {self._me.node} follows {self._leader.address}")

    def _close_responder(self) -> None:
        """Nobody measures the way to this node any more."""
        if self._responder is not None:
            self._responder.close()
            self._responder = None

    def _do(self, message: m.Down) -> None:
        if isinstance(message, m.Refused):
            raise Refused(f"node {self._me.node} was refused: {message.why}")
        if isinstance(message, m.Measure):
            self._leader.send(measured(message))
            return
        self._close_responder()  # all nodes have come
        if isinstance(message, m.End | m.GivenUp):
            self._over = message
        elif isinstance(message, m.Ping):
            self._leader.send(m.Pong(monotonic_ns=time.monotonic_ns()))
        elif isinstance(message, m.Block):
            self._engine.kill()
            self._engine = Engine(self._log(message.number))
            self._stand()
        elif isinstance(message, m.Run):
            self._ran = True
            self._leader.send(m.Done(launch=message.launch.launch, part=self._part(message.launch)))
            self._leader.where = m.Where()
            if self._over is None:
                self._stand()

    def _stand(self) -> None:
        """The engine stands before the leader hears of this node again."""
        with suppress(EngineLost):  # the launch that needs it starts it again, and tells
            self._engine.ready()

    # -- launches -----------------------------------------------------------------------------------

    def _part(self, launch: Launch) -> Part:
        """What came of a launch here, a disk that is full included."""
        try:
            return self._run(launch)
        except OSError as error:
            self._engine.kill()
            return Part(node=launch.node, host=self._me.hostname, lost=f"{error.filename}: {error.strerror}")

    def _run(self, launch: Launch) -> Part:
        """This node's part of a launch."""
        strategy: plugins.Strategy = plugins.load("strategies", launch.case.strategy)
        processes = strategy.processes(launch.case)
        if not self._quiet:
            self._say(launch.launch)
        with temporary.folder() as scratch:
            logs, traces = scratch / "logs", scratch / "traces"
            logs.mkdir()
            traces.mkdir()
            pids = scratch / "pids"
            launch = msgspec.structs.replace(
                launch,
                scratch=str(scratch),
                logs=str(logs),
                conductor_pid=os.getpid(),
                device_kind=device_kind(self._host),
                devices=self._devices or launch.devices,
                oversubscribed=bool(self._host.devices) and launch.case.ranks > slots(self._host),
                traces=str(traces) if launch.traces else None,
                interface=self._me.interface,
            )
            telemetry = Telemetry(
                self._engine.pgid,
                rank_pids=pids,
                device_uuids=watched_uuids(self._host),
                device_reason=unwatched(self._host),
                node=self._me.node,
            ).start()
            try:
                part = launching.collect(self._engine, launch, processes, self._show, pids, self._halt)
            finally:
                recording = telemetry.stop()
            self._leader.check()
            return msgspec.structs.replace(
                part,
                readings=recording.rows,
                reasons=recording.summary.reasons,
                files=_files(logs, LOG_BYTES) | _files(traces, TRACE_BYTES),
            )

    def _show(self, where: Progress) -> None:
        self._leader.where = m.Where(state=where.state, step=where.step, steps=where.steps)

    def _halt(self) -> bool:
        """Whether the leader has told this launch to end, or is gone."""
        if self._leader.gone is not None:
            return True
        if not self._leader.speaks():
            return False
        message = self._leader.next()  # a Stop, else: nothing more comes meanwhile
        if isinstance(message, m.End | m.GivenUp):
            self._over = message
        return True


def _files(folder: Path, most: int) -> dict[str, bytes]:
    """Files by name: the end of each, where it is longer than `most`."""
    return {path.name: path.read_bytes()[-most:] for path in sorted(folder.iterdir()) if path.is_file()}
