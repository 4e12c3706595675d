"""`scalemark ab` with real launches: two sides in turn, a planted slow-down, and what goes wrong in the middle."""

import json
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.e2e.command import kill, ours, ranks, records, scalemark, start, suite, wait_for

pytestmark = pytest.mark.e2e

SUITE = """
[case]
strategy = "single"
model = "{model}"
data = "device"
batch = 8
steps = {steps}
"""
WORK = """
import msgspec
from bench.models import paced
FACTOR = {factor}
def build(case):
    args = {{"forward_s_per_sample": 0.004 * FACTOR, "backward_s_per_sample": 0.0085 * FACTOR}}
    return paced.build(msgspec.structs.replace(case, model_args=args))
"""


def checkout(folder, name, factor=1.0):
    """A folder with a model of its own, whose steps take `factor` times 100 ms."""
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "work.py").write_text(WORK.format(factor=factor))
    return name


def ab(folder, *words, base="here", new="there"):
    return scalemark(folder, "ab", "mine.toml", "--base", base, "--new", new, *words)


def both(folder, again=False):
    return {name: records(folder / "results/s" / name, again) for name in ("base", "new")}


def test_both_sides_have_a_study_of_their_own(tmp_path):
    """One launch a side and no verdict with --quick; standard output is one JSON object; compare says the same."""
    (tmp_path / "there").mkdir()
    name = suite(tmp_path, SUITE.format(model="paced", steps=6))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "ab", name, "--base", sys.executable, "--new", "there", "--quick",
         "--json", "-o", "results/s"], cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["verdict"], row["base_launches"], row["new_launches"]) == ("inconclusive", 1, 1)
    found = both(tmp_path)
    assert sorted(r.order for side in found.values() for r in side) == [0, 1]
    assert {r.status for side in found.values() for r in side} == {"ok"}
    asked = json.loads((tmp_path / "results/s/ab.json").read_text())
    assert asked["base"]["folder"] == str(tmp_path)
    assert asked["new"]["folder"] == str(tmp_path / "there")
    code, out = scalemark(tmp_path, "compare", "results/s", "--json")
    assert (code, json.loads(out)) == (5, json.loads(done.stdout))
    assert ours(tmp_path) == []


@pytest.mark.long
def test_a_planted_slow_down_is_called_and_the_same_is_not(tmp_path):
    """5 % more a step: slower, exit 1, and the interval holds the planted 4.8 %. The same model: no difference claimed."""
    suite(tmp_path, SUITE.format(model="work:build", steps=12))
    checkout(tmp_path, "here")
    checkout(tmp_path, "there", 1.05)
    code, out = ab(tmp_path, "--budget", "4m", "-o", "results/s")
    assert code == 1, out
    assert "slower: 1 of 1 cell" in out
    code, out = scalemark(tmp_path, "compare", "results/s", "--json")
    (row,) = json.loads(out)["rows"]
    assert row["ratio"]["low"] < 1 / 1.05 < row["ratio"]["high"]
    assert 5 <= row["ratio"]["n"] <= 10
    code, out = ab(tmp_path, "--budget", "4m", "--json", "-o", "results/same", new="here")
    assert code in (0, 5), out
    assert '"verdict": "slower"' not in out
    assert '"verdict": "faster"' not in out


@pytest.mark.long
def test_interrupted_and_resumed(tmp_path):
    """Ctrl-C in the middle of a pair: both sides stop within 10 s with everything recorded; --resume runs whole pairs."""
    suite(tmp_path, SUITE.format(model="paced", steps=60))
    checkout(tmp_path, "here")
    checkout(tmp_path, "there")
    words = ["ab", "mine.toml", "--base", "here", "--new", "there", "--margin", "20%", "-o", "results/s"]
    process = start(tmp_path, *words)
    wait_for(lambda: _lines(tmp_path) >= 3 and _running(tmp_path), limit_s=120)
    kill(process, signal.SIGINT)
    assert process.wait(timeout=10) == 130
    assert _left(tmp_path) == []
    said = (tmp_path / "out").read_text()
    assert "scalemark: stopped; everything measured is kept. Go on with: scalemark ab mine.toml" in said
    assert said.rstrip().endswith("-o results/s --resume")
    before = both(tmp_path, again=True)
    assert sum(r.status == "interrupted" for side in before.values() for r in side) == 1

    code, out = scalemark(tmp_path, *words, "--resume", "--budget", "1m")
    assert code in (0, 5), out  # undecided where a busy host has time for two pairs only
    after = both(tmp_path, again=True)
    assert {name: side[: len(before[name])] for name, side in after.items()} == before
    new = {name: {r.block for r in side[len(before[name]) :]} for name, side in after.items()}
    assert new["base"] == new["new"]
    assert not new["base"] & {r.block for side in before.values() for r in side}


