"""Two sides interleaved in one allocation: per block every cell in a random order, both sides back to back.

Neighbouring launches see the same machine, so drift and other users of it fall on both sides alike; the difference
of a pair is what the sides differ by. One launch runs at a time.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from bench import ab_file, ab_plan, ab_side, temporary
from bench.ab_file import AbHeader
from bench.ab_pairs import SIDES, Pairs
from bench.ab_process import SideProcess
from bench.answers import Interval
from bench.orders import Moved, Planned, Request
from bench.records import Cell, LaunchRecord
from bench.store import Store


class Show(Protocol):
    """What is told while two sides run."""

    def block(self, block: int, cells: int) -> None:
        """A block of so many launches begins."""

    def launching(self, cell: Cell, block: int) -> None:
        """A launch begins."""

    def moved(self, moved: Moved) -> None:
        """The running launch has come this far."""

    def ran(self, side: str, record: LaunchRecord, left_s: float) -> None:
        """A launch has its record; about so many seconds are left."""

    def paired(self, cell: Cell, ratio: Interval | None) -> None:
        """A cell has had both launches of a block: the ratio new / base so far."""

    def say(self, text: str) -> None:
        """Anything else, in one line."""


class Both:
    """The two sides' processes and what both can run: plan first, then run."""

    def __init__(self, sides: Sequence[SideProcess], header: AbHeader, show: Show) -> None:
        self._sides = dict(zip(SIDES, sides, strict=True))
        self._header, self._show = header, show
        self.plans: dict[str, Planned] = {}
        self.cells: tuple[Cell, ...] = ()

    def plan(self, root: Path) -> None:
        """Ask both, at the same time, what they would run. Raises UsageError where there is nothing to compare."""
        for name, side in self._sides.items():
            side.plan(self._request(root / name))
        self.plans = {name: side.planned() for name, side in self._sides.items()}
        self.cells = ab_plan.shared(self.plans)

    def _request(self, root: Path) -> Request:
        header = self._header
        return Request(
            conductor_pid=os.getpid(),
            root=str(root.absolute()),
            command=header.command,
            suites=header.suites,
            sets=header.sets,
            nproc=header.nproc,
            devices=header.devices,
            oversubscribe=header.oversubscribe,
            rules=header.rules,
            quick=header.quick,
        )

    def told(self) -> AbHeader:
        """The header with what the sides have said of themselves."""
        versions = {
            name: msgspec.structs.replace(getattr(self._header, name), scalemark=plan.version)
            for name, plan in self.plans.items()
        }
        return msgspec.structs.replace(self._header, **versions)

    def run(self, stores: Sequence[Store], resume: bool) -> None:
        """Write or take over both studies, then run blocks until every cell has closed or the time is up."""
        launch_s = {(name, cell): s for name, plan in self.plans.items() for cell, s in plan.launch_s.items()}
        pairs = Pairs(self.cells, self._header.rules, launch_s)
        for (name, side), store in zip(self._sides.items(), stores, strict=True):
            there = resume and store.header_path.exists()
            side.begin(there)
            if there:
                pairs.resume(name, store.records()[0])
        for block in itertools.count(pairs.next_block):
            cells = pairs.open_cells(block)
            chosen = pairs.fitting(cells)
            if len(chosen) < len(cells):
                text = f"the next block (about {pairs.expected_s(cells):.0f} s) does not fit the time budget"
                cut = f": {len(chosen)} of {len(cells)} cells run, those with the widest intervals"
                self._show.say(text + cut * bool(chosen))
            if not chosen:
                break
            self._block(block, chosen, pairs)
        self._show.say(pairs.summed_up())

    def _block(self, block: int, cells: Sequence[Cell], pairs: Pairs) -> None:
        self._show.block(block, len(cells) * len(SIDES))
        for side in self._sides.values():
            side.block(block)
        for side in self._sides.values():
            side.ready()
        orders = itertools.count()
        for at, cell in enumerate(cells):
            for name in pairs.sides(cell.id, block):
                self._show.launching(cell, block)
                for record in self._sides[name].run(cell, next(orders), self._show.moved):
                    pairs.take(name, record)
                    self._show.ran(name, record, pairs.left_s(cells[at + 1 :]))
            self._show.paired(cell, pairs.interval(cell.id))
        for side in self._sides.values():
            side.done()


def run(root: Path, header: AbHeader, show: Show, resume: bool) -> None:
    """Run both sides into `root`, a folder that the caller has locked; with `resume` what is there is counted, and goes on.

    Raises UsageError with nothing written, ab_process.SideLost, or what a signal raises.
    """
    with temporary.folder() as lent, ExitStack() as stack:
        ab_side.lend(lent)
        with _planning(root, resume):
            both = Both(
                [stack.enter_context(_side(root, header, name, lent)) for name in SIDES], header, show
            )
            both.plan(root)
        same = ["note: both sides are the same: an A/A pair"] if header.base == header.new else []
        sides = [f"base: {header.base.name}", f"new:  {header.new.name}"]
        for text in (*sides, *same, *ab_plan.remarks(both.plans)):
            show.say(text)
        if not resume:
            ab_file.write(root, both.told())
        both.run(header.stores(root), resume)


def _side(root: Path, header: AbHeader, name: str, lent: Path) -> SideProcess:
    return SideProcess(name, getattr(header, name), root / f"{name}.log", lent)


@contextmanager
def _planning(root: Path, resume: bool) -> Iterator[None]:
    """Where nothing came of it the sides' logs are gone again: a folder without anything goes with its lock."""
    try:
        yield
    except BaseException:
        if not resume:
            for name in ab_file.LOGS:
                (root / name).unlink(missing_ok=True)
        raise
