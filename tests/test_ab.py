"""Two sides in turn: which pairs count, when a cell has enough, what a side may be, what both sides can run."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from bench import ab, ab_file, ab_plan, ab_side, orders, stats
from bench.ab_file import AbHeader
from bench.ab_pairs import PAIRS, Pairs
from bench.ab_process import SideLost, SideProcess
from bench.ab_side import Side
from bench.case import Case
from bench.cli import app
from bench.closing import Limits, why_closed
from bench.errors import UsageError
from bench.records import Cell
from bench.stopping import Rules
from bench.store import Store
from tests.simulate import failed, launch_record

CASES = [Case(data="photos", num_workers=n) for n in range(3)]
CELLS = [Cell(id=case.id, case=case, suite="s") for case in CASES]
FIRST = CASES[0].id


def pairs(**rules):
    """Three cells with nothing run, ten seconds a launch."""
    expected = {(side, cell.id): 10.0 for side in ("base", "new") for cell in CELLS}
    return Pairs(CELLS, Rules(**rules), expected)


def run(made, block, base=1.0, new=1.0, case=CASES[0], **changes):
    """One pair; the factors stretch the steps of each side."""
    for side, factor in (("base", base), ("new", new)):
        made.take(side, msgspec.structs.replace(launch_record(case, block, 0, factor), **changes))


def test_what_both_sides_share_is_not_in_the_difference():
    """Blocks twice as slow as others on both sides leave the difference at exactly the planted 5 % of step time."""
    made = pairs()
    for block, drift in enumerate([1.0, 1.3, 2.0, 0.8, 1.1]):
        run(made, block, base=drift, new=drift * 1.05)
    ratio = made.interval(FIRST)
    assert ratio.value == pytest.approx(1 / 1.05)
    assert ratio.half_width < 1e-9
    assert made.closed(FIRST)
    assert made.why_closed(FIRST) == "converged"


def test_a_block_with_one_side_only_is_no_pair():
    """A launch whose partner failed, or is missing, is in no difference."""
    made = pairs()
    run(made, 0)
    made.take("base", launch_record(CASES[0], 1, 0))
    made.take("base", launch_record(CASES[0], 2, 0))
    made.take("new", failed(launch_record(CASES[0], 2, 1)))
    assert made.differences(FIRST) == [0.0]


def test_five_narrow_pairs_close_a_cell_and_wide_ones_go_on_to_the_cap():
    """Four pairs never do; ten at 10 % do, converged or not; no p-value is asked for: these differ by 20 %."""
    made, random = pairs(), np.random.default_rng(3)
    for block in range(10):
        assert not made.closed(FIRST)
        run(made, block, new=1.2 * np.exp(random.normal(0, 0.1)))
    assert made.why_closed(FIRST) == "cap"
    narrow = pairs()
    for block in range(5):
        assert not narrow.closed(FIRST)
        run(narrow, block, new=1.2 * np.exp(random.normal(0, 0.001)))
    assert narrow.why_closed(FIRST) == "converged"


def test_a_side_that_keeps_failing_closes_its_cell_and_no_other():
    """Two blocks in a row without a pair end a cell; a resumed run tries it again."""
    made = pairs()
    records = []
    for block in range(2):
        made.take("base", launch_record(CASES[0], block, 0))
        records.append(failed(launch_record(CASES[0], block, 1)))
        made.take("new", records[-1])
    assert made.why_closed(FIRST) == "failing"
    assert [cell.id for cell in CELLS if cell not in made.open_cells(2)] == [FIRST]
    again = pairs()
    again.resume("new", records)
    assert not again.closed(FIRST)


def test_a_pair_that_was_cut_in_two_is_run_anew_in_a_block_of_its_own():
    """After an interruption between both launches of block 1 the next block is 2: what is paired ran side by side."""
    made = pairs()
    interrupted = msgspec.structs.replace(failed(launch_record(CASES[0], 1, 1)), status="interrupted")
    made.resume("base", [launch_record(CASES[0], 0, 0), launch_record(CASES[0], 1, 0)])
    made.resume("new", [launch_record(CASES[0], 0, 1), interrupted])
    assert made.next_block == 2
    assert len(made.differences(FIRST)) == 1
    assert FIRST in {cell.id for cell in made.open_cells(2)}


def test_a_launch_that_was_run_again_stands_for_its_block():
    """Of a disqualified launch and the one in its place the second is paired."""
    made = pairs()
    run(made, 0, new=1.5)
    made.take("new", msgspec.structs.replace(launch_record(CASES[0], 0, 2), launch="again"))
    assert made.differences(FIRST) == [0.0]


@pytest.mark.parametrize("what", ["unsteady", "not as requested"])
def test_a_pair_that_the_verdict_drops_closes_nothing(what):
    """An unsteady launch, or one that ran otherwise than asked, counts to the cap and not to the interval."""
    made = pairs(max_launches=6)
    for block in range(4):
        run(made, block)
    for block in (4, 5):
        assert not made.closed(FIRST)
        made.take("base", launch_record(CASES[0], block, 0))
        record = launch_record(CASES[0], block, 1)
        cut = msgspec.structs.replace(record.window.cut, state="unsteady")
        worse = {
            "unsteady": {"window": msgspec.structs.replace(record.window, cut=cut)},
            "not as requested": {"mismatches": ("other",)},
        }
        made.take("new", msgspec.structs.replace(record, **worse[what]))
    assert made.differences(FIRST) == [0.0] * 4
    assert made.why_closed(FIRST) == "cap"


def test_each_side_goes_first_equally_often():
    """In two blocks in a row each side is first once, whatever the seed; over seeds the first one is random."""
    starts = set()
    for seed in range(20):
        made = pairs(seed=seed)
        for block in range(0, 10, 2):
            two = [made.sides(FIRST, block), made.sides(FIRST, block + 1)]
            assert sorted(two) == [("base", "new"), ("new", "base")]
        starts.add(made.sides(FIRST, 0))
        assert made.sides(FIRST, 7) == pairs(seed=seed).sides(FIRST, 7)
    assert len(starts) == 2


def test_cells_come_in_another_order_each_block():
    """All cells are in every block; over ten blocks there is more than one order."""
    made = pairs()
    found = {tuple(cell.id for cell in made.open_cells(block)) for block in range(10)}
    assert len(found) > 1
    assert all(sorted(order) == sorted(cell.id for cell in CELLS) for order in found)


def test_what_time_is_left_goes_to_the_widest_cells():
    """60 s a block of three cells: with room for one pair the cell with the widest interval gets it; the first block always runs."""
    made = pairs(budget_s=1.0)
    assert made.fitting(CELLS) == CELLS
    made = pairs(budget_s=30.0)
    for block in range(3):
        for case, spread in zip(CASES, (0.01, 0.2, 0.05), strict=True):
            run(made, block, new=1 + spread * block, case=case, wall_s=10.0)
    assert made.fitting(CELLS) == [CELLS[1]]
    assert 0 < made.left_s([]) <= 30.0


def test_the_end_is_told_in_one_line():
    """How many cells have converged and how many are open."""
    made = pairs()
    for block in range(5):
        run(made, block)
    assert made.summed_up() == "cells: 1 converged (±2 %), 2 still open"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A folder with an environment of its own that has no packages."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    return folder


def test_a_side_is_a_python_a_folder_or_both(tmp_path, monkeypatch):
    """The interpreter is kept as it was given, link or not; the folder is absolute; without one it is here."""
    (tmp_path / "work").mkdir()
    (tmp_path / "py").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    found = {text: ab_side._places("--base", text) for text in ("./py", "work", "./py@work", "work/")}
    places = {text: (Path(python).name, Path(folder)) for text, (python, folder) in found.items()}
    name = Path(sys.executable).name
    assert places == {
        "./py": ("py", tmp_path),
        "work": (name, tmp_path / "work"),
        "./py@work": ("py", tmp_path / "work"),
        "work/": (name, tmp_path / "work"),
    }


def test_a_folders_own_environment_runs_it(bare):
    """With .venv/bin/python in the folder that is the interpreter, and what it lacks is named with the way to get it."""
    with pytest.raises(
        UsageError, match=r"\.venv/bin/python: torch, numpy, .* cannot be imported there: install"
    ):
        ab_side.find("--new", str(bare))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nowhere", "no such interpreter or folder"),
        ("", "no such interpreter or folder"),
        ("x" * 10_000, "no such interpreter or folder"),
        (f"{sys.executable}@nowhere", "no such folder: 'nowhere'"),
        ("/bin/false", "is no Python that works: it ended with 1"),
    ],
)
def test_what_is_no_side_is_refused_in_one_line(text, says):
    """The option, what was given, what is wrong with it."""
    with pytest.raises(UsageError) as error:
        ab_side.find("--base", text)
    told = str(error.value)
    assert told.startswith("--base ")
    assert says in told
    assert len(told.splitlines()) == 1
    assert len(told) < 500


def test_this_interpreter_has_what_a_side_needs(tmp_path):
    """Its versions are known without importing torch, and its own scalemark is used."""
    side = ab_side.find("--base", f"{sys.executable}@{tmp_path}")
    assert side.folder == str(tmp_path)
    assert side.python_version == ".".join(map(str, sys.version_info[:3]))
    assert side.torch
    assert not side.borrowed
    assert side.git is None


HOST = {"cpu_model": "x", "devices": ["H"], "torch": "2.9.0"}


def planned(cells, **host):
    return orders.Planned(version="1", cells=tuple(cells), launch_s={}, host=HOST | host, notes=("slow",))


def test_cells_that_one_side_alone_runs_are_said_and_left_out():
    """With the other side's reason where it has one; what both skip is said once, and notes too."""
    no = [msgspec.structs.replace(cell, skipped="no NCCL") for cell in CELLS]
    plans = {"base": planned([CELLS[0], CELLS[1], no[2]]), "new": planned([CELLS[0], no[1], no[2]])}
    assert ab_plan.shared(plans) == (CELLS[0],)
    assert ab_plan.remarks(plans) == [
        f"only on base: {CELLS[1].id} (new: no NCCL)",
        f"skipped: {CELLS[2].id}: no NCCL",
        "note: slow",
    ]
    alone = {"base": planned([CELLS[0]]), "new": planned([CELLS[1]])}
    with pytest.raises(
        UsageError, match=rf"nothing to compare: only on base: {FIRST} \(new: not in its plan\)"
    ):
        ab_plan.shared(alone)


