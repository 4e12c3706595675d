"""When a cell closes, what is run again, and in which order: rules on records, without running anything."""

import msgspec
import pytest

from bench.case import Case
from bench.estimate import Estimate
from bench.plan import Plan
from bench.records import Cell
from bench.stopping import Rules, Stopping, compared, limits
from tests.simulate import simulate

CASES = [Case(data="photos", num_workers=n) for n in range(4)]


@pytest.fixture
def stopping():
    """Four cells with nothing run."""
    return make()


def make(**rules):
    return Stopping(four(), Rules(**rules))


def anywhere(case):
    """Every cell has a place."""
    return True


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


def statuses(tmp_path, *given):
    """A launch of each case that ended so, all in block 0."""
    found = []
    for at, (case, status) in enumerate(zip(CASES, given, strict=False)):
        bad = {} if status == "ok" else {"window": None, "reason": "signal"}
        found += records(tmp_path, 0.01 + at / 1000, 1, case=case, status=status, **bad)
    return found


def test_a_resumed_run_begins_a_block_of_its_own(tmp_path):
    """Launches of another time share no block with earlier ones: what failed or was cut off runs again in a new one."""
    for given, left in ((("ok", "interrupted", "failed"), (1, 2, 3)), (("ok",) * 4, ())):
        stopping = make(min_launches=1, max_launches=1)
        stopping.resume(statuses(tmp_path / str(len(left)), *given))
        assert stopping.first_block == 1
        assert {cell.id for cell in stopping.open_cells(1, anywhere)} == {CASES[at].id for at in left}
    assert make().first_block == 0


def test_earlier_launches_count_to_the_cap(tmp_path):
    """Three good ones of another run and two of this one are five: the cap, whatever their blocks are called."""
    stopping = make(max_launches=5)
    five = records(tmp_path, 0.1, 5)
    stopping.resume(five[:3])
    assert stopping.first_block == 3
    for record, block in zip(five[3:], (7, 8), strict=True):
        assert not stopping.closed(CASES[0].id)
        stopping.take(msgspec.structs.replace(record, block=block))
    assert stopping.why_closed(CASES[0].id) == "cap"


def test_a_cell_has_no_more_tries_than_launches_in_a_run(tmp_path):
    """With one launch a cell a failure is not tried again, though blocks go on for cells that waited for a node."""
    stopping = make(min_launches=1, max_launches=1)
    for record in statuses(tmp_path, "failed", "ok"):
        stopping.take(record)
    assert [cell.id for cell in stopping.open_cells(1, lambda case: case != CASES[2])] == [CASES[3].id]
    assert {cell.id for cell in stopping.open_cells(1, anywhere)} == {CASES[2].id, CASES[3].id}


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
    stopping = make(min_launches=1)
    assert stopping.left_s(stopping._plan.runnable) == 44.0
    (first,) = records(tmp_path, 0.01, 1, wall_s=4.0)
    stopping.take(first)
    assert stopping.left_s(stopping._plan.runnable[1:]) == pytest.approx(16.0)
    for record in statuses(tmp_path / "all", *["ok"] * 4):
        stopping.take(record)
    assert stopping.left_s([]) == 0.0


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


def contaminated(tmp_path, blocks=1, **changes):
    """Launches whose telemetry disqualified them."""
    words = ("busy host: other processes used 1.0 of 2 CPUs",)
    return records(tmp_path, 0.01, blocks, contaminated=words, disqualified=True, **changes)


def test_a_disqualified_launch_is_run_again_once(stopping, tmp_path):
    """The launch itself is; the one in its place is not, whatever it saw, nor is one that only has marks."""
    (first,) = contaminated(tmp_path)
    stopping.take(first)
    assert stopping.repeats(first)
    assert not stopping.repeats(msgspec.structs.replace(first, launch="again", retry_of=first.launch))
    assert not stopping.repeats(msgspec.structs.replace(first, disqualified=False))
    assert not stopping.repeats(msgspec.structs.replace(first, status="failed", window=None))


