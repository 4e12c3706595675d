"""Who has knocked at a study's door: who is taken in, who is refused and why, who is still waited for."""

import time
from collections.abc import Sequence

from bench import messages as m
from bench.case import Case
from bench.errors import BenchError, UsageError
from bench.plugins import clip
from bench.sameness import Versions, differences
from bench.seat import SILENT_S, Say, Seat
from bench.seats import Seats
from bench.wire import NotSigned

COPY_OURS = "copy node 0's secret there, or set SCALEMARK_SECRET alike"
INSTALL_OURS = "install the same on every node"


class Door:
    """Newcomers of a study: each says Hello, is told what will run, makes what it needs, and is Ready."""

    def __init__(self, seats: Seats, versions: Versions, nodes: int, say: Say) -> None:
        self._seats, self._versions, self._nodes, self._say = seats, versions, nodes, say
        self._wire = seats.wire
        self.cases: tuple[Case, ...] = ()
        self.refused: list[Seat] = []
        self._tried: dict[int, int] = {}  # seats looked at, by node
        self._new: list[Seat] = []
        self._second: dict[Seat, tuple[m.Hello | m.Ready, float]] = {}  # their number is taken; since when
        self._strangers: dict[int, tuple[str, str]] = {}  # who came instead of a node, and what to do

    @property
    def busy(self) -> bool:
        """Whether somebody has knocked who is neither taken in nor refused."""
        return bool(self._new)

    def admit(self, refuse: Say) -> None:
        """Look at who has knocked; `refuse` gets, in words, who does not fit."""
        self._knocks()
        for seat in list(self._new):
            if seat in self._second:
                self._second_of(seat, refuse)
                continue
            try:
                message = seat.next()
            except BenchError as error:
                self._refuse(seat, str(error))
                remedy = COPY_OURS if isinstance(error, NotSigned) else INSTALL_OURS
                self._strange(seat.node, f"a process was refused: {error}", remedy)
                continue
            if message is not None:
                self._greet(seat, message, refuse)
            elif seat.silent_s() > SILENT_S:
                self._new.remove(seat)

    def _knocks(self) -> None:
        for node in range(1, self._nodes):
            if self._wire.count(f"/refused/{node}", 0) and node not in self._strangers:
                self._strange(node, "a process with another study secret was refused", COPY_OURS)
            seats = self._wire.count(f"seat/{node}", 0)
            for number in range(self._tried.get(node, 0) + 1, seats + 1):
                self._tried[node] = number
                self._new.append(Seat(self._wire, node, number))

    def _greet(self, seat: Seat, message: m.Up, refuse: Say) -> None:
        """Hello and Ready of a newcomer."""
        if not isinstance(message, m.Hello | m.Ready):
            self._new.remove(seat)  # it leaves
            return
        if isinstance(message, m.Hello):
            seat.hostname = clip(message.hostname, 60)
        if seat.node in self._seats.by_node:
            self._seats.by_node[seat.node].silent_s()  # its signs of life so far
            self._second[seat] = message, time.monotonic()
        elif other := differences(self._versions, message.versions):
            why = f"{'; '.join(other)}: {INSTALL_OURS}"
            self._refuse(seat, why)
            refuse(f"{seat.name}: {why}")
        elif isinstance(message, m.Hello):
            seat.send(m.Welcome(token=message.token, cases=self.cases))
        else:
            self._take_in(seat, message)

    def _second_of(self, seat: Seat, refuse: Say) -> None:
        """Its number is taken: by a node that gives another sign of life, or by one that has ended, as we will see."""
        message, since_s = self._second[seat]
        if (first := self._seats.by_node.get(seat.node)) is not None:
            self._seats.attend_to(first)
        if first is None or not self._seats.there(first):
            del self._second[seat]
            self._greet(seat, message, refuse)
        elif first.seen_s > since_s:
            self._refuse(
                seat,
                f"node {seat.node} is there already: {first.hostname}; give each node a --node-rank of its own",
            )
            self._say(f"node {seat.node} came twice: {seat.hostname} was refused, {first.hostname} stays")
        elif seat.silent_s() > SILENT_S:
            self._drop(seat)

    def _take_in(self, seat: Seat, ready: m.Ready) -> None:
        self._drop(seat)
        seat.member, seat.port, seat.token = ready.member, ready.port, ready.token
        self._strangers.pop(seat.node, None)
        self._seats.take(seat)
        where = f" at {ready.member.address} on {ready.member.interface}" if ready.member.address else ""
        self._say(f"node {seat.node} is there: {seat.hostname}{where}")

    def _drop(self, seat: Seat) -> None:
        self._new.remove(seat)
        self._second.pop(seat, None)

    def _refuse(self, seat: Seat, why: str) -> None:
        self._drop(seat)
        self.refused.append(seat)
        seat.send(m.Refused(why=why))

    def refuse_all(self, why: str) -> None:
        """Nobody comes in any more. Raises UsageError."""
        for seat in list(self._new):
            self._refuse(seat, "the study does not start: another node does not fit")
        raise UsageError(why)

    def close(self, why: str | None) -> list[Seat]:
        """The study is over: whoever has knocked and is not in yet is told so. Returns who was told."""
        self._knocks()
        told = list(self._new)
        for seat in told:
            self._drop(seat)
            seat.send(m.End(why=why))
        return told

    def _strange(self, node: int, what: str, remedy: str) -> None:
        self._strangers[node] = what, remedy
        self._say(f"node {node}: {what}")

    def missing(self, nodes: Sequence[int], limit_s: float) -> str:
        """One line: who has not come in time, what is known of each, and what to do."""
        several = len(nodes) > 1

        def of(node: int, text: str) -> str:
            return f"node {node}: {text}" if several else text

        known = {node: of(node, what) for node, (what, _) in self._strangers.items()}
        what = [text for node in nodes if (text := known.get(node) or self._seats.lost(node))]
        todo = [of(node, self._strangers[node][1]) for node in nodes if node in self._strangers]
        others = [node for node in nodes if node not in self._strangers]
        if others:
            start = (
                f"start the line above there, and look at host name, address {self._wire.host}:{self._wire.port}"
                " and firewall"
            )
            todo.append(f"{_named(others)}: {start}" if todo else start)
        have = "have" if several else "has"
        return (
            "; ".join([f"{_named(nodes)} {have} not come within {limit_s:.0f} s", *what])
            + f": {'; '.join(todo)}"
        )


def _named(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes[:20]))}"