def test_another_torch_is_under_test_and_another_machine_is_not():
    """A side that sees no devices is refused before anything runs, with both values; versions are let through."""
    assert ab_plan.shared({"base": planned(CELLS), "new": planned(CELLS, torch="2.10.0")}) == tuple(CELLS)
    with pytest.raises(UsageError, match=r"different machines: devices is \['H'\] for base and \[\] for new"):
        ab_plan.shared({"base": planned(CELLS), "new": planned(CELLS, devices=[])})


def header(**changes):
    side = Side(python="/py", folder="/here", python_version="3.11.7", torch="2.9.0", git="3f2a91c")
    made = AbHeader(
        version="1", suites=("single",), command=("scalemark",), created_at="", margin=0.02, rules=Rules(),
        base=side, new=side,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_ab_json_is_read_as_it_was_written(tmp_path):
    """And a file that is missing, cut short at any place, or of a newer version is told in one line."""
    ab_file.write(tmp_path / "ab", header())
    path = tmp_path / "ab" / "ab.json"
    whole = path.read_bytes()
    assert ab_file.read(tmp_path / "ab") == header()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError, match=r"ab\.json"):
            ab_file.read(tmp_path / "ab")
    path.write_bytes(msgspec.json.encode(header(schema=99)))
    with pytest.raises(UsageError, match="schema 99"):
        ab_file.read(tmp_path / "ab")
    with pytest.raises(UsageError, match=r"not written by scalemark ab"):
        ab_file.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"suites": ("ddp",)}, "with suites single, and now it is ddp"),
        ({"sets": ("steps=3",)}, "with sets none, and now it is steps=3"),
        ({"rules": Rules(seed=4)}, "with seed 0, and now it is 4"),
        ({"margin": 0.5}, "with margin 2 %, and now it is 50 %"),
        ({"rules": Rules(target=0.01)}, "with intervals of 2 %, and now it is 1 %"),
        (
            {"new": msgspec.structs.replace(header().new, git="other")},
            "with new: git 3f2a91c, and now it is other",
        ),
    ],
)
def test_what_is_resumed_has_to_be_the_same(changes, says):
    """Another suite, seed or commit of a side would stand beside what is there, and a margin is declared before; another budget may."""
    with pytest.raises(UsageError) as error:
        ab_file.check_resumed(Path("results/x"), header(), header(**changes))
    assert says in str(error.value)
    ab_file.check_resumed(Path("results/x"), header(), header(rules=Rules(budget_s=9.0)))


