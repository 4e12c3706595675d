"""When a cell closes, what is run again, and in which order: rules on records, without running anything."""

import msgspec
import pytest

from bench.case import Case
from bench.estimate import Estimate
from bench.plan import Plan
from bench.records import Cell
from bench.stopping import Rules, Stopping
from tests.simulate import simulate

CASES = [Case(data="photos", num_workers=n) for n in range(4)]


@pytest.fixture
def stopping():
    """Four cells with nothing run."""
    return make()


def make(**rules):
    return Stopping(four(), Rules(**rules))


def four():
    """A plan of four cells, ten seconds a launch."""
    cells = tuple(Cell(id=case.id, case=case, suite="s") for case in CASES)
    estimates = {case.id: Estimate(seconds=10.0, measured=False) for case in CASES}
    return Plan(suites=("s",), cells=cells, factors={}, estimates=estimates)


def records(tmp_path, spread, blocks, case=CASES[0], **changes):
    """Launches of one cell as a study would have them."""
    store = simulate(tmp_path / f"r{spread}{blocks}", [case], blocks=blocks, spread=spread)
    return [msgspec.structs.replace(record, **changes) for record in store.records()[0]]


def test_a_cell_closes_when_its_interval_is_narrow(stopping, tmp_path):
    """Five launches within half a per cent close a cell; four do not, whatever their spread."""
    four, five = records(tmp_path, 0.001, 4), records(tmp_path, 0.001, 5)
    for record in four:
        stopping.take(record)
    assert not stopping.closed(CASES[0].id)
    stopping.take(five[4])
    assert stopping.closed(CASES[0].id)


def test_a_wide_cell_goes_on_to_the_cap(stopping, tmp_path):
    """At 10 % spread five launches are not enough; ten close the cell, converged or not."""
    ten = records(tmp_path, 0.10, 10)
    for record in ten[:9]:
        stopping.take(record)
    assert not stopping.closed(CASES[0].id)
    stopping.take(ten[9])
    assert stopping.closed(CASES[0].id)


def test_a_cell_that_keeps_failing_closes(stopping, tmp_path):
    """Two failures in a row end a cell; one of a kind that cannot get better ends it at once."""
    first, second = records(tmp_path, 0.01, 2, status="failed", reason="signal", window=None)
    stopping.take(first)
    assert not stopping.closed(CASES[0].id)
    stopping.take(second)
    assert stopping.closed(CASES[0].id)
    (hopeless,) = records(tmp_path, 0.02, 1, case=CASES[1], status="failed", reason="oom_device", window=None)
    stopping.take(hopeless)
    assert stopping.closed(CASES[1].id)


def test_what_was_interrupted_or_failed_before_runs_again(stopping, tmp_path):
    """A resumed stopping repeats the block of an interrupted launch and of an earlier run's failure, no other."""
    for case, status in zip(CASES, ("ok", "interrupted", "failed", "failed"), strict=True):
        changes = (
            {"status": status} if status == "ok" else {"status": status, "window": None, "reason": "signal"}
        )
        (record,) = records(tmp_path, 0.01 + CASES.index(case) / 1000, 1, case=case, **changes)
        stopping.take(record)
        if case is not CASES[3]:
            stopping._earlier.add(record.launch)
    assert {cell.id for cell in stopping.open_cells(0, lambda case: True)} == {CASES[1].id, CASES[2].id}


def test_the_order_of_a_block_is_random_and_repeatable(stopping):
    """Blocks differ in order, the same seed gives the same order, and every cell is in every block."""
    orders = [[cell.id for cell in stopping.open_cells(block, lambda case: True)] for block in range(6)]
    assert len({tuple(order) for order in orders}) > 1
    assert all(sorted(order) == sorted(case.id for case in CASES) for order in orders)
    assert orders[3] == [cell.id for cell in stopping.open_cells(3, lambda case: True)]


def test_a_block_that_does_not_fit_the_time_is_not_begun(tmp_path):
    """With 30 s left and 44 s expected no further block begins; the first always does."""
    stopping = make(budget_s=30.0)
    cells = stopping._plan.runnable
    assert stopping.time_for(cells, 0)
    stopping.take(records(tmp_path, 0.01, 1, wall_s=10.0)[0])
    assert not stopping.time_for(cells, 1)
    assert make(budget_s=None).time_for(cells, 1)


def test_the_end_of_the_time_says_what_did_not_fit(tmp_path):
    """With time left the block that does not fit is told with its length; without, that the time is spent."""
    stopping = make(budget_s=30.0)
    cells = stopping._plan.runnable
    assert stopping.out_of_time(cells) == "the next block (about 44 s) does not fit the time budget of 30 s"
    stopping._began -= 31
    assert stopping.out_of_time(cells) == "the time budget of 30 s is spent"


def test_measured_launches_put_the_guesses_of_their_model_right(tmp_path):
    """A first launch that took 4 s where 10 were guessed: the other three are expected to take 4 s each."""
    stopping = make()
    assert stopping.left_s(4, stopping._plan.runnable) == 44.0
    (first,) = records(tmp_path, 0.01, 1, wall_s=4.0)
    stopping.take(first)
    assert stopping.left_s(4, stopping._plan.runnable[1:]) == pytest.approx(16.0)
    assert stopping.left_s(4, []) == 0.0


def test_measured_launches_say_nothing_of_other_models_and_earlier_measurements(tmp_path):
    """A cell of another model keeps its guess, and one that ran before keeps what it took."""
    stopping = make()
    other = msgspec.structs.replace(CASES[1], model="mlp", data="device", num_workers=0)
    cells = [*stopping._plan.cells[:1], Cell(id=other.id, case=other, suite="s"), *stopping._plan.cells[2:]]
    known = Estimate(seconds=7.0, measured=True)
    estimates = stopping._plan.estimates | {
        other.id: Estimate(seconds=10.0, measured=False),
        CASES[2].id: known,
    }
    stopping._plan = msgspec.structs.replace(stopping._plan, cells=tuple(cells), estimates=estimates)
    (first,) = records(tmp_path, 0.01, 1, wall_s=4.0)
    stopping.take(first)
    assert [stopping.launch_s(cell) for cell in cells] == pytest.approx([4.0, 10.0, 7.0, 4.0])


def test_a_launch_that_is_too_slow_is_not_tried_again(stopping, tmp_path):
    """It would be as slow: the cell closes at once."""
    changes = {"status": "timeout", "reason": "too_slow", "window": None}
    stopping.take(records(tmp_path, 0.01, 1, **changes)[0])
    assert stopping.closed(CASES[0].id)