def test_a_fast_launch_is_run_again_as_a_slow_one_is(stopping, tmp_path):
    """Only telemetry decides: the same words with ten times the throughput, and with a tenth, give the same answer."""
    (first,) = contaminated(tmp_path)
    for factor in (0.1, 1.0, 10.0):
        window = msgspec.structs.replace(first.window, samples_per_s=first.window.samples_per_s * factor)
        assert stopping.repeats(msgspec.structs.replace(first, window=window))


def test_so_many_launches_are_run_again_a_study(tmp_path):
    """A fifth of four cells' five launches, four; with one launch a cell two; then they stay, marked."""
    for rules, most in (({}, 4), ({"min_launches": 1, "max_launches": 1}, 2)):
        stopping = make(**rules)
        (first,) = contaminated(tmp_path / str(most))
        for number in range(most):
            assert stopping.repeats(first)
            clean = {"disqualified": False, "contaminated": ()}
            stopping.take(msgspec.structs.replace(first, launch=f"again{number}", retry_of="other", **clean))
        assert not stopping.repeats(first)


def test_what_lasts_is_not_waited_for(stopping, tmp_path):
    """When the last two repeats were disqualified themselves no more are tried; one clean one between them goes on."""
    (first,) = contaminated(tmp_path)
    again = msgspec.structs.replace(first, retry_of="other")
    stopping.take(again)
    stopping.take(msgspec.structs.replace(again, disqualified=False))
    stopping.take(again)
    assert stopping.repeats(first)
    stopping.take(again)
    stopping._again.pop(0)
    assert len(stopping._again) == 3  # below the cap
    assert not stopping.repeats(first)


def test_a_launch_is_not_run_again_without_the_time(tmp_path):
    """With 5 s left one that took 9 s stays as it is."""
    stopping = make(budget_s=30.0)
    (first,) = contaminated(tmp_path, wall_s=9.0)
    assert stopping.repeats(first)
    stopping._began -= 25
    assert not stopping.repeats(first)


def test_a_replaced_launch_counts_for_nothing(stopping, tmp_path):
    """Neither to the cap nor to the interval: four steady launches and a wild one that was replaced close at the fifth."""
    five = records(tmp_path, 0.001, 5)
    wild = msgspec.structs.replace(five[0].window, samples_per_s=five[0].window.samples_per_s * 2)
    stopping.take(msgspec.structs.replace(five[0], launch="first", window=wild, disqualified=True))
    for record in five[1:]:
        stopping.take(record)
    assert not stopping.closed(CASES[0].id)
    stopping.take(msgspec.structs.replace(five[0], retry_of="first"))
    assert stopping.why_closed(CASES[0].id) == "converged"


def test_a_repeat_that_is_no_better_counts_for_nothing(stopping, tmp_path):
    """Its block has one launch, the first: four blocks and such a repeat are four launches."""
    four = records(tmp_path, 0.001, 4)
    for record in four:
        stopping.take(record)
    stopping.take(
        msgspec.structs.replace(four[0], launch="again", retry_of=four[0].launch, disqualified=True)
    )
    assert not stopping.closed(CASES[0].id)


def test_unsteady_launches_count_to_the_cap_and_not_to_the_interval(stopping, tmp_path):
    """As in the report: a drifting launch has no part in an interval that steady ones have."""
    five = records(tmp_path, 0.001, 5)
    cut = msgspec.structs.replace(five[0].window.cut, state="unsteady")
    for record in five[:4]:
        stopping.take(record)
    stopping.take(msgspec.structs.replace(five[4], window=msgspec.structs.replace(five[4].window, cut=cut)))
    assert not stopping.closed(CASES[0].id)


