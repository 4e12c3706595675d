"""When a cell closes and when a study ends: what has been measured, what it took, what the rules ask for.

A cell closes when its interval is as narrow as wanted, at the cap, or when it keeps failing. Never on a p-value.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from bench.case import FIELDS, Case
from bench.closing import Closed, Limits, half_width, summed_up, why_closed
from bench.contamination import replaced
from bench.estimate import BLOCK_S
from bench.plan import MAX_LAUNCHES, MIN_LAUNCHES, STRICT_LAUNCHES, STRICT_TARGET, TARGET, Plan
from bench.records import Cell, LaunchRecord

REPEATS = 2  # disqualified launches that may be run again in any study
LASTING = 2  # repeats in a row that are disqualified as well: then no more are tried
REPEATED_SHARE = 0.2  # or this share of the fewest launches of the study, where that is more


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop. `budget_s` None: no limit on the time of the study."""

    min_launches: int = MIN_LAUNCHES
    max_launches: int = MAX_LAUNCHES
    target: float = TARGET
    budget_s: float | None = None
    seed: int = 0
    fail_fast: bool = False
    trace: bool = False  # profiler traces of a few steps after the window of each cell's first launch

    @property
    def limits(self) -> Limits:
        """When a cell has had its launches."""
        return Limits(min_launches=self.min_launches, max_launches=self.max_launches, target=self.target)


def limits(quick: bool = False, strict: bool = False) -> Limits:
    """Those of a usual study, of one launch a cell, or of intervals half as wide, for which up to twice the launches run."""
    target, most = (STRICT_TARGET, STRICT_LAUNCHES) if strict else (TARGET, MAX_LAUNCHES)
    fewest, most = (1, 1) if quick else (MIN_LAUNCHES, most)
    return Limits(min_launches=fewest, max_launches=most, target=target)


