"""When a cell closes and when a study ends: what has been measured, what it took, what the rules ask for.

A cell closes when its interval is as narrow as wanted, at the cap, or when it keeps failing. Never on a p-value.
"""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
import numpy as np

from bench.case import Case
from bench.estimate import BLOCK_S
from bench.failures import HOPELESS
from bench.plan import MAX_LAUNCHES, MIN_LAUNCHES, TARGET, Plan
from bench.records import Cell, LaunchRecord
from bench.stats import mean_interval

MAX_FAILURES = 2  # of one cell, in a row


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop. `budget_s` None: no limit on the time of the study."""

    min_launches: int = MIN_LAUNCHES
    max_launches: int = MAX_LAUNCHES
    target: float = TARGET
    budget_s: float | None = None
    seed: int = 0
    fail_fast: bool = False
    trace: bool = False  # profiler traces of a few steps after the window of each cell's first launch


class Stopping:
    """What a study has measured so far, by cell, and what is still worth running."""

    def __init__(self, plan: Plan, rules: Rules) -> None:
        self._plan, self._rules = plan, rules
        self._began = time.monotonic()
        self.records: dict[str, list[LaunchRecord]] = {}
        self._walls: dict[str, float] = {}
        self._earlier: set[str] = set()  # launches of earlier runs: what failed then is tried again

    def resume(self, records: Sequence[LaunchRecord]) -> None:
        """Count the launches of earlier runs."""
        for record in records:
            self.take(record)
            self._earlier.add(record.launch)

    def open_cells(self, block: int, fits: Callable[[Case], bool]) -> list[Cell]:
        """Cells that this block still has to run, where there is place for it, in its random order."""
        cells = [
            cell
            for cell in self._plan.runnable
            if not self.closed(cell.id) and block not in self.blocks(cell.id) and fits(cell.case)
        ]
        random.Random(f"{self._rules.seed}/{block}").shuffle(cells)
        return cells

    def blocks(self, cell: str) -> set[int]:
        """Blocks in which a cell has a result, good or bad."""
        return {r.block for r in self._counted(cell)}

    def _counted(self, cell: str) -> list[LaunchRecord]:
        """Records that are not run again: all but the interrupted, and those that failed in an earlier run."""
        return [
            r
            for r in self.records.get(cell, ())
            if r.status == "ok" or (r.status != "interrupted" and r.launch not in self._earlier)
        ]

    def closed(self, cell: str) -> bool:
        """Whether a cell has had its launches: enough of them, or too many failures."""
        records = self._counted(cell)
        failed = [r for r in records[-MAX_FAILURES:] if r.status != "ok"]
        if len(failed) == MAX_FAILURES or any(r.reason in HOPELESS for r in failed):
            return True
        good = [r for r in records if r.status == "ok"]
        return len(good) >= self._rules.max_launches or self._converged(good)

    def _converged(self, good: Sequence[LaunchRecord]) -> bool:
        y = [np.log(r.window.samples_per_s) for r in good if r.window and r.window.samples_per_s]
        if len(y) < self._rules.min_launches:
            return False
        half_width = mean_interval(np.array(y)).half_width
        return half_width is not None and half_width <= self._rules.target

    def time_for(self, cells: Sequence[Cell], block: int) -> bool:
        """Whether a whole block fits the time that is left; the first block always runs."""
        budget = self._rules.budget_s
        if budget is None or block == 0 or not self._walls:
            return True
        return time.monotonic() - self._began + self.expected_s(cells) <= budget

    def out_of_time(self, cells: Sequence[Cell]) -> str:
        """Why no further block begins, in words."""
        budget = f"the time budget of {self._rules.budget_s:.0f} s"
        if self._rules.budget_s is not None and time.monotonic() - self._began >= self._rules.budget_s:
            return f"{budget} is spent"
        return f"the next block (about {self.expected_s(cells):.0f} s) does not fit {budget}"

    def expected_s(self, cells: Sequence[Cell]) -> float:
        """Seconds of a block of these cells."""
        return sum(map(self.launch_s, cells)) + BLOCK_S if cells else 0.0

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
        if record.wall_s and record.status == "ok":
            self._walls[record.cell] = record.wall_s

    def left_s(self, block: int, rest: Sequence[Cell]) -> float:
        """Expected time to the end: this block's rest, then blocks up to the fewest launches, within the budget."""
        left = self.expected_s(rest)
        still = [cell for cell in self._plan.runnable if not self.closed(cell.id)]
        for later in range(block + 1, self._rules.min_launches):
            left += self.expected_s([cell for cell in still if later not in self.blocks(cell.id)])
        if self._rules.budget_s is not None:
            left = min(left, max(0.0, self._rules.budget_s - (time.monotonic() - self._began)))
        return left
