"""The node that leads, as a follower sees it: its messages in order, its signs of life."""

import threading
import time

import msgspec

from bench import messages as m
from bench.errors import BenchError, UsageError
from bench.seat import BEAT_S, SILENT_S
from bench.wire import NotSigned, Wire, WireLost

LOOK_S = 2.0
ANSWER_S = 60.0


class Refused(UsageError):
    """The leader does not take this node, and says why."""


class LeaderLost(BenchError):
    """The node that leads is gone, or cannot be reached any more."""


class GivenUp(BenchError):
    """The leader goes on without this node: it had heard nothing of it, or had no answer."""


class Leader:
    """The leader of a study in which this node has a seat. Requests raise LeaderLost where they have no answer."""

    def __init__(self, wire: Wire, node: int) -> None:
        """Take a seat, by the leader's session. Raises Refused for another secret."""
        self._wire, self._node = wire, node
        self._sent = self._read = 0
        self._ended = threading.Event()
        self.where = m.Where()  # how far a launch has come here: written over and over
        self.gone: str | None = None  # why it is lost
        self.address = f"{wire.host}:{wire.port}"
        if not wire.wait(["study"], ANSWER_S):
            raise UsageError(f"--lead {self.address}: something answers, but no study leads there")
        try:
            data = wire.look("study")
        except NotSigned:
            wire.count(f"/refused/{node}")
            raise Refused(self._other_secret()) from None
        session = msgspec.msgpack.decode(data or b"", type=m.Session)
        if node >= session.nodes:
            has = f"the study at {wire.host} has {session.nodes} nodes, 0 to {session.nodes - 1}"
            raise UsageError(f"--node-rank {node}: {has}")
        wire.session = session.nonce
        self._me = f"{node}/{wire.count(f'seat/{node}')}"

    def _other_secret(self) -> str:
        return (
            f"node {self._node}: the study at {self.address} has another secret than this node:"
            " copy node 0's, or set SCALEMARK_SECRET to the same on every node"
        )

    def send(self, message: m.Up) -> None:
        """To the leader."""
        self._wire.put(f"up/{self._me}/{self._sent}", m.encode(message))
        self._sent += 1

    @property
    def _key(self) -> str:
        return f"down/{self._me}/{self._read}"

    def speaks(self, limit_s: float = 0.0) -> bool:
        """Whether its next message is there, or comes in time."""
        return self._wire.wait([self._key], limit_s) if limit_s else self._wire.there(self._key)

    def next(self) -> m.Down:
        """Its next message. Raises LeaderLost, and Refused for one that is not signed."""
        while not self.speaks(LOOK_S):
            self.check()
        try:
            data = self._wire.take(self._key)
        except NotSigned:
            raise Refused(self._other_secret()) from None
        self._read += 1
        return m.down(data)

    def check(self) -> None:
        """Raises LeaderLost."""
        if self.gone is not None:
            raise LeaderLost(self.gone)

    def start(self) -> None:
        """Signs of life both ways from now on."""
        thread = threading.Thread(
            target=self._beat, args=(self._wire.again(SILENT_S),), daemon=True, name="beat"
        )
        thread.start()

    def _beat(self, wire: Wire) -> None:
        heard_s, beats, told = time.monotonic(), -1, self.where
        try:
            while not self._ended.wait(BEAT_S):
                wire.count(f"beat/{self._me}")
                if self.where is not told:
                    told = self.where
                    wire.put(f"where/{self._me}", m.encode(told))
                now_beats = wire.count("beat/0", 0)
                if now_beats != beats:
                    beats, heard_s = now_beats, time.monotonic()
                if time.monotonic() - heard_s > SILENT_S:
                    self.gone = f"no sign of life for {SILENT_S:.0f} s"
                    return
        except WireLost as error:
            self.gone = str(error)

    def stop(self) -> None:
        """No more signs of life."""
        self._ended.set()

    def bye(self) -> None:
        """The store has all that was sent: it confirms this, and what came before by the same connection."""
        self._wire.count(f"bye/{self._me}")