def test_narrow_intervals_ask_for_more_launches(tmp_path):
    """What closes a cell at 2 % does not at 1 %, and up to twenty launches run instead of ten."""
    strict, usual = limits(strict=True), limits()
    assert (strict.target, strict.max_launches) == (0.01, 20)
    assert (usual.target, usual.min_launches, usual.max_launches) == (0.02, 5, 10)
    assert limits(quick=True).max_launches == 1
    for rules, closed in ((usual, True), (strict, False)):
        stopping = make(**msgspec.structs.asdict(rules))
        for record in records(tmp_path / str(rules.target), 0.0075, 5):
            stopping.take(record)
        assert stopping.closed(CASES[0].id) is closed


def widths(tmp_path, stopping, *spreads):
    """Five launches of each cell, with these spreads; all have taken 10 s."""
    for at, spread in enumerate(spreads):
        for record in records(tmp_path / str(at), spread, 5, case=CASES[at], wall_s=10.0):
            stopping.take(record)


def test_the_rest_of_the_time_goes_to_the_widest_intervals(tmp_path):
    """26 s are left: two launches of 10 s and the engine's 4 s fit, of the cells with 8 and 5 % spread."""
    stopping = make(budget_s=100.0)
    widths(tmp_path, stopping, 0.03, 0.08, 0.01, 0.05)
    cells = stopping.open_cells(5, lambda case: True)
    assert len(cells) == 3  # the one with 1 % has closed
    stopping._began -= 74
    assert not stopping.time_for(cells, 5)
    chosen = stopping.widest(cells)
    assert {cell.id for cell in chosen} == {CASES[1].id, CASES[3].id}
    assert [cell.id for cell in chosen] == [cell.id for cell in cells if cell in chosen]  # the block's order
    text = "the next block (about 34 s) does not fit the time budget of 100 s: it is cut to those with the widest"
    assert stopping.out_of_time(cells, chosen) == f"{text} intervals, 2 of 3 cells"
    stopping._began -= 15
    assert stopping.widest(cells) == []


def test_a_cell_that_is_compared_with_the_widest_comes_with_it(tmp_path):
    """The widest brings the one that is one setting apart, before a wider one that is two apart."""
    far = msgspec.structs.replace(CASES[1], batch=32, sync_bn=True, ranks=2, strategy="ddp")
    near = msgspec.structs.replace(CASES[0], pin_memory=True)
    cells = [Cell(id=case.id, case=case, suite="s") for case in (CASES[0], far, near)]
    plan = msgspec.structs.replace(
        four(), cells=tuple(cells), estimates={c.id: Estimate(seconds=10.0, measured=False) for c in cells}
    )
    stopping = Stopping(plan, Rules(budget_s=100.0))
    for cell, spread in zip(cells, (0.09, 0.07, 0.04), strict=True):
        for record in records(tmp_path / cell.id, spread, 5, case=cell.case, wall_s=10.0):
            stopping.take(record)
    stopping._began -= 74
    assert [cell.id for cell in stopping.widest(cells)] == [CASES[0].id, near.id]


def test_twins_are_compared_with_each_other_only():
    """An A/A pair stays together; its second cell is no neighbour of any other."""
    one, other = (Cell(id=case.id, case=case, suite="s") for case in CASES[:2])
    twin = msgspec.structs.replace(one, id=f"{one.id}-aa", twin_of=one.id)
    assert compared(one, twin)
    assert compared(twin, one)
    assert compared(one, other)
    assert not compared(twin, other)


def test_why_cells_stopped_is_summed_up(stopping, tmp_path):
    """One line: so many converged, at the cap, failing, and open for want of time."""
    for at, (spread, blocks) in enumerate(((0.001, 5), (0.1, 10), (0.01, 2), (0.1, 3))):
        gone = {"status": "failed", "reason": "signal", "window": None} if at == 2 else {}
        for record in records(tmp_path / str(at), spread, blocks, case=CASES[at], **gone):
            stopping.take(record)
    assert stopping.summed_up() == (
        "cells: 1 converged (±2 %), 1 at the cap of 10 launches, 1 failing, 1 still open"
    )
