"""When a cell closes, what is run again, and in which order: rules on records, without running anything."""

import msgspec
import pytest

from bench.case import Case
from bench.estimate import Estimate
from bench.plan import Plan
from bench.records import Cell
from bench.study import Rules, Study
from tests.hosts import cpu_host
from tests.simulate import simulate

CASES = [Case(data="photos", num_workers=n) for n in range(4)]


@pytest.fixture
def study(tmp_path):
    """A study over four cells with nothing run."""
    return make(tmp_path)


def make(tmp_path, **rules):
    cells = tuple(Cell(id=case.id, case=case, suite="s") for case in CASES)
    estimates = {case.id: Estimate(seconds=10.0, measured=False) for case in CASES}
    plan = Plan(suites=("s",), cells=cells, factors={}, estimates=estimates)
    return Study(plan, simulate(tmp_path / "store", CASES, blocks=0), cpu_host(), Rules(**rules), show=None)


def records(tmp_path, spread, blocks, case=CASES[0], **changes):
    """Launches of one cell as a study would have them."""
    store = simulate(tmp_path / f"r{spread}{blocks}", [case], blocks=blocks, spread=spread)
    return [msgspec.structs.replace(record, **changes) for record in store.records()[0]]


def test_a_cell_closes_when_its_interval_is_narrow(study, tmp_path):
    """Five launches within half a per cent close a cell; four do not, whatever their spread."""
    four, five = records(tmp_path, 0.001, 4), records(tmp_path, 0.001, 5)
    for record in four:
        study._take(record)
    assert not study._closed(CASES[0].id)
    study._take(five[4])
    assert study._closed(CASES[0].id)


def test_a_wide_cell_goes_on_to_the_cap(study, tmp_path):
    """At 10 % spread five launches are not enough; ten close the cell, converged or not."""
    ten = records(tmp_path, 0.10, 10)
    for record in ten[:9]:
        study._take(record)
    assert not study._closed(CASES[0].id)
    study._take(ten[9])
    assert study._closed(CASES[0].id)


def test_a_cell_that_keeps_failing_closes(study, tmp_path):
    """Two failures in a row end a cell; one of a kind that cannot get better ends it at once."""
    first, second = records(tmp_path, 0.01, 2, status="failed", reason="signal", window=None)
    study._take(first)
    assert not study._closed(CASES[0].id)
    study._take(second)
    assert study._closed(CASES[0].id)
    (hopeless,) = records(tmp_path, 0.02, 1, case=CASES[1], status="failed", reason="oom_device", window=None)
    study._take(hopeless)
    assert study._closed(CASES[1].id)


def test_what_was_interrupted_or_failed_before_runs_again(study, tmp_path):
    """A resumed study repeats the block of an interrupted launch and of an earlier run's failure, no other."""
    for case, status in zip(CASES, ("ok", "interrupted", "failed", "failed"), strict=True):
        changes = (
            {"status": status} if status == "ok" else {"status": status, "window": None, "reason": "signal"}
        )
        (record,) = records(tmp_path, 0.01 + CASES.index(case) / 1000, 1, case=case, **changes)
        study._take(record)
        if case is not CASES[3]:
            study._earlier.add(record.launch)
    assert {cell.id for cell in study._open_cells(0)} == {CASES[1].id, CASES[2].id}


def test_a_launch_that_runs_again_has_a_name_of_its_own(study, tmp_path):
    """The second try of a block is -r1: no record, log or step file is overwritten."""
    (record,) = records(tmp_path, 0.01, 1, status="interrupted", window=None)
    cell = study._plan.cells[0]
    first = study._name(cell, 0)
    study._take(record)
    assert study._name(cell, 0) == f"{first}-r1"
    assert study._name(cell, 1) == first.replace("b00-", "b01-")


def test_the_order_of_a_block_is_random_and_repeatable(study):
    """Blocks differ in order, the same seed gives the same order, and every cell is in every block."""
    orders = [[cell.id for cell in study._open_cells(block)] for block in range(6)]
    assert len({tuple(order) for order in orders}) > 1
    assert all(sorted(order) == sorted(case.id for case in CASES) for order in orders)
    assert orders[3] == [cell.id for cell in study._open_cells(3)]


