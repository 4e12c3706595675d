"""Which ways of training a study has, what a verification says, and what is kept of it."""

import msgspec
import pytest

from bench import verify_cache
from bench.analysis import analyse
from bench.case import Case
from bench.errors import UsageError
from bench.records import Cell
from bench.store import Store
from bench.verify_first import expected_s
from bench.verify_records import Check, Way
from bench.verify_ways import plain, ways, words
from bench.verify_words import summed_up
from tests.hosts import cpu_host
from tests.simulate import simulate
from tests.verified import verification

SINGLE = Case()


def cells(*cases):
    """Cells of a plan."""
    return [Cell(id=case.id, case=case, suite="s") for case in cases]


def ddp(ranks=2, **fields):
    """DDP on so many ranks."""
    return Case(strategy="ddp", ranks=ranks, **fields)


def test_cells_that_differ_in_speed_only_are_one_way():
    """Workers, precision, batch, data and compilation do not make another way; SyncBN and hooks do."""
    alike = [
        ddp(),
        ddp(num_workers=2, data="photos"),
        ddp(precision="bf16"),
        ddp(batch=64),
        ddp(compile=True),
    ]
    other = [ddp(sync_bn=True), ddp(comm_hook="fp16"), ddp(optimizer="adamw"), ddp(grad_accumulation=2)]
    found = ways(cells(*alike, *other))
    assert [way.cells for way in found] == [tuple(c.id for c in alike), *((case.id,) for case in other)]
    assert found[0].case.data == "photos"  # the one with a loader says most
    assert {way.case.precision for way in found} == {None}


def test_a_short_check_takes_one_count_and_leaves_the_base_out():
    """Of 1, 2, 4 and 16 ranks 4 are run for all that have several; over nodes it is a way of its own."""
    counts = [ddp(n) for n in (1, 2, 4, 16)]
    over = ddp(1, nodes=2)
    found = ways(cells(SINGLE, *counts, over), quick=True)
    assert [(way.case.ranks, way.case.nodes) for way in found] == [(4, 1), (1, 2)]
    assert found[0].cells == tuple(case.id for case in counts[1:])
    assert len(ways(cells(SINGLE, *counts, over))) == 6


def test_skipped_cells_are_not_verified():
    """What cannot run here is no way of training here."""
    (cell,) = cells(ddp())
    assert ways([msgspec.structs.replace(cell, skipped="no")]) == ()


def test_stand_ins_do_not_sleep_while_they_are_checked():
    """A paced model and paced data compute what they compute, without their pauses."""
    case = plain(ddp(model="paced", data="paced", model_args={"layers": 4}))
    assert case.model_args["layers"] == 4
    assert {case.model_args["forward_s_per_sample"], case.data_args["item_s"]} == {0.0}


def test_a_way_in_words():
    """Strategy, size, model and what else is not usual."""
    case = ddp(nodes=2, sync_bn=True, comm_hook="fp16", batch=4)
    assert words(case) == "ddp on 2 nodes of 2 ranks, resnet-small, sync_bn, comm_hook fp16"
    assert words(Case(strategy="dp", ranks=2)) == "dp on 2 devices, resnet-small"
    assert words(plain(ddp(model="paced", model_args={"layers": 4}))) == "ddp on 2 ranks, paced, layers 4"


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        (("pass", "known"), "known"),
        (("known", "cannot tell"), "cannot tell"),
        (("cannot tell", "fail", "pass"), "fail"),
        (("not applicable", "pass"), "pass"),
        ((), "cannot tell"),
    ],
)
def test_a_way_is_as_good_as_its_worst_check(outcomes, worst):
    """One failure outweighs everything, what nobody can tell outweighs what passed, and no check is no pass."""
    checks = tuple(Check(name="loss", outcome=outcome, detail="") for outcome in outcomes)
    assert Way(name="w", case=SINGLE, checks=checks).outcome == worst


def test_a_way_whose_launch_failed_is_no_pass():
    """Checks that had passed before a crash do not count as the whole."""
    good = Check(name="loss", outcome="pass", detail="")
    assert Way(name="w", case=SINGLE, checks=(good,), reason="hang").outcome == "cannot tell"


def test_a_failed_check_keeps_its_cells_out_of_curves_and_verdicts(tmp_path):
    """The cell's numbers are shown and marked; its comparison is refused with the tensor; no curve has it."""
    case = [SINGLE, ddp(1), ddp(2), ddp(2, sync_bn=True)]
    before = analyse([simulate(tmp_path / "a", case, spread=0.001)])
    after = analyse([simulate(tmp_path / "b", case, spread=0.001, verified=verification(ddp(2)))])
    bad = ddp(2).id
    assert bad in {point.cell for curve in before.curves for point in curve.points}
    assert bad not in {point.cell for curve in after.curves for point in curve.points}
    verdicts = {(one.a_cell, one.b_cell): one for one in after.comparisons}
    refused = next(one for pair, one in verdicts.items() if bad in pair)
    assert refused.verdict == "not comparable"
    assert "gradients: fc.weight differs by 0.5 in step 1" in refused.note
    cell = next(one for one in after.cells if one.cell == bad)
    assert cell.samples_per_s is not None
    assert "not the same computation" in cell.marks