def command(*words):
    """scalemark ab WORDS on one interpreter, in this process; its error is raised."""
    sides = ["--base", sys.executable, "--new", sys.executable]
    done = CliRunner().invoke(app, ["ab", "single", *sides, *map(str, words)])
    if isinstance(done.exception, UsageError):
        raise done.exception
    return done.exit_code


@pytest.fixture
def ran(monkeypatch):
    """The margins of what would be run: nothing is."""
    margins = []

    def stopped(root, header, *_, **__):
        margins.append(header.margin)
        raise SideLost("stopped")

    monkeypatch.setattr("bench.verbs.ab._run", stopped)
    return margins


def test_two_comparisons_do_not_share_a_folder(tmp_path, ran):
    """While one plans, another one of that name is refused, and what the first has begun stays."""
    root = tmp_path / "x"
    with Store(root).lock():
        (root / "base.log").write_text("planning")
        for words in ([], ["--resume"]):
            with pytest.raises(UsageError, match="another run is writing"):
                command("-o", root, *words)
        assert (root / "base.log").read_text() == "planning"
        (root / "base.log").unlink()


def test_what_was_killed_while_it_planned_is_in_nobodys_way(tmp_path, ran):
    """Its logs and lock are passed over; a file of anybody else's is not, and a comparison is not overwritten."""
    root = tmp_path / "x"
    for name in (".lock", "base.log", "new.log", "ab.json.tmp"):
        root.mkdir(exist_ok=True)
        (root / name).touch()
    command("-o", root)
    assert ran == [0.02]
    (root / "notes.txt").touch()
    with pytest.raises(UsageError, match="in use, but not by a comparison"):
        command("-o", root)
    ab_file.write(root, header())
    with pytest.raises(UsageError, match="holds a comparison already"):
        command("-o", root)


