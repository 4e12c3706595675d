"""What a study needs before its first launch: a resumed one keeps to its own cells."""

from pathlib import Path

import msgspec
import pytest

from bench.begin import check_nodes, check_resumed, has_twin, header, was_strict
from bench.case import Case
from bench.errors import UsageError
from bench.estimate import Estimate
from bench.plan import Plan
from bench.records import Cell
from bench.stopping import Rules
from tests import networks
from tests.hosts import cpu_host
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


def test_a_quick_run_does_not_go_on_with_a_study_that_has_verdicts(before):
    """One launch a cell would be its new rule, and its verdicts gone; a quick study may go on either way."""
    quick = msgspec.structs.replace(before, quick=True)
    full = msgspec.structs.replace(before, quick=False)
    with pytest.raises(UsageError, match="results/s was run without --quick"):
        check_resumed(plan(CASES), full, Path("results/s"), quick=True)
    check_resumed(plan(CASES), full, Path("results/s"))
    check_resumed(plan(CASES), quick, Path("results/s"), quick=True)
    check_resumed(plan(CASES), quick, Path("results/s"))


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


def twin(cell):
    """The cell once more."""
    return msgspec.structs.replace(cell, id=f"{cell.id}-aa", twin_of=cell.id)


def test_an_aa_pair_cannot_join_later(before):
    """Its blocks would be others than those of the rest: the option is named."""
    cells = plan(CASES).cells
    asked = msgspec.structs.replace(plan(CASES), cells=(*cells, twin(cells[0])))
    with pytest.raises(UsageError, match=r"was run without --aa: give the settings"):
        check_resumed(asked, before, Path("results/s"))
    other = plan([msgspec.structs.replace(CASES[0], steps=10)]).cells
    paired = msgspec.structs.replace(before, cells=asked.cells)
    with pytest.raises(UsageError, match=r"was run without steps 10 \(it has 20\): give"):
        check_resumed(
            msgspec.structs.replace(asked, cells=(*other, twin(other[0]))), paired, Path("results/s")
        )


def test_a_study_keeps_its_pair_and_its_target(before):
    """study.json says both, so that --resume need not."""
    assert not has_twin(None)
    assert not has_twin(before)
    assert not was_strict(None)
    assert not was_strict(before)
    cells = plan(CASES).cells
    strict = header(
        "s", msgspec.structs.replace(plan(CASES), cells=(*cells, twin(cells[0]))), cpu_host(),
        Rules(target=0.01, max_launches=20), ["scalemark"],
    )  # fmt: skip
    assert has_twin(strict)
    assert was_strict(strict)
    assert (strict.target, strict.max_launches, strict.cells[-1].twin_of) == (0.01, 20, cells[0].id)


def several(box):
    """A plan for two nodes."""
    return msgspec.structs.replace(plan(CASES), nodes=2, box=box)


@pytest.fixture
def apart(before):
    """The header of a study of three machines."""
    nodes = tuple(networks.member(node) for node in range(3))
    return msgspec.structs.replace(before, nodes=nodes, pairs=networks.pairs(3))


def test_machines_and_one_box_do_not_meet_in_one_study(before, apart):
    """Whichever came first; the line says which of the two it was. One node is neither."""
    box = msgspec.structs.replace(apart, box=True)
    for plan_box, had, was in (
        (True, apart, "nodes started one by one"),
        (False, box, "one box, whose nodes"),
    ):
        with pytest.raises(UsageError, match=f"^--resume: results/s was run on {was}.*, and this is"):
            check_resumed(several(plan_box), had, Path("results/s"))
        check_resumed(several(not plan_box), had, Path("results/s"))
        check_resumed(several(plan_box), before, Path("results/s"))
        check_resumed(plan(CASES), had, Path("results/s"))


def test_another_machine_in_a_nodes_place_is_refused_with_what_differs(apart):
    """Of the same kind it may be another one, as Slurm gives them; a node that was not there before is no other one."""
    check_nodes(
        [networks.member(0), networks.member(1, hostname="n7"), networks.member(5)], apart, Path("results/s")
    )
    other = networks.member(1, host={"cpus_usable": 4}, fingerprint="simulated-2")
    with pytest.raises(UsageError) as caught:
        check_nodes([networks.member(0), other], apart, Path("results/s"))
    assert str(caught.value).startswith(
        "--resume: results/s was run on other nodes: node 1, now n1, has cpus_usable 4 (it was 8): start it as it was"
    )


class FoundTeam:
    """Two nodes, as a Team has them."""

    members = (networks.member(0), networks.member(1, hostname="n7"))
    pairs = networks.pairs(2, latency_s=1e-3)


def test_nodes_that_do_not_come_again_stay_in_the_study(apart):
    """Its launches ran on them: on two nodes, and on one of them alone."""
    rules, words = Rules(), ["scalemark"]
    gone_on = header("s", several(False), cpu_host(), rules, words, before=apart, team=FoundTeam())
    assert [node.hostname for node in gone_on.nodes] == ["n0", "n7", "n2"]
    assert [(pair.first, pair.second, pair.latency_s) for pair in gone_on.pairs] == [
        (0, 1, 1e-3), (0, 2, 5e-5), (1, 2, 5e-5)
    ]  # fmt: skip
    boxed = msgspec.structs.replace(apart, box=True)
    alone = header("s", plan(CASES), cpu_host(), rules, words, before=boxed)
    assert (alone.nodes, alone.pairs, alone.box) == (boxed.nodes, boxed.pairs, True)
    assert header("s", plan(CASES), cpu_host(), rules, words).nodes == ()