def test_a_block_that_does_not_fit_the_time_is_not_begun(tmp_path):
    """With 30 s left and 44 s expected no further block begins; the first always does."""
    study = make(tmp_path, budget_s=30.0)
    cells = study._plan.runnable
    assert study._time_for(cells, 0)
    study._take(records(tmp_path, 0.01, 1, wall_s=10.0)[0])
    assert not study._time_for(cells, 1)
    assert make(tmp_path / "other", budget_s=None)._time_for(cells, 1)


def test_the_end_of_the_time_says_what_did_not_fit(tmp_path):
    """With time left the block that does not fit is told with its length; without, that the time is spent."""
    study = make(tmp_path, budget_s=30.0)
    cells = study._plan.runnable
    assert study._out_of_time(cells) == "the next block (about 44 s) does not fit the time budget of 30 s"
    study._began -= 31
    assert study._out_of_time(cells) == "the time budget of 30 s is spent"


def test_measured_launches_put_the_guesses_of_their_model_right(tmp_path):
    """A first launch that took 4 s where 10 were guessed: the other three are expected to take 4 s each."""
    study = make(tmp_path)
    assert study._left_s(4, study._plan.runnable) == 44.0
    (first,) = records(tmp_path, 0.01, 1, wall_s=4.0)
    study._take(first)
    assert study._left_s(4, study._plan.runnable[1:]) == pytest.approx(16.0)
    assert study._left_s(4, []) == 0.0


def test_measured_launches_say_nothing_of_other_models_and_earlier_measurements(tmp_path):
    """A cell of another model keeps its guess, and one that ran before keeps what it took."""
    study = make(tmp_path)
    other = msgspec.structs.replace(CASES[1], model="mlp", data="device", num_workers=0)
    cells = [*study._plan.cells[:1], Cell(id=other.id, case=other, suite="s"), *study._plan.cells[2:]]
    known = Estimate(seconds=7.0, measured=True)
    estimates = study._plan.estimates | {other.id: Estimate(seconds=10.0, measured=False), CASES[2].id: known}
    study._plan = msgspec.structs.replace(study._plan, cells=tuple(cells), estimates=estimates)
    (first,) = records(tmp_path, 0.01, 1, wall_s=4.0)
    study._take(first)
    assert [study._launch_s(cell) for cell in cells] == pytest.approx([4.0, 10.0, 7.0, 4.0])


def test_a_launch_that_is_too_slow_is_not_tried_again(study, tmp_path):
    """It would be as slow: the cell closes at once."""
    changes = {"status": "timeout", "reason": "too_slow", "window": None}
    study._take(records(tmp_path, 0.01, 1, **changes)[0])
    assert study._closed(CASES[0].id)


def test_a_trace_that_has_no_place_costs_no_launch(tmp_path):
    """Where the traces' folder cannot be made the launch goes on without one, and the reason is said once a cell."""
    said = []
    study = make(tmp_path, trace=True)
    study._show = type("Show", (), {"say": lambda self, text: said.append(text)})()
    (tmp_path / "store" / "traces").touch()
    cell = study._plan.cells[0]
    assert study._trace_folder(cell, "b00-x") is None
    assert study._trace_folder(cell, "b01-x") is None
    assert len(said) == 1
    assert "no traces" in said[0]
    assert "Not a directory" in said[0]


def test_the_first_launch_of_a_cell_is_traced(tmp_path):
    """With --trace each cell has one folder of traces; without it none."""
    study = make(tmp_path, trace=True)
    first, second = study._plan.cells[:2]
    assert study._trace_folder(first, "b00-x").endswith("traces/b00-x")
    assert study._trace_folder(first, "b01-x") is None
    assert study._trace_folder(second, "b00-y") is not None
    assert make(tmp_path / "other")._trace_folder(first, "b00-x") is None