def test_the_margin_of_a_comparison_stays_what_it_was(tmp_path, ran):
    """--resume goes on with the margin of ab.json where none is given, and refuses another one."""
    root = tmp_path / "x"
    side = ab_side.find("--base", sys.executable)
    rules = Rules(budget_s=600.0, min_launches=PAIRS)
    ab_file.write(root, header(margin=0.05, rules=rules, base=side, new=side))
    command("-o", root, "--resume")
    command("-o", root, "--resume", "--margin", "5%")
    assert ran == [0.05, 0.05]
    with pytest.raises(UsageError, match=r"was run with margin 5 %, and now it is 2 %"):
        command("-o", root, "--resume", "--margin", "2%")


def test_nothing_is_left_of_a_comparison_that_could_not_be_planned(tmp_path):
    """Real sides that refuse a suite: their logs are gone, and with them the folder."""

    class Silent:
        def say(self, text):
            pass

    root = tmp_path / "x"
    side = ab_side.find("--base", sys.executable)
    asked = header(suites=("nosuch",), base=side, new=side)
    with pytest.raises(UsageError, match="nosuch"), Store(root).lock():
        ab.run(root, asked, Silent(), resume=False)
    assert not root.exists()


def started(tmp_path, python=sys.executable):
    side = Side(python=python, folder=str(tmp_path), python_version="3.11")
    return SideProcess("base", side, tmp_path / "base.log", tmp_path)


def request(tmp_path, **changes):
    made = orders.Request(
        conductor_pid=os.getpid(),
        root=str(tmp_path / "base"),
        command=("x",),
        suites=("nosuch",),
        rules=Rules(),
    )
    return msgspec.structs.replace(made, **changes)


def test_a_side_of_another_protocol_says_so(tmp_path):
    """A real side that is led by a newer version answers with what to do, before it plans anything."""
    with (
        started(tmp_path) as side,
        pytest.raises(UsageError, match="is led by protocol 1, not 2: install the same"),
    ):
        side.plan(request(tmp_path, protocol=2))
        side.planned()


def test_what_a_side_refuses_is_told_with_its_name(tmp_path):
    """A suite that is not there on that side is one line, with the side's interpreter and folder."""
    with (
        started(tmp_path) as side,
        pytest.raises(UsageError, match=r"^base \(.* in .*\): suite: unknown name 'nosuch'"),
    ):
        side.plan(request(tmp_path))
        side.planned()


def test_a_side_that_dies_is_told_with_its_last_words(tmp_path):
    """The exit code and the last line of its log; nothing waits for it."""
    script = tmp_path / "py"
    script.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 7\n")
    script.chmod(0o755)
    told = "base: its process ended with exit code 7: no such luck"
    with started(tmp_path, str(script)) as side, pytest.raises(SideLost, match=told):
        side.plan(request(tmp_path))
        side.planned()


def test_a_side_ends_with_its_conductor(tmp_path):
    """A side whose conductor is no more ends by itself, though its standard input stays open."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with started(tmp_path) as side, pytest.raises(SideLost, match="SIGTERM"):
        side.plan(request(tmp_path, conductor_pid=gone.pid))
        side.planned()


def test_a_lent_package_brings_nothing_along(tmp_path):
    """Only `bench` is on the path of the other Python, not what is installed beside it."""
    ab_side.lend(tmp_path)
    assert os.listdir(tmp_path) == ["bench"]
    code = "import bench.machine as m; print(m.own_python('x')[-1])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert f"append('{tmp_path}')" in done.stdout


def test_stopping_by_width_raises_no_alarms_of_its_own() -> None:
    """Equal sides at 2 % between launches: with eight pairs the interval excludes 0 in 4 to 6.5 % of cells, with five in more."""
    draws = np.random.default_rng(11).normal(0, 0.02 * np.sqrt(2), (4000, 10))

    def alarms(fewest):
        limits = Limits(min_launches=fewest, max_launches=10, target=0.02)
        found = 0
        for row in draws:
            n = next(n for n in range(fewest, 11) if why_closed(row[:n].tolist(), [("ok", None)] * n, limits))
            found += stats.mean(row[:n]).p_value < 0.05
        return found / len(draws)

    assert 0.04 <= alarms(PAIRS) <= 0.065 < alarms(5)
