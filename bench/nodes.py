"""Several nodes, one study, as the node that leads it sees them: brought together, asked, told that it is over.

The same command runs on every node; node 0 leads. It publishes each launch in the study's store, followers
run their part (follower.py), and their traces come back the same way: no shared file system is needed.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from bench import messages as m
from bench.case import Case
from bench.door import Door
from bench.errors import UsageError
from bench.joint import Joint, dealt
from bench.launch import Engine, EngineLost, Progress, Result, collect, judge
from bench.netcheck import Responder
from bench.pairs import Pairs, unreached
from bench.parts import with_nodes
from bench.records import Launch, Member, Pair, Part
from bench.sameness import Versions
from bench.seat import BEAT_S, SILENT_S, Say, Seat
from bench.seats import Seats
from bench.wire import Wire, WireLost

GATHER_S = 120.0  # for all nodes to come
BYE_S = 3.0
LATE_S = SILENT_S + 10.0  # for a node whose number is to be given up first, and that makes its data


class Team:
    """All nodes of a study, node 0 among them. Use as a context manager: the followers end with it."""

    def __init__(
        self,
        wire: Wire,
        me: Member,
        versions: Versions,
        nodes: int,
        say: Say,
        watch: Callable[[], None] = lambda: None,
        limit_s: float = GATHER_S,
        box: bool = False,
    ) -> None:
        """`watch` is called while nodes are waited for; it may raise UsageError where one cannot come."""
        self.wire, self.nodes, self.box = wire, nodes, box
        self._me, self._say, self._watch, self._limit_s = me, say, watch, limit_s
        self.seats = Seats(wire, say)
        self._door = Door(self.seats, versions, nodes, say)
        self._fallen: set[int] = set()  # nodes whose engine the last launch cost
        self.pairs: tuple[Pair, ...] = ()
        session = m.Session(nonce=secrets.token_hex(8), nodes=nodes)
        wire.put("study", m.encode(session))
        wire.session = session.nonce
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(wire.again(),), daemon=True, name="beat").start()

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(WireLost):
            self._say_the_end(f"the study does not start: {error}" if isinstance(error, UsageError) else None)
        self._ended.set()

    def _say_the_end(self, why: str | None) -> None:
        """Tell all, and wait until they have read it: the store ends with this process."""
        there = list(self.seats.by_node.values())
        for seat in there:
            seat.send(m.End(why=why))
        told = [*there, *self._door.refused, *self.seats.given_up, *self._door.close(why)]
        deadline = time.monotonic() + BYE_S
        while time.monotonic() < deadline and not all(
            seat.gone() or seat.silent_s() > SILENT_S for seat in told
        ):
            time.sleep(0.02)
            told += self._door.close(why)

    def _beat(self, wire: Wire) -> None:
        with suppress(WireLost):
            while not self._ended.wait(BEAT_S):
                wire.count("beat/0")

    @property
    def members(self) -> tuple[Member, ...]:
        """Who is there, node 0 first."""
        found = [seat.member for seat in self.seats.by_node.values() if seat.member is not None]
        all_ = (self._me, *sorted(found, key=lambda member: member.node))
        if self.box:  # the kernel makes one up for a network namespace
            return tuple(msgspec.structs.replace(member, speed_mbit=None) for member in all_)
        return all_

    @property
    def store(self) -> str:
        """HOST:PORT of the study's store."""
        return f"{self.wire.host}:{self.wire.port}"

    @property
    def interface(self) -> str | None:
        """This node's, towards the others."""
        return self._me.interface

    @property
    def alive(self) -> tuple[int, ...]:
        """Nodes that take part, 0 first."""
        return (0, *sorted(self.seats.by_node))

    # -- before the first cell ------------------------------------------------------------------

    def gather(self, cases: Iterable[Case]) -> None:
        """Wait until every node has come and is fit for these cases. Raises UsageError, naming who is not."""
        self._door.cases = tuple(cases)
        deadline = time.monotonic() + self._limit_s
        while (missing := self._missing()) or not self.seats.lively():
            self._watch()
            if missing and time.monotonic() > deadline:
                raise UsageError(self._door.missing(missing, self._limit_s))
            self.seats.attend()
            self._door.admit(refuse=self._door.refuse_all)
            time.sleep(0.02)
        self.pairs = self._measured()

    def _missing(self) -> list[int]:
        """Nodes that have not come, or have gone again."""
        self.seats.attend(force=len(self.alive) == self.nodes)  # before anything depends on all of them
        return [node for node in range(1, self.nodes) if node not in self.seats.by_node]

    def _measured(self) -> tuple[Pair, ...]:
        """Every pair of nodes reaches each other. Raises UsageError, naming those that do not."""
        address = self._me.address or self.wire.host
        with Responder(address, token := secrets.token_bytes(16)) as responder:
            found = Pairs(self.wire, self.seats.by_node, (address, responder.port, token)).measure(self.nodes)
        if broken := [one.pair for one in found if one.pair.error]:
            raise UsageError(unreached(broken, self.members))
        for one in found:
            if one.pair.first == 0 and one.clock_ahead_s is not None:
                self.seats.by_node[one.pair.second].set_clock(one.clock_ahead_s)
        return tuple(one.pair for one in found)

    # -- while the study runs ---------------------------------------------------------------------

    def admit(self) -> None:
        """Notice who has gone, and take in who has come late, or has come back."""
        deadline = time.monotonic() + LATE_S
        self.seats.attend(force=True)
        self._door.admit(refuse=self._say)
        while self._door.busy and time.monotonic() < deadline:
            time.sleep(0.02)
            self._door.admit(refuse=self._say)

    def block(self, number: int) -> None:
        """A block begins: the other nodes make engines afresh."""
        self.seats.attend(force=True)
        for seat in list(self.seats.by_node.values()):
            seat.send(m.Block(number=number))

    def clocks(self) -> None:
        """Look at the other nodes' clocks, once their engines stand: whoever failed first is told by them."""
        for seat in list(self.seats.by_node.values()):
            seat.send(m.Ping())
            self.seats.read_clock(seat)

    def run(
        self,
        engine: Engine,
        launch: Launch,
        processes: int,
        show: Callable[[Progress], None],
        pids: Path | None = None,
    ) -> tuple[Result, list[Part]]:
        """Run a launch on as many nodes as it asks for. The other nodes' parts come with the result."""
        nodes = self.alive[: launch.case.nodes]
        seats = [self.seats.by_node[node] for node in nodes[1:]]
        self._stand(engine, seats)
        shared = Joint(self.seats, launch, seats, show, self.box)
        try:
            own = collect(engine, dealt(launch, 0, self.box), processes, shared.show, pids, shared.halt)
        except KeyboardInterrupt:
            shared.stop()
            raise
        parts = [own, *shared.finish(own)]
        self._fallen |= {nodes[part.node] for part in parts if part.lost or part.stopped}
        result = judge(launch, parts, processes, shared.away())
        others = [msgspec.structs.replace(part, node=nodes[part.node]) for part in parts if part.node != 0]
        return with_nodes(result, nodes, processes), others

    def _stand(self, engine: Engine, seats: Iterable[Seat]) -> None:
        """Engines that the last launch cost stand again, so that the time limits of all nodes begin together."""
        with suppress(EngineLost):  # the launch tries again, and tells
            engine.ready()
        for seat in seats:
            if seat.node in self._fallen:
                self._fallen.discard(seat.node)
                seat.send(m.Ping())
                self.seats.read_clock(seat)
