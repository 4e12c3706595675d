"""The README's own commands, and what bad input is answered with: one line, exit code 2, nothing lost."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.command import records, scalemark, suite
from tests.simulate import simulate

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINES = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()]
TARGETS = sorted(set(re.findall(r"`(make [a-z-]+(?: [A-Z]+=\S+)*)`", README)))


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder with what a clone has beside the installed package: examples and documents."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("scalemark ")])
def test_a_scalemark_line_of_the_readme_works(clone, line):
    """Each line runs as it is written, in the order of the README, and succeeds."""
    code, out = scalemark(clone, *shlex.split(line)[1:])
    assert code == 0, out
    assert out.strip()


@pytest.mark.parametrize("target", TARGETS)
def test_a_make_target_of_the_readme_is_there(target):
    """Each make command of the README expands to commands of an existing target."""
    done = subprocess.run(["make", "-n", *shlex.split(target)[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["bench-single", "bench-loader"])
def test_make_runs_a_suite_and_the_report(tmp_path, target):
    """`make TARGET` with options leaves a study, and `make report` a page of it."""
    study = tmp_path / "study"
    args = f"--quick --set steps=4 --set data=device -o {study}"
    if target == "bench-loader":
        args = f"--quick --set steps=4 --set num_workers=0,1 -o {study}"
    done = subprocess.run(["make", target, f"ARGS={args}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pip install" not in done.stdout  # set up already: not a second time
    assert records(study)
    page = tmp_path / "page.html"
    subprocess.run(["make", "report", f"STUDY={study} -o {page}"], cwd=ROOT, capture_output=True, check=True)
    assert page.read_text().startswith("<!doctype html>")


def test_make_compares_two_sides(tmp_path):
    """`make compare` shows the verdicts and fails where there is no clear yes; without sides it says how to name them."""
    from bench.case import Case

    for at, name in enumerate(("before", "after")):
        simulate(tmp_path / name, [Case()], blocks=2, seed=at)
    words = ["make", "compare", f"BASE={tmp_path / 'before'}", f"NEW={tmp_path / 'after'}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert "Error 5" in done.stderr
    assert "inconclusive: 1 of 1 cell\n" in done.stdout
    done = subprocess.run(["make", "compare"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "make compare BASE=results/before NEW=results/after" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "dpp"], "unknown name 'dpp'; known:"),
        (["run", "single", "--set", "model=resnet5"], "unknown name 'resnet5'"),
        (["run", "single", "--set", "model=nope:build"], "no module 'nope'"),
        (["run", "single", "--set", "model=faulty:bild"], "has no 'bild'"),
        (["run", "ddp", "--set", "backend=ucci"], "did you mean 'ucc'"),
        (["run", "single", "--set", "ranks=two"], "ranks: Expected `int`, got `str`"),
        (["run", "single", "--devices", "0"], "no accelerator here"),
        (["run", "single", "--devices", "x"], "write ordinals of visible devices"),
        (["run", "single", "--budget", "soon"], "write a time such as 90s"),
        (["run", "broken.toml"], "not TOML"),
        (["run", "gone.toml"], "cannot be read"),
        (["run", "single", "--resume", "-o", "results/gone"], "no such study"),
        (["run", "single", "-o", "out/x"], "cannot be written"),
        (["report", "nothing"], "no such study"),
        (["scaling", "broken.toml"], "no such study"),
        (["list", "strategy"], "did you mean 'strategies'"),
    ],
)
def test_bad_input_is_answered_in_one_line(tmp_path, words, says):
    """What, where, what is allowed: one line, exit code 2, no traceback, and no folder is left behind."""
    suite(tmp_path, "[case\n", name="broken.toml")
    (tmp_path / "out").write_text("")  # a file where a folder would have to be made
    before = set(tmp_path.rglob("*"))
    code, out = scalemark(tmp_path, *words)
    line = out.strip().splitlines()[-1]
    assert code == 2, out
    assert says in line
    assert line.startswith("scalemark: ")
    assert "Traceback" not in out
    assert {p.name for p in set(tmp_path.rglob("*")) - before} <= {"out", "faulty.py", "__pycache__"}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda s: (s / "study.json").write_text("{"), "study.json"),
        (
            lambda s: (s / "study.json").write_text('{"schema": 99}'),
            "schema 99, and this scalemark reads up to 1",
        ),
        (lambda s: (s / "study.json").unlink(), "not a study"),
        (lambda s: edit(s / "study.json", lambda d: d.update(target="wide")), "$.target"),
    ],
)
def test_a_damaged_study_is_named_and_left_alone(tmp_path, damage, says):
    """A cut, newer, missing or edited header is one line; the launches stay as they are."""
    from bench.case import Case

    study = tmp_path / "results/s"
    simulate(study, [Case(), Case(strategy="ddp", ranks=2)])
    launches = (study / "launches.jsonl").read_bytes()
    damage(study)
    code, out = scalemark(tmp_path, "report", "results/s")
    assert code == 2
    assert says in out.strip().splitlines()[-1]
    assert (study / "launches.jsonl").read_bytes() == launches


def edit(path, change):
    """Change a JSON file in place."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_cut_last_line_is_counted_and_said(tmp_path):
    """A record that was cut short is told of in the report, and the others are all there."""
    from bench.case import Case

    study = tmp_path / "results/s"
    simulate(study, [Case(), Case(strategy="ddp", ranks=2)])
    text = (study / "launches.jsonl").read_bytes()
    (study / "launches.jsonl").write_bytes(text[:-40])
    code, _ = scalemark(tmp_path, "report", "results/s")
    assert code == 0
    assert "1 line could not be read" in (tmp_path / "reports/s.html").read_text()
