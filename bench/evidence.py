"""What the analysis works on: every cell with its launches, and what its ranks said."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bench import frame, stats
from bench.answers import Interval
from bench.case import Case
from bench.closing import Closed, Limits, why_closed
from bench.contamination import told
from bench.records import PHASES, StudyHeader
from bench.store import Store, finite
from bench.verify_records import Verification

if TYPE_CHECKING:
    from pandas import DataFrame

Stopped = Closed | Literal["budget", "interrupted"]
Block = tuple[str, int]  # study and block: launches of one block ran side by side

# What is read back in the ranks and asked for here; `said` gives the distinct values.
SAID = (
    *("threads", "device", "pinned", "sync_bn_layers", "batch_norm_layers", "devices_used", "stand_ins"),
    *("batch", "batch_bytes", "gradient_bytes", "dataset_len", "padded", "dropped", "warnings"),
    *("prefetch_factor", "device_used_source", "graph_breaks", "parameter_bytes", "optimizer_state_bytes"),
    "backend",
)


SERIAL = "a bucket at a time"  # real work that overlaps with nothing: no stand-in
HICCUPS = 1.5  # times the median step: a mean beyond it is that of few steps


@dataclass(frozen=True)
class Cell:
    """One cell of the plan and all its launches (rows of frame.launches)."""

    id: str
    case: Case
    suite: str
    skipped: str | None
    target: float
    min_launches: int
    launches: tuple[Any, ...]
    twin_of: str | None = None  # the cell that it repeats: judged against that one, and part of nothing else
    unequal: str | None = None  # why it does not train as one process does, where that was seen (verify)
    max_launches: int = 0  # 0: not known
    timed: bool = False  # the study had a time budget
    last_run: int = 0  # of the study: what failed in one that was gone on with was tried again

    @cached_property
    def shown(self) -> tuple[Any, ...]:
        """The launches whose numbers are shown: comparable ones, or else unsteady, or else mismatched ones."""
        kept = [row for row in self.launches if row.comparable]
        unsteady = [row for row in self.launches if row.reject is None]
        return tuple(kept or unsteady or (row for row in self.launches if finite(row.y) is not None))

    @cached_property
    def failures(self) -> tuple[Any, ...]:
        """Launches that gave no result and were not run again with one (--resume: in a later run, or in their block)."""
        good = [row for row in self.launches if row.status == "ok"]
        blocks = {(row.study, row.block) for row in good}
        last = {row.study: row.run for row in sorted(good, key=lambda row: row.run)}
        return tuple(
            row
            for row in self.launches
            if row.status != "ok"
            and (row.study, row.block) not in blocks
            and last.get(row.study, row.run) <= row.run
        )

    @property
    def comparable(self) -> bool:
        """May this cell win or lose a verdict?"""
        return self.unequal is None and bool(self.shown) and self.shown[0].comparable

    @property
    def usable(self) -> bool:
        """May this cell be a point of a curve? (An unsteady one may: it is marked. The same again may not.)"""
        return (
            self.twin_of is None
            and self.unequal is None
            and bool(self.shown)
            and self.shown[0].reject is None
        )

    @property
    def doubt(self) -> str | None:
        """Why the cell enters no comparison, or None."""
        if self.comparable:
            return None
        if self.unequal is not None and self.shown:
            return self.unequal
        return (self.shown[0].reject or "unsteady") if self.shown else "no launch finished"

    @cached_property
    def logs(self) -> dict[Block, float]:
        """ln(samples/s) of the shown launches, by study and block."""
        return {(row.study, row.block): row.y for row in self.shown}

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Samples/s of every shown launch."""
        return tuple(row.samples_per_s for row in self.shown)

    @cached_property
    def samples_per_s(self) -> Interval | None:
        """The geometric mean of the shown launches with its interval."""
        return stats.mean_interval([row.y for row in self.shown]) if self.shown else None

    @property
    def converged(self) -> bool | None:
        """Is the interval as narrow as asked, from enough launches? None with one launch."""
        half = self.samples_per_s.half_width if self.samples_per_s else None
        return None if half is None else half <= self.target and len(self.shown) >= self.min_launches

    @property
    def width_marks(self) -> tuple[str, ...]:
        """What has to be said beside its interval: that it is of fewer launches than asked, or else wider."""
        n = len(self.shown)
        if 0 < n < self.min_launches:
            return (f"too few launches: {n} of {self.min_launches}",)
        return ("not converged",) if self.converged is False else ()

    @property
    def stopped(self) -> Stopped | None:
        """Why no further launch of it was run; None where none was, and over several studies."""
        if len({row.study for row in self.launches}) != 1 or not self.max_launches:
            return None
        outcomes = [
            (row.status, row.reason)
            for row in self.launches
            if row.cause != "contaminated"
            and (row.status == "ok" or (row.status != "interrupted" and row.run == self.last_run))
        ]
        limits = Limits(min_launches=self.min_launches, max_launches=self.max_launches, target=self.target)
        closed = why_closed([row.y for row in self.shown], outcomes, limits)
        cut_short = self.launches[-1].status == "interrupted" or not self.timed
        return closed or ("interrupted" if cut_short else "budget")

    @property
    def reference(self) -> bool:
        """Did an implementation of the suite's own stand in for torch's?"""
        return any(row.reference for row in self.shown)

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """What replaced a real model or real data. (Real work done serially replaces nothing.)"""
        told = (name for row in self.shown for name in row.stand_ins)
        names = (name for name in told if "reference" not in name and SERIAL not in name)
        return tuple(dict.fromkeys(names))

    @cached_property
    def two_modes(self) -> bool:
        """Do its launches fall in two groups? Then its interval is too narrow."""
        return stats.bimodal([row.y for row in self.shown])

    @cached_property
    def hiccups(self) -> tuple[Any, ...]:
        """The shown launches whose mean step is far above the median: few steps make most of the window."""
        return tuple(
            row
            for row in self.shown
            if (finite(row.step_s) or 0.0) > HICCUPS * (finite(row.p50_s) or math.inf)
        )

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """What has to be said beside every number of this cell."""
        said = [mark for row in self.shown for mark in row.marks]
        said += told(row.contaminated for row in self.shown).values()
        states = {row.steady for row in self.shown}
        said += ["unsteady"] * ("unsteady" in states) + ["steady state assumed"] * ("assumed" in states)
        said += ["hiccups"] * bool(self.hiccups) + ["two modes"] * self.two_modes
        named = any("reference" in mark for mark in said)
        said += ["reference implementation"] * (self.reference and not named) + list(self.stand_ins)
        said += [row.reject for row in self.shown if row.reject]
        said += ["not the same computation"] * (self.unequal is not None)
        return tuple(dict.fromkeys(said))

    def average(self, name: str) -> float | None:
        """The mean of a column over the shown launches that have it."""
        known = [value for row in self.shown if (value := finite(getattr(row, name))) is not None]
        return math.fsum(known) / len(known) if known else None