@pytest.mark.long
def test_a_killed_conductor_takes_both_sides_along(tmp_path):
    """After kill -9 of the command no conductor, engine, rank or sampler of either side is left."""
    suite(tmp_path, SUITE.format(model="paced", steps=60))
    checkout(tmp_path, "here")
    checkout(tmp_path, "there")
    process = start(tmp_path, "ab", "mine.toml", "--base", "here", "--new", "there", "-o", "results/s")
    wait_for(lambda: _running(tmp_path), limit_s=120)
    kill(process)
    process.wait()
    wait_for(lambda: not _left(tmp_path), limit_s=10)


@pytest.mark.long
def test_a_side_that_is_killed_costs_what_was_running(tmp_path):
    """One line names the side and the signal, exit 4; what was measured is kept; --resume finishes."""
    suite(tmp_path, SUITE.format(model="paced", steps=20))
    checkout(tmp_path, "here")
    checkout(tmp_path, "there")
    words = ["ab", "mine.toml", "--base", "here", "--new", "there", "--margin", "20%", "-o", "results/s"]
    process = start(tmp_path, *words)
    wait_for(lambda: _lines(tmp_path) >= 3 and _running(tmp_path), limit_s=120)
    kill(next(p for p in ours(tmp_path / "there") if "bench.led" in p.cmdline()))
    assert process.wait(timeout=120) == 4
    assert (
        "scalemark: new: its process was killed by SIGKILL; everything measured"
        in (tmp_path / "out").read_text()
    )
    wait_for(lambda: not _left(tmp_path), limit_s=10)
    code, out = scalemark(tmp_path, *words, "--resume", "--budget", "1m")
    assert code in (0, 5), out  # undecided where a busy host has time for two pairs only


@pytest.mark.long
def test_a_model_that_fails_on_one_side_is_no_pass(tmp_path):
    """A step that raises in the new checkout: two tries, then not comparable, exit 3, with the reason in its study."""
    suite(tmp_path, SUITE.format(model="work:build", steps=6))
    checkout(tmp_path, "here")
    checkout(tmp_path, "there")
    work = tmp_path / "there/work.py"
    work.write_text(
        work.read_text() + "from dataclasses import replace\n"
        "def broken(model, batch):\n    raise ValueError('a new mistake')\n"
        "good = build\n"
        "def build(case):\n    return replace(good(case), loss=broken)\n"
    )
    code, out = ab(tmp_path, "-o", "results/s")
    assert code == 3, out
    assert "cells: 1 failing" in out
    found = both(tmp_path)
    assert [r.status for r in found["base"]] == ["ok", "ok"]
    assert [r.status for r in found["new"]] == ["failed", "failed"]
    assert "a new mistake" in found["new"][0].detail


@pytest.mark.long
def test_an_environment_without_scalemark_gets_this_one(tmp_path):
    """A Python that has torch and not this package runs it all the same, and ab.json says so."""
    suite(tmp_path, SUITE.format(model="paced", steps=6))
    checkout(tmp_path, "here")
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    own = next(environment.glob("lib/python*/site-packages"))
    for package in _packages():
        (own / package.name).symlink_to(package)
    code, out = ab(tmp_path, "--quick", "-o", "results/s", base="here", new="env/bin/python@here")
    assert code == 5, out
    asked = json.loads((tmp_path / "results/s/ab.json").read_text())
    assert (asked["base"]["borrowed"], asked["new"]["borrowed"]) == (False, True)
    assert both(tmp_path)["new"][0].status == "ok"


def _packages():
    """What is installed, but for this package and what puts it on the path."""
    return [
        path
        for path in Path(sysconfig.get_path("purelib")).iterdir()
        if path.suffix != ".pth"
        and not path.name.startswith(("bench", "scalemark", "__editable__", "__pycache__"))
    ]


def _lines(folder):
    """Launches on disk, of both sides."""
    paths = [folder / "results/s" / name / "launches.jsonl" for name in ("base", "new")]
    return sum(len(path.read_bytes().splitlines()) for path in paths if path.exists())


def _running(folder):
    return any(ranks(folder / name) for name in ("here", "there"))


def _left(folder):
    return [process for name in (".", "here", "there") for process in ours((folder / name).resolve())]
