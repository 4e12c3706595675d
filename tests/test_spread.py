"""Where a study's numbers vary: by level, over its blocks, and what its own marks cost."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.analysis import analyse
from bench.case import Case
from bench.records import LaunchRecord
from bench.steady import theil_sen
from tests.simulate import simulate

SINGLE, DDP = Case(), Case(strategy="ddp", ranks=2)
FAST = 1 / 1.06


def slower(record: LaunchRecord, factor: float) -> LaunchRecord:
    """The launch with its throughput divided by a factor."""
    assert record.window is not None
    assert record.window.samples_per_s is not None
    rate = record.window.samples_per_s / factor
    return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, samples_per_s=rate))


def test_a_cell_says_where_its_numbers_vary(tmp_path: Path) -> None:
    """Steps and their mean as recorded; launches from their logs less that; allocations null with one study."""
    analysis = analyse([simulate(tmp_path / "s", [SINGLE], blocks=8)])
    (cell,) = analysis.cells
    assert cell.spread is not None
    assert (cell.spread.step, cell.spread.within) == (pytest.approx(0.03), pytest.approx(0.003))
    store_logs = np.log(
        [r.window.samples_per_s for r in simulate(tmp_path / "t", [SINGLE], blocks=8).records()[0]]
    )
    assert cell.spread.launches == pytest.approx(np.sqrt(store_logs.var(ddof=1) - 0.003**2))
    assert (cell.spread.allocations, cell.spread.allocation_count, cell.spread.launch_count) == (None, 1, 8)


def test_studies_given_together_are_allocations(tmp_path: Path) -> None:
    """Two studies of one cell that differ by 6 %: about 4 % between allocations, 1 % between launches."""
    stores = [
        simulate(tmp_path / f"s{i}", [SINGLE], blocks=10, seed=i, change=lambda r, i=i: slower(r, 1.06**i))
        for i in range(2)
    ]
    spread = analyse(stores).cells[0].spread
    assert spread is not None
    assert spread.allocations == pytest.approx(np.log(1.06) / np.sqrt(2), rel=0.25)
    assert spread.launches == pytest.approx(0.0141, rel=0.4)
    assert spread.allocation_count == 2


def test_older_records_have_no_spread_of_steps(tmp_path: Path) -> None:
    """A record from before it was measured: null and not 0, and so is what launches vary beyond it."""

    def old(record: LaunchRecord) -> LaunchRecord:
        window = msgspec.structs.replace(record.window, step_sd=None, mean_error=None)
        ranks = tuple(msgspec.structs.replace(rank, instrumentation_s=None) for rank in record.ranks)
        return msgspec.structs.replace(record, window=window, ranks=ranks)

    cell = analyse([simulate(tmp_path / "s", [SINGLE], change=old)]).cells[0]
    assert cell.spread is not None
    assert (cell.spread.step, cell.spread.within, cell.instrumentation) == (None, None, None)
    assert cell.spread.launches is None


def test_a_study_that_slows_down_is_a_finding_though_a_cell_closed_early(tmp_path: Path) -> None:
    """5 % over eight blocks is seen with its sign and interval; the pairs keep their verdict; without it nothing is said."""

    def drifting(record: LaunchRecord) -> LaunchRecord | None:
        if record.requested == SINGLE and record.block > 4:
            return None  # closed
        return slower(record, 1.05 ** (record.block / 7))

    fields = {"blocks": 8, "spread": 0.003}
    analysis = analyse([simulate(tmp_path / "s", [SINGLE, DDP], change=drifting, **fields)])
    (drift,) = analysis.drifts
    assert drift.real
    assert (drift.change.low or 0) < 1 / 1.05 < (drift.change.high or 0)
    assert drift.change.value == pytest.approx(1 / 1.05, abs=0.01)
    (seen,) = [one for one in analysis.findings if one.code == "study-drifts"]
    assert "from the first of 8 blocks to the last" in seen.message
    quiet = analyse([simulate(tmp_path / "t", [SINGLE, DDP], **fields)])
    assert [one.real for one in quiet.drifts] == [False]
    assert "study-drifts" not in {one.code for one in quiet.findings}


def test_chance_is_rarely_called_a_drift() -> None:
    """Of 1,000 studies of 5 to 10 blocks without a drift at most 7 % have an interval that excludes it."""
    random = np.random.default_rng(1)
    for blocks in (5, 6, 8, 10):
        found = [theil_sen(np.arange(blocks), row) for row in random.normal(0, 0.01, (1000, blocks))]
        assert np.mean([low > 0 or high < 0 for _, low, high in found]) <= 0.07


def test_four_blocks_have_no_drift(tmp_path: Path) -> None:
    """Too few to tell: none, not 0."""
    assert analyse([simulate(tmp_path / "s", [SINGLE], blocks=4)]).drifts == ()


def test_the_instrumentations_share_is_that_of_the_rank_that_pays_most(tmp_path: Path) -> None:
    """Marks of 10 us a step on one rank and 30 on the other, of a step of 10 ms: 0.3 %."""

    def pay(record: LaunchRecord) -> LaunchRecord:
        ranks = [
            msgspec.structs.replace(rank, instrumentation_s=cost, step_s=0.01)
            for rank, cost in zip(record.ranks, (1e-5, 3e-5), strict=True)
        ]
        return msgspec.structs.replace(record, ranks=tuple(ranks))

    assert analyse([simulate(tmp_path / "s", [DDP], change=pay)]).cells[0].instrumentation == pytest.approx(
        0.003
    )