@dataclass(frozen=True)
class Evidence:
    """Cells by id, in the order of the plan, and the ranks of the shown launches."""

    frames: frame.Frames
    cells: dict[str, Cell]
    ranks: "DataFrame"
    stores: Mapping[str, Store] = field(default_factory=dict)  # by the study's name in the frames
    verified: tuple[Verification, ...] = ()

    @property
    def headers(self) -> tuple[StudyHeader, ...]:
        """study.json of every study."""
        return self.frames.headers

    @property
    def host(self) -> dict[str, Any]:
        """The host of the first study."""
        return self.headers[0].host if self.headers else {}

    @property
    def measured(self) -> list[Cell]:
        """Cells that have numbers to show, each once: not those that repeat another."""
        return [cell for cell in self.cells.values() if cell.shown and cell.twin_of is None]

    @property
    def twins(self) -> list[tuple[Cell, Cell]]:
        """A/A pairs that have numbers on both sides: a cell, and the one that repeats it."""
        pairs = [(self.cells.get(cell.twin_of or ""), cell) for cell in self.cells.values()]
        return [(first, again) for first, again in pairs if first and first.shown and again.shown]

    def rank_rows(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Columns of `ranks` as plain tuples, one a rank of a launch."""
        return zip(*(self.ranks[name].tolist() for name in columns), strict=True)

    @cached_property
    def _said(self) -> dict[str, dict[str, list[Any]]]:
        found: dict[str, dict[str, list[Any]]] = {name: {} for name in SAID}
        for name, by_cell in found.items():
            known = self.ranks[["cell", name]].dropna().drop_duplicates()
            for cell, value in zip(known["cell"], known[name], strict=True):
                by_cell.setdefault(cell, []).append(value)
        return found

    def said(self, cell: str, name: str) -> list[Any]:
        """The distinct values that a cell's ranks gave for one of SAID, the unknown ones left out."""
        return self._said[name].get(cell, [])

    @cached_property
    def rank_means(self) -> dict[str, dict[int, dict[str, float | None]]]:
        """Cell -> rank -> phase (and "step") -> mean seconds a step over the shown launches."""
        columns = ["step_s", *frame.PHASE_COLUMNS]
        means = self.ranks.groupby(["cell", "rank"], sort=True)[columns].mean()
        found: dict[str, dict[int, dict[str, float | None]]] = {}
        for (cell, rank), *values in means.itertuples(name=None):
            row = {name[:-2]: finite(value) for name, value in zip(columns, values, strict=True)}
            found.setdefault(str(cell), {})[int(rank)] = row
        return found

    @cached_property
    def by_launch(self) -> dict[tuple[str, str], dict[int, dict[str, float | None]]]:
        """(study, launch) -> rank -> phase (and "step") -> mean seconds a step, of the shown launches."""
        columns = ["step_s", *frame.PHASE_COLUMNS]
        found: dict[tuple[str, str], dict[int, dict[str, float | None]]] = {}
        for study, launch, rank, *values in self.rank_rows("study", "launch", "rank", *columns):
            row = {name[:-2]: finite(value) for name, value in zip(columns, values, strict=True)}
            found.setdefault((str(study), str(launch)), {})[int(rank)] = row
        return found

    def critical(self, cell: str) -> dict[str, float | None]:
        """Phases of the rank that comes last to the gradient exchange: its backward holds no waiting.

        The exchange makes all ranks end together, so the last to come has the shortest backward. The mean
        over ranks would book its peers' waiting as communication.
        """
        by_rank = self.rank_means.get(cell, {})
        whole = [row for row in by_rank.values() if row["backward"] is not None]
        if not whole:
            return next(iter(by_rank.values()), dict.fromkeys(("step", *PHASES)))
        return min(whole, key=lambda row: row["backward"] or 0.0)


def gather(stores: Sequence[Store]) -> Evidence:
    """Read the studies and group their launches by cell. Raises UsageError as Store does."""
    frames, names = frame.load(stores), frame.study_names(stores)
    rows: dict[str, list[Any]] = {}
    for row in frames.launches.itertuples(index=False, name="Row"):
        rows.setdefault(str(row.cell), []).append(row)
    cells: dict[str, Cell] = {}
    found = [one for store in stores if (one := store.verification()) is not None]
    unequal = {cell: why for one in found for cell, why in one.failed().items()}
    limits = (0.0, 0)
    runs = frames.launches.groupby("study")["run"].max()
    for study, header in zip(names, frames.headers, strict=True):
        limits = (header.target, header.min_launches)
        for plan in header.cells:
            if plan.id not in cells:
                launches = tuple(rows.get(plan.id, ()))
                cells[plan.id] = Cell(
                    plan.id, plan.case, plan.suite, plan.skipped, *limits, launches, plan.twin_of,
                    unequal.get(plan.id), header.max_launches, header.budget_s is not None, int(runs.get(study, 0)),
                )  # fmt: skip
    for cell in rows.keys() - cells.keys():  # the plan was changed after these had run
        cells[cell] = Cell(cell, rows[cell][0].case, "", None, *limits, tuple(rows[cell]))
    ranks = _shown_ranks(frames.ranks, cells.values())
    return Evidence(frames, cells, ranks, dict(zip(names, stores, strict=True)), tuple(found))


def _shown_ranks(ranks: "DataFrame", cells: Iterable[Cell]) -> "DataFrame":
    """Of the launches that `measured` has: those of a cell that repeats another are no further ranks of it."""
    shown = {(row.study, row.launch) for cell in cells if cell.twin_of is None for row in cell.shown}
    keys = zip(ranks["study"], ranks["launch"], strict=True)
    return ranks[np.array([key in shown for key in keys], bool)]


def relative(base: Cell, cell: Cell) -> stats.Estimate:
    """ln of the throughput of `cell` over that of `base`.

    Paired by block where two blocks or more hold both; else from launches that are not paired (Welch). Within one
    study such launches ran at different times, and what the machine did in between is in the ratio: no interval then.
    """
    if base.id == cell.id:
        return stats.Estimate(
            mean=0.0, error=0.0 if len(cell.shown) > 1 else None, freedom=1, n=len(cell.shown)
        )
    common = base.logs.keys() & cell.logs.keys()
    if len(common) > 1:
        return stats.mean([cell.logs[block] - base.logs[block] for block in sorted(common)])
    unpaired = stats.welch([row.y for row in base.shown], [row.y for row in cell.shown])
    if studies(base) & studies(cell):
        return dataclasses.replace(unpaired, error=None, freedom=0, n=len(common))
    return unpaired


def studies(cell: Cell) -> set[str]:
    """Those that its shown launches are of."""
    return {study for study, _ in cell.logs}


def other_times(base: Cell, cell: Cell, estimate: stats.Estimate) -> str | None:
    """Words for two sides of one study that have fewer blocks in common than launches, and too few for a verdict."""
    if estimate.n >= min(len(base.shown), len(cell.shown), stats.DECIDABLE):
        return None
    number = {0: "no common blocks", 1: "one common block"}.get(estimate.n, f"{estimate.n} common blocks")
    return f"{number}: run at different times"


def scaled(interval: Interval, factor: float) -> Interval:
    """The interval of the estimate times a constant."""
    low = None if interval.low is None else interval.low * factor
    high = None if interval.high is None else interval.high * factor
    return Interval(value=interval.value * factor, low=low, high=high, n=interval.n)
