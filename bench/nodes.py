"""Several nodes, one study, as the node that leads it sees them: who is there, what each does, who is lost.

The same command runs on every node; node 0 leads. It publishes each launch in the study's store, followers
run their part (follower.py), and their traces come back the same way: no shared file system is needed.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bench import messages as m
from bench.case import Case
from bench.errors import BenchError, UsageError
from bench.joint import Joint, dealt
from bench.launch import Engine, EngineLost, Progress, Result, collect, judge
from bench.netcheck import Responder
from bench.pairs import Pairs, unreached
from bench.parts import with_nodes
from bench.plugins import clip
from bench.records import Launch, Member, Pair, Part
from bench.sameness import Versions, differences
from bench.seat import SILENT_S, Seat
from bench.wire import LIMIT_S, Wire, WireLost

GATHER_S = 120.0  # for all nodes to come
BEAT_S = 0.5
BYE_S = 3.0
ENGINE_S = 30.0  # for another node's engine to stand
LATE_S = 10.0  # for a node that comes late to make its data
PINGS = 5
LOOK_S = 0.5


class Team:
    """All nodes of a study, node 0 among them. Use as a context manager: the followers end with it."""

    def __init__(
        self,
        wire: Wire,
        me: Member,
        versions: Versions,
        nodes: int,
        say: Callable[[str], None],
        watch: Callable[[], None] = lambda: None,
        limit_s: float = GATHER_S,
        box: bool = False,
    ) -> None:
        """`watch` is called while nodes are waited for; it may raise UsageError where one cannot come."""
        self.wire, self.nodes, self._say, self._watch, self._limit_s = wire, nodes, say, watch, limit_s
        self._me, self._versions, self.box = me, versions, box
        self._seats: dict[int, Seat] = {}
        self._lost: dict[int, str] = {}
        self._tried: dict[int, int] = {}  # seats looked at, by node
        self._new: list[Seat] = []
        self._refused: list[Seat] = []
        self._fallen: set[int] = set()  # nodes whose engine the last launch cost
        self._cases: tuple[Case, ...] = ()
        self._looked_s = 0.0
        self.pairs: tuple[Pair, ...] = ()
        session = m.Session(nonce=secrets.token_hex(8), nodes=nodes)
        wire.put("study", m.encode(session))
        wire.session = session.nonce
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(wire.again(),), daemon=True, name="beat").start()

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        why = f"the study does not start: {error}" if isinstance(error, UsageError) else None
        with suppress(WireLost):
            for seat in self._seats.values():
                seat.send(m.End(why=why))
            told = [*self._seats.values(), *self._refused]
            deadline = time.monotonic() + BYE_S  # the store ends with this process: they have to have read it
            while time.monotonic() < deadline and not all(seat.gone() for seat in told):
                time.sleep(0.02)
        self._ended.set()

    def _beat(self, wire: Wire) -> None:
        with suppress(WireLost):
            while not self._ended.wait(BEAT_S):
                wire.count("beat/0")

    @property
    def members(self) -> tuple[Member, ...]:
        """Who is there, node 0 first."""
        found = [seat.member for seat in self._seats.values() if seat.member is not None]
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
        return (0, *sorted(self._seats))

    # -- before the first cell ------------------------------------------------------------------

    def gather(self, cases: Iterable[Case]) -> None:
        """Wait until every node has come and is fit for these cases. Raises UsageError, naming who is not."""
        self._cases = tuple(cases)
        deadline = time.monotonic() + self._limit_s
        while missing := self._missing():
            self._watch()
            if time.monotonic() > deadline:
                raise UsageError(self._who_is_missing(missing))
            self._admit(refuse=self._stop_all)
            time.sleep(0.02)
        self.pairs = self._measured()

    def _measured(self) -> tuple[Pair, ...]:
        """Every pair of nodes reaches each other. Raises UsageError, naming those that do not."""
        address = self._me.address or self.wire.host
        with Responder(address, token := secrets.token_bytes(16)) as responder:
            found = Pairs(self.wire, self._seats, (address, responder.port, token)).measure(self.nodes)
        if broken := [one.pair for one in found if one.pair.error]:
            raise UsageError(unreached(broken, self.members))
        for one in found:
            if one.pair.first == 0 and one.clock_ahead_s is not None:
                self._seats[one.pair.second].set_clock(one.clock_ahead_s)
        return tuple(one.pair for one in found)

    def _missing(self) -> list[int]:
        return [node for node in range(1, self.nodes) if node not in self._seats]

    def _who_is_missing(self, missing: Sequence[int]) -> str:
        names = ", ".join(map(str, missing[:20]))
        which = f"node {names} has" if len(missing) == 1 else f"nodes {names} have"
        why = "".join(f"; {text}" for node, text in self._lost.items() if node in missing)
        return (
            f"{which} not come within {self._limit_s:.0f} s{why}: start the line above there, and look at host name,"
            f" address {self.wire.host}:{self.wire.port} and firewall"
        )

    def _admit(self, refuse: Callable[[str], None]) -> None:
        """Look at who has knocked; `refuse` gets, in words, who does not fit."""
        for node in range(1, self.nodes):
            seats = self.wire.count(f"seat/{node}", 0)
            if self.wire.count(f"/refused/{node}", 0) and node not in self._lost:
                self._lost[node] = "a process with another study secret was refused"
                self._say(f"node {node}: {self._lost[node]}")
            for number in range(self._tried.get(node, 0) + 1, seats + 1):
                self._tried[node] = number
                self._new.append(Seat(self.wire, node, number))
        for seat in list(self._new):
            try:
                message = seat.next()
            except BenchError as error:  # not signed, or not to be read
                self._refuse(seat, str(error))
                self._lost[seat.node] = f"a process was refused: {error}"
                self._say(f"node {seat.node}: {self._lost[seat.node]}")
                continue
            if message is None:
                if seat.silent_s() > SILENT_S:
                    self._new.remove(seat)
            else:
                self._greet(seat, message, refuse)

    def _greet(self, seat: Seat, message: m.Up, refuse: Callable[[str], None]) -> None:
        """Hello and Ready of a newcomer."""
        versions = message.versions if isinstance(message, m.Hello | m.Ready) else None
        other = differences(self._versions, versions) if versions else []
        if isinstance(message, m.Hello):
            seat.hostname = clip(message.hostname, 60)
        if seat.node in self._seats:
            there = self._seats[seat.node]
            why = f"node {seat.node} is there already: {there.hostname}; give each node a --node-rank of its own"
            self._refuse(seat, why)
            self._say(f"node {seat.node} came twice: {seat.hostname} was refused, {there.hostname} stays")
        elif other:
            why = f"{'; '.join(other)}: install the same on every node"
            self._refuse(seat, why)
            refuse(f"{seat.name}: {why}")
        elif isinstance(message, m.Hello):
            seat.send(m.Welcome(token=message.token, cases=self._cases))
        elif isinstance(message, m.Ready):
            self._new.remove(seat)
            seat.member, seat.versions = message.member, message.versions
            seat.port, seat.token = message.port, message.token
            self._seats[seat.node] = seat
            self._lost.pop(seat.node, None)
            where = (
                f" at {message.member.address} on {message.member.interface}"
                if message.member.address
                else ""
            )
            self._say(f"node {seat.node} is there: {seat.hostname}{where}")
        else:
            self._new.remove(seat)

    def _refuse(self, seat: Seat, why: str) -> None:
        self._new.remove(seat)
        self._refused.append(seat)
        seat.send(m.Refused(why=why))

    def _stop_all(self, why: str) -> None:
        for seat in list(self._new):
            self._refuse(seat, "the study does not start: another node does not fit")
        raise UsageError(why)

    # -- while the study runs ---------------------------------------------------------------------

    def admit(self) -> None:
        """Take in who has come late, or has come back."""
        deadline = time.monotonic() + LATE_S
        self._admit(refuse=self._say)
        while self._new and time.monotonic() < deadline:
            time.sleep(0.02)
            self._admit(refuse=self._say)

    def block(self, number: int) -> None:
        """A block begins: the other nodes make engines afresh."""
        self.look(force=True)
        for seat in list(self._seats.values()):
            seat.send(m.Block(number=number))

    def clocks(self) -> None:
        """Look at the other nodes' clocks, once their engines stand: whoever failed first is told by them."""
        for seat in list(self._seats.values()):
            seat.send(m.Ping())
            self._read_clock(seat)

    def _read_clock(self, seat: Seat) -> None:
        """The monotonic clock of a node less ours, by the shortest of a few round trips."""
        best = None
        for number in range(PINGS):
            if number:
                seat.send(m.Ping())
            asked = time.monotonic_ns()
            deadline = time.monotonic() + (LIMIT_S if number else ENGINE_S)
            message = None
            while seat.node in self._seats and not isinstance(message, m.Pong):
                if time.monotonic() > deadline:
                    return
                message = seat.next() if self.wire.wait([seat.key], LOOK_S) else None
                self.look()
            now = time.monotonic_ns()
            if isinstance(message, m.Pong) and number and (best is None or now - asked < best):
                best, seat.ahead_ns = now - asked, message.monotonic_ns - (asked + now) // 2

    def look(self, force: bool = False) -> None:
        """Who has gone silent?"""
        now = time.monotonic()
        if now - self._looked_s < LOOK_S and not force:
            return
        self._looked_s = now
        for seat in list(self._seats.values()):
            if seat.silent_s() > SILENT_S:
                self.lose(seat, f"no sign of life for {SILENT_S:.0f} s")

    def there(self, seat: Seat) -> bool:
        """Whether a follower still takes part."""
        return self._seats.get(seat.node) is seat

    def lost(self, node: int) -> str | None:
        """Why a node was lost."""
        return self._lost.get(node)

    def lose(self, seat: Seat, why: str) -> None:
        """A node takes no part any more, until it comes back."""
        self._lost[seat.node] = f"{seat.name}: {why}"
        del self._seats[seat.node]
        self._say(f"lost: {self._lost[seat.node]}; its line started again takes it back in")

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
        seats = [self._seats[node] for node in nodes[1:]]
        self._stand(engine, seats)
        shared = Joint(self, launch, seats, show)
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
                self._read_clock(seat)