@pytest.mark.parametrize("outcome", ["known", "cannot tell", "pass"])
def test_what_did_not_fail_stays_in_the_comparisons(tmp_path, outcome):
    """A known difference, and one that nobody can tell, refuse nothing."""
    store = simulate(tmp_path / "s", [SINGLE, ddp(2)], verified=verification(ddp(2), outcome=outcome))
    assert store.verification().failed() == {}
    assert not any("not the same computation" in cell.marks for cell in analyse([store]).cells)


def test_a_verification_is_written_whole_and_read_back(tmp_path):
    """verify.json gives the same value again; one that is broken, or of a newer version, is refused in one line."""
    store = Store(tmp_path)
    assert store.verification() is None
    found = verification(ddp(2))
    store.write_verification(found)
    assert store.verification() == found
    path = tmp_path / "verify.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(UsageError, match=r"verify\.json: schema 99, and this scalemark reads up to 1"):
        store.verification()
    path.write_text("{")
    with pytest.raises(UsageError, match="put the original file back, or remove it"):
        store.verification()


def test_a_verification_in_words():
    """What failed is named by way, check and tensor; what is good is counted."""
    assert summed_up(verification(ddp(2))) == [
        "NOT THE SAME: ddp on 2 ranks, resnet-small: gradients: fc.weight differs by 0.5 in step 1;"
        " its cells are not compared"
    ]
    good = verification(ddp(2), outcome="known", detail="as it should be")
    assert summed_up(good) == [
        "verified: 1 way of training computes what one process does (3 steps, float64, precision and torch.compile aside)"
    ]
    untold = verification(ddp(2), outcome="pass", reason="hang: time limit reached")
    assert summed_up(untold) == ["cannot tell: ddp on 2 ranks, resnet-small: hang: time limit reached"]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_good_way_is_kept_on_a_host_and_a_bad_one_is_not(kept):
    """What passed is not run again, and says when it was; what failed or could not be told is."""
    host = cpu_host()
    (good,) = verification(ddp(2), outcome="known").ways
    verify_cache.keep(good, host)
    again = verify_cache.read(msgspec.structs.replace(good, cells=("other",)), host)
    assert (again.checks, again.cells) == (good.checks, ("other",))
    assert again.before is not None
    assert verify_cache.read(good, msgspec.structs.replace(host, torch="2.9.0", cpu_model="another")) is None
    for outcome in ("fail", "cannot tell"):
        (bad,) = verification(ddp(4), outcome=outcome).ways
        verify_cache.keep(bad, host)
        assert verify_cache.read(bad, host) is None


@pytest.mark.parametrize("case", [ddp(2, model="mine:build", data="own"), ddp(1, nodes=2)])
def test_code_that_lies_elsewhere_is_checked_every_time(kept, case):
    """A user's own model can change, and so can another node: nothing is kept of them."""
    (way,) = verification(case, outcome="pass").ways
    verify_cache.keep(way, cpu_host())
    assert verify_cache.read(way, cpu_host()) is None


def test_the_time_of_a_check_is_known_before_it(tmp_path):
    """More ranks and slower samples take longer; nothing takes nothing."""
    from bench.plan import make_plan

    def seconds(*sets):
        plan = make_plan(["ddp"], cpu_host(), sets=sets, nproc=4)
        return expected_s(ways(plan.runnable, quick=True), plan)

    assert seconds("ranks=2") < seconds("ranks=4") < seconds("ranks=4", "model=resnet50")
    plan = make_plan(["single"], cpu_host())
    assert expected_s(ways(plan.runnable, quick=True), plan) == 0.0


def test_the_page_says_what_was_verified_and_what_was_not(tmp_path):
    """A line a way with a column a check, the tensor in its hint; without a verification it says how to get one."""
    from bench.report import render
    from bench.report_verify import files

    nasty = verification(ddp(2), detail="<b>fc.weight</b> differs")
    analysis = analyse([simulate(tmp_path / "a", [SINGLE, ddp(2)], verified=nasty)])
    page = render(analysis)
    assert "Ways of training against one process" in page
    assert "&lt;b&gt;fc.weight&lt;/b&gt; differs" in page
    assert "<b>fc.weight</b>" not in page
    rows = files(analysis)["verify.csv"]
    assert [(row["check"], row["outcome"], row["tensor"]) for row in rows] == [
        ("weights", "pass", None),
        ("gradients", "fail", "fc.weight"),
    ]
    page = render(analyse([simulate(tmp_path / "b", [SINGLE, ddp(2)])]))
    assert "Not checked: scalemark verify checks it" in page
    assert "Every cell trains on one device" in render(analyse([simulate(tmp_path / "c", [SINGLE])]))
    assert "Ways of training against one process" not in page


def test_every_check_outcome_and_field_is_explained():
    """docs/verify.md has a row for each check, in order, for each outcome, and names every field of verify.json."""
    import re
    from pathlib import Path
    from typing import get_args

    from bench.verify_records import CHECKS, Outcome, Verification

    page = (Path(__file__).parents[1] / "docs/verify.md").read_text()
    first = re.findall(r"^\| `([^`|]+)` \|", page, re.M)
    assert [name for name in first if name in CHECKS and name != "data"] == [c for c in CHECKS if c != "data"]
    assert set(get_args(Outcome)) <= set(first)
    named = set(re.findall(r"`([^`]+)`", page.split("## verify.json")[1]))
    for struct in (Verification, Way, Check):
        assert set(struct.__struct_fields__) <= named, struct.__name__
