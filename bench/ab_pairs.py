"""Pairs of launches, one a side, run side by side: what they say so far, and which cells still need some.

A cell closes when the interval of its difference is as narrow as wanted, at the cap, or when a side keeps failing
there. Never on a p-value.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence

from bench.answers import Interval
from bench.closing import Closed, half_width, summed_up, why_closed
from bench.contamination import replaced
from bench.estimate import BLOCK_S
from bench.records import Cell, LaunchRecord
from bench.stats import mean_interval
from bench.stopping import Rules, shown

SIDES = ("base", "new")
PAIRS = 8  # at least: a rule that stops by the width it judges raises more alarms the fewer it begins with (docs/comparing.md)


class Pairs:
    """The launches of both sides. `launch_s`: by side and cell, the seconds that one is expected to take."""

    def __init__(
        self, cells: Sequence[Cell], rules: Rules, launch_s: Mapping[tuple[str, str], float]
    ) -> None:
        self._cells, self._rules = cells, rules
        self._began = time.monotonic()
        self._expected_s = dict(launch_s)
        self._records: dict[tuple[str, str], list[LaunchRecord]] = {}
        self._earlier: set[tuple[str, str]] = set()  # sides and launches of earlier runs
        self._measured = False  # anything in this run
        self.next_block = 0

    def resume(self, side: str, records: Sequence[LaunchRecord]) -> None:
        """Count the launches of earlier runs. A pair that was cut in two is run anew, in a block of its own."""
        for record in records:
            self._count(side, record)
            self._earlier.add((side, record.launch))
            self.next_block = max(self.next_block, record.block + 1)

    def take(self, side: str, record: LaunchRecord) -> None:
        """Count a launch of this run."""
        self._measured = True
        self._count(side, record)

    def _count(self, side: str, record: LaunchRecord) -> None:
        self._records.setdefault((side, record.cell), []).append(record)
        if record.wall_s and record.status == "ok":
            self._expected_s[side, record.cell] = record.wall_s

    def interval(self, cell: str) -> Interval | None:
        """The ratio of throughputs, new over base, over the cell's pairs; None without any."""
        differences = self.differences(cell)
        return mean_interval(differences) if differences else None

    def differences(self, cell: str) -> list[float]:
        """ln(new / base) of each block in which both sides have a number."""
        return list(self._both(cell).values())

    def _both(self, cell: str) -> dict[int, float]:
        base, new = (self._logs(side, cell) for side in SIDES)
        return {block: new[block] - base[block] for block in sorted(base.keys() & new.keys())}

    def _logs(self, side: str, cell: str) -> dict[int, float]:
        """Of the launches that the verdict will use: a pair with another one closes no cell."""
        return dict(shown(self._good(side, cell)))

    def _good(self, side: str, cell: str) -> list[LaunchRecord]:
        """Launches with a number, those left out in whose place another one ran."""
        known = self._records.get((side, cell), [])
        gone = replaced(known)
        return [r for r in known if r.status == "ok" and r.window and r.launch not in gone]

    def _ran(self, cell: str) -> set[int]:
        """Blocks in which both sides gave a number, good enough for the verdict or not."""
        base, new = ({record.block for record in self._good(side, cell)} for side in SIDES)
        return base & new

    def closed(self, cell: str) -> bool:
        """Whether a cell has had its pairs: enough of them, or too many failures."""
        return self.why_closed(cell) is not None

    def why_closed(self, cell: str) -> Closed | None:
        """What closed a cell: the rule of every study, where a launch is a pair and its value the difference."""
        return why_closed(self.differences(cell), self._outcomes(cell), self._rules.limits)

    def _outcomes(self, cell: str) -> list[tuple[str, str | None]]:
        """Status and reason of every block, a failed side's where there is no pair; of failures, those of this run."""
        found: dict[int, tuple[str, str | None]] = {}
        for side in SIDES:
            for record in self._records.get((side, cell), ()):
                if record.status not in ("ok", "interrupted") and (side, record.launch) not in self._earlier:
                    found[record.block] = (record.status, record.reason)
        found |= dict.fromkeys(self._ran(cell), ("ok", None))
        return [found[block] for block in sorted(found)]

    def open_cells(self, block: int) -> list[Cell]:
        """Cells that need more pairs, in the random order of a block."""
        cells = [cell for cell in self._cells if not self.closed(cell.id)]
        random.Random(f"{self._rules.seed}/{block}/ab").shuffle(cells)
        return cells

    def sides(self, cell: str, block: int) -> tuple[str, ...]:
        """Which side goes first: at random, and the other one in the next block, so that neither is favoured."""
        swapped = random.Random(f"{self._rules.seed}/{block // 2}/{cell}").random() < 0.5
        return SIDES[::-1] if swapped != bool(block % 2) else SIDES

    def fitting(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those of a block's cells that there is time for: all; else the widest intervals first; all of a run's first block."""
        left = self._time_left_s()
        if not self._measured or self.expected_s(cells) <= left:
            return list(cells)
        left -= BLOCK_S
        chosen = set()
        for cell in sorted(cells, key=self._width, reverse=True):
            seconds = self._pair_s(cell)
            if seconds <= left:
                left -= seconds
                chosen.add(cell.id)
        return [cell for cell in cells if cell.id in chosen]

    def _width(self, cell: Cell) -> float:
        width = half_width(self.differences(cell.id))
        return math.inf if width is None else width

    def _time_left_s(self) -> float:
        budget = self._rules.budget_s
        return math.inf if budget is None else budget - (time.monotonic() - self._began)

    def _pair_s(self, cell: Cell) -> float:
        return sum(self._expected_s[side, cell.id] for side in SIDES)

    def expected_s(self, cells: Sequence[Cell]) -> float:
        """Seconds of a block of these cells, on both sides."""
        return BLOCK_S + sum(map(self._pair_s, cells)) if cells else 0.0

    def left_s(self, rest: Sequence[Cell]) -> float:
        """Seconds to the end: this block's rest, then blocks up to the fewest pairs, within the budget."""
        fewest = self._rules.min_launches
        further = {
            cell.id: max(1, fewest - len(self.differences(cell.id))) - (cell in rest)
            for cell in self._cells
            if not self.closed(cell.id)
        }
        left = sum(map(self._pair_s, rest))
        for later in range(max(further.values(), default=0)):
            left += self.expected_s([cell for cell in self._cells if further.get(cell.id, 0) > later])
        return min(left, max(0.0, self._time_left_s()))

    def summed_up(self) -> str:
        """Why the cells stopped, in one line."""
        return summed_up([self.why_closed(cell.id) for cell in self._cells], self._rules.limits, "pairs")
