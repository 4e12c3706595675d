"""A team's own pytest with scaling tests, real launches and all: the page's own test, a failing case, a skipped one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.store import Store

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DOC = (ROOT / "docs/exporting.md").read_text()
OTHERS = """
def test_broken(scaling_case):
    broken = {"fault": "raise", "rank": 1}
    scaling_case(strategy="ddp", ranks=2, model="faulty:build", model_args=broken, data="own", steps=12, base=False)

def test_no_loader(scaling_case):
    scaling_case(model="mlp", data="device", num_workers=2)

def test_misspelt(scaling_case):
    scaling_case(rnks=2)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run of pytest with a launch a case; its folder and its output."""
    team = tmp_path_factory.mktemp("team")
    shutil.copytree(ROOT / "examples", team / "examples")
    shutil.copy(HERE / "faulty.py", team)
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", DOC, re.S) if "scaling_case" in block)
    first = code.split("\n\n\n")[0]  # the second differs in its numbers
    (team / "test_page.py").write_text(re.sub(r"> 0\.\d+", "> 0", first))  # how fast is not the point here
    (team / "test_others.py").write_text(OTHERS)
    words = (
        "--scaling-launches=1",
        "--scaling-results=kept",
        "--benchmark-json=b.json",
        "-rs",
        "-W",
        "error",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=team, capture_output=True, text=True, env=os.environ | {"COLUMNS": "400"},
    )  # fmt: skip
    return team, done.stdout + done.stderr


def test_each_test_ends_as_it_should(ran):
    """The page's passes; the broken and the misspelt case fail, and what cannot run is skipped."""
    assert "2 failed, 1 passed, 1 skipped" in ran[1]


def test_a_failed_launch_is_one_line_with_its_log(ran):
    """Class, rank and message, and a log that has the traceback; no traceback of the plug-in itself."""
    team, out = ran
    line = next(text for text in out.splitlines() if text.startswith("scaling_case: ddp-n2"))
    assert ": exception: rank 1: ValueError: planted <b>failure</b>; see " in line
    log = team / line.split("; see ")[1]
    assert log.name == "1.log" and "planted <b>failure</b>" in log.read_text()
    assert "scaling_case: settings: unknown name 'rnks'; known: " in out
    assert "scalemark_pytest.py" not in out and "During handling" not in out


def test_a_skipped_case_gives_the_reason(ran):
    """The words that `scalemark plan` has for it."""
    assert "data 'device' has no loader: num_workers has no effect" in ran[1]


def test_each_case_that_ran_is_a_study(ran):
    """Case and base, one launch each, where the option says."""
    team, _ = ran
    store = Store(team / "kept/test-two-ranks-scale-1")
    ran_ok = {(r.requested.strategy, r.requested.ranks) for r in store.records()[0] if r.status == "ok"}
    assert ran_ok == {("single", 1), ("ddp", 2)}
    assert store.header().quick


def test_pytest_benchmark_compares_what_the_run_left(ran):
    """The JSON file of the run is read back, with the test that gave a result."""
    team, _ = ran
    (found,) = json.loads((team / "b.json").read_text())["benchmarks"]
    kept = Store(team / "kept/test-two-ranks-scale-1").records()[0]
    *_, result = [
        r for r in kept if r.requested.ranks == 2
    ]  # the last: on a busy host the first is run again
    assert found["stats"]["ops"] == pytest.approx(result.window.samples_per_s)
    command = [Path(sys.executable).parent / "pytest-benchmark", "compare", "b.json", "--columns=ops,rounds"]
    done = subprocess.run(command, cwd=team, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^test_two_ranks_scale .* 1\s*$", done.stdout, re.M)
