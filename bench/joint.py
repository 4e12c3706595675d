"""One launch on several nodes: published to the followers, watched while it runs, its parts taken in."""

import time
from collections.abc import Callable, Sequence

import msgspec

from bench import messages as m
from bench.case import Case
from bench.failures import Verdict
from bench.launch import BACKSTOP_S, Progress
from bench.machine import Host
from bench.parts import part_ok
from bench.records import Launch, Part
from bench.seat import SILENT_S, Seat, shifted
from bench.seats import Seats

GRACE_S = 3.0  # after a failure elsewhere, the others get this long to say what they saw
STOPPED_S = 5.0  # for a node that was told to stop
SHOW_S = 0.5
WAIT_S = 0.1
NO_ANSWER = "no answer to the launch"


def ordinals(chosen: tuple[int, ...] | None, case: Case, host: Host, box: bool) -> tuple[int, ...] | None:
    """Visible ordinals to use; None: all. The nodes of one box get theirs from what is named here."""
    if chosen is None and box and case.nodes > 1 and host.devices:
        return tuple(device.index for device in host.devices)
    return chosen


def dealt(launch: Launch, place: int, box: bool) -> Launch:
    """A launch for the node at a place; on one box, with its own of the devices."""
    devices, ranks = launch.devices, launch.case.ranks
    if box and devices:
        devices = tuple(devices[(place * ranks + slot) % len(devices)] for slot in range(ranks))
    return msgspec.structs.replace(launch, node=place, devices=devices)


class Joint:
    """One launch while it runs on several nodes."""

    def __init__(
        self,
        seats: Seats,
        launch: Launch,
        taking_part: Sequence[Seat],
        show: Callable[[Progress], None],
        box: bool = False,
    ) -> None:
        self._all, self._launch, self._seats, self._show = seats, launch, list(taking_part), show
        self._parts: dict[int, Part] = {}  # by place in the launch
        self._failed_s: float | None = None
        self._deadline = time.monotonic() + launch.case.timeout_s + BACKSTOP_S
        self._shown_s = 0.0
        for place, seat in enumerate(self._seats, start=1):
            seat.send(m.Run(launch=dealt(launch, place, box)))

    def show(self, own: Progress) -> None:
        """The slowest node's progress, with its name where that is not this one."""
        now = time.monotonic()
        if now - self._shown_s < SHOW_S:
            return
        self._shown_s = now
        slowest, state, step, steps = None, own.state, own.step, own.steps
        for _, seat in self._waiting():
            where = seat.where()
            if where is not None and where.step < step:
                slowest, state, step = seat, where.state, where.step
        note = f"{state} on node {slowest.node}" if slowest else state
        self._show(Progress(state=note, step=step, steps=steps))

    def halt(self) -> bool:
        """Whether this node is to end its part: another one was lost, or failed and the others had time to say so."""
        self._read()
        self._all.look()
        return self._gone() or self._overdue()

    def finish(self, own: Part) -> list[Part]:
        """The parts of the others, once all have come or can come no more."""
        self._note(own)
        while self._waiting():
            self._all.wire.wait([seat.key for _, seat in self._waiting()], WAIT_S)
            self._read()
            self._all.look()
            if time.monotonic() > self._deadline or self._overdue() or self._gone():
                self.stop(SILENT_S + STOPPED_S)
                for _, seat in self._waiting():
                    self._all.lose(seat, NO_ANSWER)
                break
        return [self._parts[place] for place in sorted(self._parts)]

    def away(self) -> Verdict | None:
        """The node that was lost, or that never answered."""
        for place, seat in enumerate(self._seats, start=1):
            if place not in self._parts:
                known = self._all.lost(seat.node)
                why = known or f"{seat.name}: {NO_ANSWER}"
                return Verdict(reason="node_lost", first_rank=None, first_node=place, detail=why)
        return None

    def _waiting(self) -> list[tuple[int, Seat]]:
        """Followers whose part is still to come."""
        return [
            (place, seat)
            for place, seat in enumerate(self._seats, start=1)
            if place not in self._parts and self._all.there(seat)
        ]

    def _gone(self) -> bool:
        return any(not self._all.there(seat) and place not in self._parts
                   for place, seat in enumerate(self._seats, start=1))  # fmt: skip

    def _overdue(self) -> bool:
        return self._failed_s is not None and time.monotonic() - self._failed_s > GRACE_S

    def _read(self) -> None:
        for place, seat in self._waiting():
            message = self._all.hear(seat)
            if isinstance(message, m.Done) and message.launch == self._launch.launch:
                self._parts[place] = shifted(message.part, seat)
                self._note(message.part)

    def _note(self, part: Part) -> None:
        if self._failed_s is None and not part_ok(part):
            self._failed_s = time.monotonic()

    def stop(self, limit_s: float = STOPPED_S) -> None:
        """Tell the others to end, and wait for what they know; a node that has gone silent is noticed meanwhile."""
        deadline = time.monotonic() + limit_s
        for _, seat in self._waiting():
            seat.send(m.Stop(launch=self._launch.launch))
        while self._waiting() and time.monotonic() < deadline:
            self._all.wire.wait([seat.key for _, seat in self._waiting()], WAIT_S)
            self._read()
            self._all.look()
