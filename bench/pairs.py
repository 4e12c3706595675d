"""Before the first cell: every pair of nodes measures what is between them, each node in one pair at a time."""

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench import messages as m
from bench.errors import UsageError
from bench.netcheck import measure, rounds
from bench.records import Member, Pair
from bench.seat import SILENT_S, Seat
from bench.wire import Wire

ANSWER_S = 20.0
WAIT_S = 0.5

Address = tuple[str, int, bytes]  # and the token that its responder wants


class Pairs:
    """The pairs of a study's nodes; `own` is where node 0, this one, is measured."""

    def __init__(self, wire: Wire, seats: Mapping[int, Seat], own: Address) -> None:
        self._wire, self._seats = wire, seats
        self._at: dict[int, Address] = {0: own}
        for node, seat in seats.items():
            assert seat.member is not None
            self._at[node] = (seat.member.address or "", seat.port, seat.token)

    def measure(self, nodes: int) -> list[m.Measured]:
        """Every pair, in rounds. Raises UsageError for a node that does not answer."""
        return [one for pairs in rounds(nodes) for one in self._round(pairs)]

    def _round(self, pairs: Sequence[tuple[int, int]]) -> list[m.Measured]:
        orders = {first: self._order(first, second) for first, second in pairs}
        asked = [self._seats[first] for first in orders if first != 0]
        for seat in asked:
            seat.send(orders[seat.node])
        own = [measured(orders[0])] if 0 in orders else []
        return own + [self._answer(seat) for seat in asked]

    def _order(self, first: int, second: int) -> m.Measure:
        address, port, token = self._at[second]
        return m.Measure(pair=Pair(first=first, second=second), address=address, port=port, token=token)

    def _answer(self, seat: Seat) -> m.Measured:
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and seat.silent_s() < SILENT_S:
            message = seat.next() if self._wire.wait([seat.key], WAIT_S) else None
            if isinstance(message, m.Measured):
                return message
            if isinstance(message, m.Left):
                raise UsageError(f"{seat.name}: {message.why}")
        raise UsageError(f"{seat.name}: no answer within {ANSWER_S:.0f} s: look at its output")


def measured(order: m.Measure) -> m.Measured:
    """Do what a Measure says."""
    try:
        found = measure(order.address, order.port, order.token)
    except OSError as error:
        return m.Measured(pair=msgspec.structs.replace(order.pair, error=str(error)))
    pair = msgspec.structs.replace(order.pair, latency_s=found.latency_s, bits_per_s=found.bits_per_s)
    return m.Measured(pair=pair, clock_ahead_s=found.clock_ahead_s)


def unreached(broken: Sequence[Pair], members: Iterable[Member]) -> str:
    """One line: who cannot reach whom, and what to look at."""
    by_node = {member.node: member for member in members}

    def told(pair: Pair) -> str:
        to = by_node[pair.second]
        where = f"node {pair.second} ({to.hostname}) at {to.address}"
        return f"node {pair.first} ({by_node[pair.first].hostname}) cannot reach {where}: {pair.error}"

    more = f"; and {len(broken) - 3} other pairs" if len(broken) > 3 else ""
    return (
        "; ".join(told(pair) for pair in broken[:3])
        + more
        + ": look at routes and firewalls between them (ranks"
        " use any port), or choose the interface by --interface"
    )
