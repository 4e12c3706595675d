"""Where the numbers of a study vary: by level for each cell, and over the study's own time."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bench import variance
from bench.answers import Drift, Interval, Spread
from bench.evidence import Cell, Evidence
from bench.stats import exp
from bench.steady import MAX_DRIFT, theil_sen
from bench.store import finite

MIN_BLOCKS = 5  # with fewer, the interval of Kendall's statistic is the range of all slopes


def spread(cell: Cell) -> Spread | None:
    """The standard deviations of a cell's numbers, level by level; None where nothing is shown of it."""
    if not cell.shown:
        return None
    errors = [finite(row.mean_error) for row in cell.shown]
    groups = list(_by_study(cell).values())
    return Spread(
        step=_rms(_known(cell.shown, "step_sd")),
        within=_rms(_known(cell.shown, "mean_error")),
        launches=variance.between_launches(groups, errors),
        allocations=variance.between_allocations(groups),
        launch_count=len(cell.shown),
        allocation_count=len(groups),
    )


def _by_study(cell: Cell) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for row in cell.shown:
        groups.setdefault(row.study, []).append(row.y)
    return groups


def _known(rows: Iterable[Any], name: str) -> list[float]:
    return [value for row in rows if (value := finite(getattr(row, name))) is not None]


def _rms(values: Sequence[float]) -> float | None:
    """Variances are what is averaged, not standard deviations."""
    return math.sqrt(math.fsum(value * value for value in values) / len(values)) if values else None


def drifts(evidence: Evidence) -> tuple[Drift, ...]:
    """How the throughput of each study's cells changed over its blocks. Studies of fewer than five have none."""
    found = (_drift(evidence, study) for study in dict.fromkeys(evidence.frames.launches["study"]))
    return tuple(one for one in found if one is not None)


def _drift(evidence: Evidence, study: str) -> Drift | None:
    """Theil-Sen on what the blocks have in common, over their numbers: blocks run one after the other."""
    rows = [(cell.id, row) for cell in evidence.cells.values() for row in cell.shown if row.study == study]
    blocks = sorted({row.block for _, row in rows})
    if len(blocks) < MIN_BLOCKS:
        return None
    cells = list(dict.fromkeys(cell for cell, _ in rows))
    at_cell, at_block = ({name: i for i, name in enumerate(names)} for names in (cells, blocks))
    effects = variance.block_effects(
        [row.y for _, row in rows],
        [at_cell[cell] for cell, _ in rows],
        [at_block[row.block] for _, row in rows],
    )
    if effects is None:
        return None
    whole = blocks[-1] - blocks[0]
    change, low, high = (exp(slope * whole) for slope in theil_sen(np.array(blocks, float), effects))
    return Drift(
        study=study,
        blocks=len(blocks),
        change=Interval(value=change, low=low, high=high, n=len(blocks)),
        real=not low <= 1 <= high and abs(change - 1) > MAX_DRIFT,
    )


def instrumentation(evidence: Evidence) -> dict[str, float]:
    """Cell -> the share of a step that its marks take, of the rank that pays most: mean over the shown launches."""
    columns = ("cell", "rank", "instrumentation_s", "step_s")
    shares: dict[tuple[str, int], list[float]] = {}
    for cell, rank, cost_s, step_s in evidence.rank_rows(*columns):
        if finite(cost_s) is not None and finite(step_s):
            shares.setdefault((str(cell), int(rank)), []).append(cost_s / step_s)
    found: dict[str, float] = {}
    for (cell, _), values in shares.items():
        found[cell] = max(math.fsum(values) / len(values), found.get(cell, 0.0))
    return found
