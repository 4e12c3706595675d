"""The followers that take part in a study, node 0 not among them: who has left or fallen silent, and why."""

import time

from bench import messages as m
from bench.errors import BenchError
from bench.seat import BEAT_S, SILENT_S, Say, Seat
from bench.wire import LIMIT_S, Wire

LOOK_S = 0.5
ENGINE_S = 30.0  # for another node's engine to stand
PINGS = 5
LIVELY_S = 3 * BEAT_S  # without a beat, and a node may just have been killed


class Seats:
    """Seats that are taken, by node. One that is lost is told so, in case its process lives on."""

    def __init__(self, wire: Wire, say: Say) -> None:
        self.wire, self._say = wire, say
        self.by_node: dict[int, Seat] = {}
        self.given_up: list[Seat] = []
        self._why: dict[int, str] = {}  # nodes that were lost and have not come back
        self._looked_s = self._attended_s = 0.0

    def take(self, seat: Seat) -> None:
        """A node takes part from now on."""
        self.by_node[seat.node] = seat
        self._why.pop(seat.node, None)

    def there(self, seat: Seat) -> bool:
        """Whether a follower still takes part."""
        return self.by_node.get(seat.node) is seat

    def lost(self, node: int) -> str | None:
        """Why a node was lost."""
        return self._why.get(node)

    def lose(self, seat: Seat, why: str) -> None:
        """A node takes no part any more, until it comes back."""
        self._why[seat.node] = f"{seat.name}: {why}"
        del self.by_node[seat.node]
        self.given_up.append(seat)
        seat.send(m.GivenUp(why=why))
        self._say(f"lost: {self._why[seat.node]}; its line started again takes it back in")

    def hear(self, seat: Seat) -> m.Up | None:
        """A follower's next message, if it has come. One that leaves, or whose message nobody signed, is lost."""
        try:
            message = seat.next()
        except BenchError as error:  # not signed, or not to be read
            self.lose(seat, str(error))
            return None
        if isinstance(message, m.Left):
            self.lose(seat, message.why)
            return None
        return message

    def look(self, force: bool = False) -> None:
        """Who has gone silent? For while their messages are answers to somebody."""
        if force or time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            for seat in list(self.by_node.values()):
                self._silent(seat)

    def attend(self, force: bool = False) -> None:
        """Who has left or gone silent? For while nobody is asked anything."""
        if force or time.monotonic() - self._attended_s >= LOOK_S:
            self._attended_s = time.monotonic()
            for seat in list(self.by_node.values()):
                self.attend_to(seat)

    def attend_to(self, seat: Seat) -> None:
        """The same of one follower. What it says is late for whatever had asked."""
        while self.hear(seat) is not None:
            pass
        if self.there(seat):
            self._silent(seat)

    def lively(self) -> bool:
        """Whether all have given a sign of life just now."""
        return all(seat.silent_s() < LIVELY_S for seat in self.by_node.values())

    def _silent(self, seat: Seat) -> None:
        if seat.silent_s() > SILENT_S:
            self.lose(seat, f"no sign of life for {SILENT_S:.0f} s")

    def read_clock(self, seat: Seat) -> None:
        """The monotonic clock of a node less ours, by the shortest of a few round trips; it has been asked once."""
        best = None
        for number in range(PINGS):
            if number:
                seat.send(m.Ping())
            asked = time.monotonic_ns()
            pong = self._pong(seat, LIMIT_S if number else ENGINE_S)
            if pong is None:
                return
            now = time.monotonic_ns()
            if number and (best is None or now - asked < best):
                best, seat.ahead_ns = now - asked, pong.monotonic_ns - (asked + now) // 2

    def _pong(self, seat: Seat, limit_s: float) -> m.Pong | None:
        deadline = time.monotonic() + limit_s
        while self.there(seat) and time.monotonic() < deadline:
            message = self.hear(seat) if self.wire.wait([seat.key], LOOK_S) else None
            if isinstance(message, m.Pong):
                return message
            self.look()
        return None
