"""A node that follows: it takes launches from the node that leads, runs its part of each, and sends it back.

It writes nothing under results/. It ends when the study does, when the leader is gone, or when it is told to.
"""

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from bench import launch as launching
from bench import messages as m
from bench import plugins
from bench.begin import prepare_case
from bench.errors import BenchError, UsageError
from bench.launch import Engine, EngineLost, Progress
from bench.machine import Host, device_kind, slots, unwatched, watched_uuids
from bench.netcheck import Responder
from bench.nodes import BEAT_S
from bench.pairs import measured
from bench.records import Launch, Member, Part
from bench.sameness import mine
from bench.seat import SILENT_S
from bench.telemetry import Telemetry
from bench.wire import NotSigned, Wire, WireLost

LOOK_S = 2.0
ANSWER_S = 60.0
LOG_BYTES = 256 << 10  # of each rank's log, the end
TRACE_BYTES = 64 << 20


class Refused(UsageError):
    """The leader does not take this node, and says why."""


class LeaderLost(BenchError):
    """The node that leads is gone, or cannot be reached any more."""


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
        """`quiet`: another node shows what runs."""
        self._wire, self._me, self._host, self._say, self._devices = wire, me, host, say, devices
        self._sent = self._read = 0
        self._where = m.Where()
        self._over: m.End | None = None
        self._quiet = quiet
        self._gone: str | None = None
        self._ended = threading.Event()
        launching.sweep_scratch()
        self._folder = tempfile.TemporaryDirectory(
            prefix=launching.folder_prefix(), ignore_cleanup_errors=True
        )
        self._engine = Engine(self._log(0))
        self._responder: Responder | None = None
        self._sit()

    def _sit(self) -> None:
        """Take a seat, by the leader's session. Raises Refused for another secret."""
        if not self._wire.wait(["study"], ANSWER_S):
            raise UsageError(
                f"--lead {self._wire.host}:{self._wire.port}: something answers, but no study leads there"
            )
        try:
            data = self._wire.look("study")
        except NotSigned:
            self._wire.count(f"/refused/{self._me.node}")
            raise Refused(self._other_secret()) from None
        session = msgspec.msgpack.decode(data or b"", type=m.Session)
        if self._me.node >= session.nodes:
            raise UsageError(
                f"--node-rank {self._me.node}: the study at {self._wire.host} has {session.nodes} nodes, 0 to {session.nodes - 1}"
            )
        self._wire.session = session.nonce
        self._seat = self._wire.count(f"seat/{self._me.node}")

    def _other_secret(self) -> str:
        return (
            f"node {self._me.node}: the study at {self._wire.host}:{self._wire.port} has another secret than this node:"
            " copy node 0's, or set SCALEMARK_SECRET to the same on every node"
        )

    def _log(self, block: int) -> Path:
        return Path(self._folder.name) / f"engine-b{block:02d}.log"

    # -- messages -----------------------------------------------------------------------------------

    def _send(self, message: m.Up) -> None:
        self._wire.put(f"up/{self._me.node}/{self._seat}/{self._sent}", m.encode(message))
        self._sent += 1

    @property
    def _next_key(self) -> str:
        return f"down/{self._me.node}/{self._seat}/{self._read}"

    def _next(self) -> m.Down:
        """The leader's next message. Raises LeaderLost, and Refused for one that is not signed."""
        while not self._wire.wait([self._next_key], LOOK_S):
            self._check()
        self._read += 1
        try:
            return m.down(self._wire.take(f"down/{self._me.node}/{self._seat}/{self._read - 1}"))
        except NotSigned:
            raise Refused(self._other_secret()) from None

    def _check(self) -> None:
        if self._gone is not None:
            raise LeaderLost(self._gone)

    def _beat(self, wire: Wire) -> None:
        """Signs of life both ways, and how far the launch has come."""
        heard_s, beats, told = time.monotonic(), -1, self._where
        try:
            while not self._ended.wait(BEAT_S):
                wire.count(f"beat/{self._me.node}/{self._seat}")
                if self._where is not told:
                    told = self._where
                    wire.put(f"where/{self._me.node}/{self._seat}", m.encode(told))
                now_beats = wire.count("beat/0", 0)
                if now_beats != beats:
                    beats, heard_s = now_beats, time.monotonic()
                if time.monotonic() - heard_s > SILENT_S:
                    self._gone = f"no sign of life for {SILENT_S:.0f} s"
                    return
        except WireLost as error:
            self._gone = str(error)

    # -- the study ----------------------------------------------------------------------------------

    def serve(self) -> None:
        """Follow to the end. Raises LeaderLost, Refused and UsageError; KeyboardInterrupt passes, and is told."""
        threading.Thread(
            target=self._beat, args=(self._wire.again(SILENT_S),), daemon=True, name="beat"
        ).start()
        try:
            self._introduce()
            while self._over is None:
                self._do(self._next())
            self._bye()
        except WireLost as error:
            raise LeaderLost(str(error)) from None
        except (KeyboardInterrupt, BenchError) as error:
            if not isinstance(error, LeaderLost):
                self._leave("was stopped by a signal" if isinstance(error, KeyboardInterrupt) else str(error))
            raise
        finally:
            self._ended.set()
            self._engine.kill()
            if self._responder is not None:
                self._responder.close()
            self._folder.cleanup()
        if self._over.why is not None:
            raise UsageError(f"node {self._me.node}: {self._over.why}")

    def _bye(self) -> None:
        """The store has all that was sent: it confirms this, and what came before by the same connection."""
        self._wire.count(f"bye/{self._me.node}/{self._seat}")

    def _leave(self, why: str) -> None:
        with suppress(WireLost):
            self._send(m.Left(why=why))
            self._bye()

    def _introduce(self) -> None:
        hello = secrets.token_hex(8)
        self._send(m.Hello(token=hello, hostname=self._me.hostname, pid=os.getpid(), versions=mine()))
        answer = self._next()  # a late one is looked at when the running block ends
        if isinstance(answer, m.Welcome) and answer.token == hello:
            for case in answer.cases:
                prepare_case(case)
            token = secrets.token_bytes(16)
            self._responder = Responder(self._me.address or self._wire.host, token)
            ready = m.Ready(
                member=self._me, versions=mine(answer.cases), port=self._responder.port, token=token
            )
            self._send(ready)
            self._say(f"node {self._me.node} follows {self._wire.host}:{self._wire.port}")
        elif isinstance(answer, m.Refused):
            raise Refused(f"node {self._me.node} was refused: {answer.why}")
        elif isinstance(answer, m.Welcome):
            raise Refused(
                f"node {self._me.node}: the answer at {self._wire.host} is not to this node's question"
            )

    def _do(self, message: m.Down) -> None:
        if isinstance(message, m.Refused):
            raise Refused(f"node {self._me.node} was refused: {message.why}")
        if isinstance(message, m.Measure):
            self._send(measured(message))
        elif isinstance(message, m.End):
            self._over = message
        elif isinstance(message, m.Ping):
            self._send(m.Pong(monotonic_ns=time.monotonic_ns()))
        elif isinstance(message, m.Block):
            self._engine.kill()
            self._engine = Engine(self._log(message.number))
            self._stand()
        elif isinstance(message, m.Run):
            self._send(m.Done(launch=message.launch.launch, part=self._part(message.launch)))
            self._where = m.Where()
            self._stand()

    def _stand(self) -> None:
        """The engine stands before the leader hears of this node again."""
        with suppress(EngineLost):  # the launch that needs it starts it again, and tells
            self._engine.ready()

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
        with launching.scratch_folder() as scratch:
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
            self._check()
            return msgspec.structs.replace(
                part,
                readings=recording.rows,
                reasons=recording.summary.reasons,
                files=_files(logs, LOG_BYTES) | _files(traces, TRACE_BYTES),
            )

    def _show(self, where: Progress) -> None:
        self._where = m.Where(state=where.state, step=where.step, steps=where.steps)

    def _halt(self) -> bool:
        """Whether the leader has told this launch to end, or is gone."""
        if self._gone is not None:
            return True
        if not self._wire.there(self._next_key):
            return False
        message = self._next()
        self._over = (
            message if isinstance(message, m.End) else None
        )  # a Stop, else: nothing more comes meanwhile
        return True


def _files(folder: Path, most: int) -> dict[str, bytes]:
    """Files by name: the end of each, where it is longer than `most`."""
    return {path.name: path.read_bytes()[-most:] for path in sorted(folder.iterdir()) if path.is_file()}
