"""One follower as the node that leads sees it: its messages in order, its signs of life, its clock."""

import time
from collections.abc import Callable

import msgspec

from bench import messages as m
from bench.records import Member, Part, RankTrace
from bench.wire import NotSigned, Wire

BEAT_S = 0.5
SILENT_S = 10.0  # without a beat, and a node is lost

Say = Callable[[str], None]


class Seat:
    """One follower: its place in the store, its messages in order, its last sign of life."""

    def __init__(self, wire: Wire, node: int, number: int) -> None:
        self._wire, self.node, self.number = wire, node, number
        self._sent = self._read = self._beats = 0
        self.seen_s = time.monotonic()
        self.member: Member | None = None
        self.port, self.token = 0, b""
        self.ahead_ns = 0  # its monotonic clock less the leader's
        self.hostname = "?"

    def send(self, message: m.Down) -> None:
        """To the follower."""
        self._wire.put(f"down/{self.node}/{self.number}/{self._sent}", m.encode(message))
        self._sent += 1

    def next(self) -> m.Up | None:
        """The follower's next message, if it has come. Raises NotSigned."""
        key = f"up/{self.node}/{self.number}/{self._read}"
        if not self._wire.there(key):
            return None
        self._read += 1
        self.seen_s = time.monotonic()
        return m.up(self._wire.take(key))

    @property
    def key(self) -> str:
        """Where the next message will stand."""
        return f"up/{self.node}/{self.number}/{self._read}"

    def silent_s(self) -> float:
        """Seconds without a sign of life."""
        beats = self._wire.count(f"beat/{self.node}/{self.number}", 0)
        if beats != self._beats:
            self._beats, self.seen_s = beats, time.monotonic()
        return time.monotonic() - self.seen_s

    def gone(self) -> bool:
        """Whether it has read that the study is over."""
        return self._wire.count(f"bye/{self.node}/{self.number}", 0) > 0

    def set_clock(self, ahead_s: float) -> None:
        """Its wall clock less the leader's."""
        assert self.member is not None
        self.member = msgspec.structs.replace(self.member, clock_ahead_s=ahead_s)

    def where(self) -> m.Where | None:
        """How far its launch has come. What is not to be believed is not shown: nothing else depends on it."""
        try:
            data = self._wire.look(f"where/{self.node}/{self.number}")
            return msgspec.msgpack.decode(data, type=m.Where) if data else None
        except (NotSigned, msgspec.DecodeError):
            return None

    @property
    def name(self) -> str:
        """node 1 (host)"""
        return f"node {self.node} ({self.hostname})"


def shifted(part: Part, seat: Seat) -> Part:
    """A part with its times on the leader's monotonic clock, and its host's name."""

    def put(value: int | None) -> int | None:
        return None if value is None else value - seat.ahead_ns

    def trace(one: RankTrace) -> RankTrace:
        return msgspec.structs.replace(
            one,
            failed_ns=put(one.failed_ns),
            window_start_ns=put(one.window_start_ns),
            window_end_ns=put(one.window_end_ns),
        )

    ended = tuple(msgspec.structs.replace(end, died_ns=put(end.died_ns)) for end in part.outcome.ranks)
    readings = dict(part.readings)
    if readings.get("time_s"):
        readings["time_s"] = [time_s - seat.ahead_ns / 1e9 for time_s in readings["time_s"]]
    return msgspec.structs.replace(
        part,
        outcome=msgspec.structs.replace(part.outcome, ranks=ended),
        traces=tuple(trace(one) for one in part.traces),
        readings=readings,
    )
