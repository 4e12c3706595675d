"""What a study needs before its first launch: a resumed one keeps to its own cells."""

from pathlib import Path

import msgspec
import pytest

from bench.begin import check_resumed
from bench.case import Case
from bench.errors import UsageError
from bench.estimate import Estimate
from bench.plan import Plan
from bench.records import Cell
from tests.simulate import simulate

CASES = [Case(steps=20, num_workers=n, data="photos") for n in (0, 1)]


def plan(cases):
    cells = tuple(Cell(id=case.id, case=case, suite="s") for case in cases)
    estimates = {case.id: Estimate(seconds=1.0, measured=False) for case in cases}
    return Plan(suites=("s",), cells=cells, factors={}, estimates=estimates)


@pytest.fixture
def before(tmp_path):
    """The header of a study of two cells."""
    return simulate(tmp_path / "s", CASES).header()


def test_the_same_cells_and_fewer_go_on(before):
    """All of them, or one of them."""
    check_resumed(plan(CASES), before, Path("results/s"))
    check_resumed(plan(CASES[:1]), before, Path("results/s"))


def test_other_cells_are_refused_with_the_settings_that_differ(before):
    """Ten steps beside twenty would stand in one study: what differs is said, and what to do."""
    other = [msgspec.structs.replace(case, steps=10) for case in CASES]
    with pytest.raises(UsageError) as error:
        check_resumed(plan(other), before, Path("results/s"))
    assert str(error.value).startswith(
        "--resume: results/s was run without steps 10 (it has 20): give the settings"
    )
    with pytest.raises(UsageError, match=r"without num_workers 2 \(it has 0, 1\)"):
        check_resumed(
            plan([*CASES, msgspec.structs.replace(CASES[0], num_workers=2)]), before, Path("results/s")
        )


def test_a_cell_of_known_settings_in_a_new_combination_is_named(before):
    """Where no setting is new by itself, the cell is."""
    cells = [
        Cell(id=case.id, case=case, suite="s") for case in (CASES[0], Case(data="photos", num_workers=1))
    ]
    before = msgspec.structs.replace(before, cells=tuple(cells))
    new = Case(steps=20, num_workers=1, data="photos")
    with pytest.raises(UsageError, match=f"without cells such as {new.id}"):
        check_resumed(plan([new]), before, Path("results/s"))


def test_cells_that_were_left_out_for_want_of_time_are_the_studys_own(before):
    """A larger budget has room for them; skipped cells of the plan do not run anyway."""
    new = msgspec.structs.replace(CASES[0], num_workers=4)
    wider = msgspec.structs.replace(before, left_out=(f"loader: {new.id}: no room beside 2 other cells",))
    check_resumed(plan([*CASES, new]), wider, Path("results/s"))
    skipped = Cell(id=new.id, case=new, suite="s", skipped="no reason")
    check_resumed(msgspec.structs.replace(plan(CASES), cells=(skipped,)), before, Path("results/s"))