class Stopping:
    """What a study has measured so far, by cell, and what is still worth running."""

    def __init__(self, plan: Plan, rules: Rules) -> None:
        self._plan, self._rules = plan, rules
        self._began = time.monotonic()
        self.records: dict[str, list[LaunchRecord]] = {}
        self._walls: dict[str, float] = {}
        self.run = 0  # runs before this one, each continued by --resume
        self.first_block = 0  # of this run: launches of another time share no block with its own
        self._earlier: set[str] = set()  # launches of earlier runs: what failed then is tried again
        self._again: list[LaunchRecord] = []  # those that were run in the place of disqualified ones

    def resume(self, records: Sequence[LaunchRecord]) -> None:
        """Count the launches of earlier runs. This one begins with a block of its own."""
        for record in records:
            self.take(record)
            self._earlier.add(record.launch)
            self.first_block = max(self.first_block, record.block + 1)
            self.run = max(self.run, record.run + 1)

    def open_cells(self, block: int, fits: Callable[[Case], bool]) -> list[Cell]:
        """Cells that need more launches, where there is place for them, in the random order of a block."""
        cells = [cell for cell in self._plan.runnable if not self.closed(cell.id) and fits(cell.case)]
        random.Random(f"{self._rules.seed}/{block}").shuffle(cells)
        return cells

    def _counted(self, cell: str) -> list[LaunchRecord]:
        """Records that are not run again: all but the interrupted, those that failed in an earlier run, and the replaced."""
        known = self.records.get(cell, ())
        gone = replaced(known)
        return [
            r
            for r in known
            if r.launch not in gone
            and (r.status == "ok" or (r.status != "interrupted" and r.launch not in self._earlier))
        ]

    def closed(self, cell: str) -> bool:
        """Whether a cell has had its launches: enough of them, or too many failures."""
        return self.why_closed(cell) is not None

    def why_closed(self, cell: str) -> Closed | None:
        """What closed a cell, or None while it is open."""
        outcomes = [(r.status, r.reason) for r in self._counted(cell)]
        return why_closed(self._logs(cell), outcomes, self._rules.limits)

    def _logs(self, cell: str) -> list[float]:
        """ln(samples/s) of what the cell's interval is made of: unsteady and other than asked only where there is no better."""
        return [y for _, y in shown(self._counted(cell))]

    def repeats(self, record: LaunchRecord) -> bool:
        """Whether a launch is run again at the end of its block, for what its telemetry showed and nothing else.

        One that was disqualified is, once, while the study has run fewer than max(2, 20 % of its fewest launches)
        again, the last two of them were not disqualified as well (what lasts does not pass by waiting), and the time is
        enough for one more. Else it stays in the numbers, marked.
        """
        if not record.disqualified or record.status != "ok" or record.retry_of is not None:
            return False
        fewest = len(self._plan.runnable) * self._rules.min_launches
        room = len(self._again) < max(REPEATS, math.floor(REPEATED_SHARE * fewest))
        lasting = sum(r.disqualified for r in self._again[-LASTING:]) == LASTING
        return room and not lasting and (record.wall_s or 0.0) <= self._time_left_s()

    def _time_left_s(self) -> float:
        budget = self._rules.budget_s
        return math.inf if budget is None else budget - (time.monotonic() - self._began)

    def time_for(self, cells: Sequence[Cell], block: int) -> bool:
        """Whether a whole block fits the time that is left; a run's first block always runs."""
        return block == self.first_block or not self._walls or self.expected_s(cells) <= self._time_left_s()

    def widest(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those of a block's cells that the rest of the time is best spent on, in the block's order.

        From the widest interval down (one that is not known yet is the widest), each together with the widest cell
        that it is compared with, one setting apart or its A/A twin, where both fit; what does not fit is passed over.
        """
        left = self._time_left_s() - BLOCK_S
        waiting = sorted(cells, key=self._width, reverse=True)
        chosen: set[str] = set()
        while waiting:
            first = waiting.pop(0)
            second = next(([cell] for cell in waiting if compared(first, cell)), [])
            fitting = [group for group in ([first, *second], [first]) if self._seconds(group) <= left]
            for cell in fitting[0] if fitting else ():
                left -= self.launch_s(cell)
                chosen.add(cell.id)
            waiting = [cell for cell in waiting if cell.id not in chosen]
        return [cell for cell in cells if cell.id in chosen]

    def _seconds(self, cells: Sequence[Cell]) -> float:
        return math.fsum(map(self.launch_s, cells))

    def _width(self, cell: Cell) -> float:
        width = half_width(self._logs(cell.id))
        return math.inf if width is None else width

    def out_of_time(self, cells: Sequence[Cell], fitting: Sequence[Cell] = ()) -> str:
        """Why no further block begins, or one of fewer cells, in words."""
        budget = f"the time budget of {self._rules.budget_s:.0f} s"
        if self._time_left_s() <= 0:
            return f"{budget} is spent"
        text = f"the next block (about {self.expected_s(cells):.0f} s) does not fit {budget}"
        if not fitting:
            return text
        return f"{text}: it is cut to those with the widest intervals, {len(fitting)} of {len(cells)} cells"

    def expected_s(self, cells: Sequence[Cell]) -> float:
        """Seconds of a block of these cells."""
        return self._seconds(cells) + BLOCK_S if cells else 0.0

    def launch_s(self, cell: Cell) -> float:
        """What the cell took here; else what was expected, put right by what other cells of its model took."""
        if cell.id in self._walls:
            return self._walls[cell.id]
        estimate = self._plan.estimates[cell.id]
        if estimate.measured:
            return estimate.seconds
        ratios = [
            self._walls[other.id] / self._plan.estimates[other.id].seconds
            for other in self._plan.runnable
            if other.case.model == cell.case.model
            and other.id in self._walls
            and not self._plan.estimates[other.id].measured
        ]
        return min(estimate.seconds * (median(ratios) if ratios else 1.0), cell.case.timeout_s)

    def take(self, record: LaunchRecord) -> None:
        """Count a launch."""
        self.records.setdefault(record.cell, []).append(record)
        if record.retry_of is not None:
            self._again.append(record)
        if record.wall_s and record.status == "ok":
            self._walls[record.cell] = record.wall_s

    def left_s(self, rest: Sequence[Cell]) -> float:
        """Expected time to the end: this block's rest, then blocks up to the fewest launches, within the budget."""
        left = self.expected_s(rest)
        still = [cell for cell in self._plan.runnable if not self.closed(cell.id)]
        coming = {cell.id for cell in rest}
        needed = {c.id: self._rules.min_launches - len(self._counted(c.id)) - (c.id in coming) for c in still}
        for later in range(max(needed.values(), default=0)):
            left += self.expected_s([cell for cell in still if needed[cell.id] > later])
        return min(left, max(0.0, self._time_left_s()))

    def summed_up(self) -> str:
        """Why the cells stopped, in one line."""
        return summed_up(
            [self.why_closed(cell.id) for cell in self._plan.runnable], self._rules.limits, "launches"
        )


def shown(records: Sequence[LaunchRecord]) -> list[tuple[int, float]]:
    """Block and ln(samples/s) of the launches that a cell's numbers are made of, as evidence.Cell.shown has them."""
    known = [(r, r.window) for r in records if r.window and r.window.samples_per_s]
    asked = [(r, window) for r, window in known if not r.mismatches]
    steady = [(r, window) for r, window in asked if window.cut.state != "unsteady"]
    kept = steady or asked or known
    return [(r.block, math.log(window.samples_per_s)) for r, window in kept if window.samples_per_s]


def compared(one: Cell, other: Cell) -> bool:
    """Whether two cells are one setting apart, or twins of an A/A pair."""
    if one.twin_of is not None or other.twin_of is not None:
        return one.id == other.twin_of or other.id == one.twin_of
    return sum(getattr(one.case, field) != getattr(other.case, field) for field in FIELDS) == 1
