"""The pytest plug-in as a team's own pytest sees it; launches are made up, each pytest is a real process."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs/exporting.md").read_text()
CONFTEST = """
import os, sys
from types import ModuleType, SimpleNamespace

def run(name, settings, base, launches, results):
    rates = tuple(float(os.environ.get("RATE", 100)) + n for n in range(launches))
    low = 0.8 if launches > 1 else None
    good = SimpleNamespace(value=0.9, low=low, high=low, n=launches)
    return SimpleNamespace(
        study=results / name, cell="c", base_cell="b", devices=2, samples_per_s=good, speedup=good,
        efficiency=good, step_s=0.1, phases_s={}, launches=rates, marks=("paced model",), reject=None,
    )

made_up = sys.modules["bench.scaling_case"] = ModuleType("bench.scaling_case")
made_up.run, made_up.CannotRun = run, type("CannotRun", (Exception,), {})
"""
TESTS = """
from pathlib import Path

def test_two(scaling_case, tmp_path):
    assert len(scaling_case(ranks=2).launches) in (1, 3)
    assert scaling_case(ranks=4, launches=1).study.parent in (tmp_path, Path.cwd() / "kept")

def test_plain():
    pass
"""


def run_pytest(folder, *words, **variables):
    """A process of pytest with warnings as errors; returns its code and output."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-W", "error", *words]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=os.environ | {"COLUMNS": "160"} | variables
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def team(tmp_path):
    """A folder with two tests, one of which has the fixture."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_team.py").write_text(TESTS)
    return tmp_path


def test_loading_the_plugin_imports_nothing_of_the_suite(tmp_path):
    """A team's own package `bench` stays theirs, and their tests run, with the plug-in loaded."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/__init__.py").write_text("mine = True")
    (tmp_path / "test_mine.py").write_text(
        "import sys\n"
        "def test_mine(request):\n"
        "    import bench\n"
        "    assert bench.mine and request.config.pluginmanager.hasplugin('scalemark')\n"
        "    assert not {'torch', 'numpy', 'pandas', 'msgspec', 'bench.case'} & set(sys.modules)\n"
        "def test_hidden(scaling_case):\n"
        "    scaling_case()\n"
    )
    _, out = run_pytest(tmp_path, "--tb=short")
    assert "1 failed, 1 passed" in out
    assert "; if a package 'bench' of your own is on the path, it hides scalemark's" in out


def test_tests_with_the_fixture_are_marked(team):
    """`-m scaling` takes exactly them, also under strict markers."""
    code, out = run_pytest(team, "-m", "not scaling", "--strict-markers")
    assert code == 0 and "1 passed, 1 deselected" in out


def test_every_case_is_a_benchmark_with_a_round_a_launch(team):
    """Seconds a sample, the test's own name, the second case numbered, and what else the result says."""
    code, out = run_pytest(team, "--benchmark-only", "--benchmark-json=b.json", "--scaling-results=kept")
    assert code == 0, out
    assert "1 passed, 1 skipped" in out
    first, second = json.loads((team / "b.json").read_text())["benchmarks"]
    assert (first["name"], second["name"]) == ("test_two", "test_two#2")
    assert second["fullname"] == "test_team.py::test_two#2"
    assert first["stats"]["data"] == [1 / 100, 1 / 101, 1 / 102]
    assert second["stats"]["data"] == [1 / 100]
    assert first["extra_info"]["settings"] == {"ranks": 2}
    assert first["extra_info"]["marks"] == ["paced model"]
    assert (first["extra_info"]["efficiency_low"], second["extra_info"]["efficiency_low"]) == (0.8, None)
    assert first["extra_info"]["study"] == str(team / "kept/test-two")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-p", "no:benchmark"), "2 passed"),
        (("--benchmark-disable",), "2 passed"),
        (("--benchmark-skip",), "1 passed, 1 skipped"),
    ],
)
def test_options_of_others_mean_what_they_mean(team, words, says):
    """Without pytest-benchmark, and with it disabled or skipping."""
    _, out = run_pytest(team, *words, "--scaling-launches=1")
    assert says in out
    assert "Name (time in" not in out


def test_parallel_workers_are_no_place_to_measure(team):
    """Under several workers of pytest-xdist the test is skipped, and says what to do."""
    code, out = run_pytest(team, PYTEST_XDIST_WORKER_COUNT="2")
    assert code == 0 and "1 passed, 1 skipped" in out
    assert "2 pytest-xdist workers would disturb each other: run with -n 0" in out


@pytest.mark.parametrize("value", ["0", "many", "-1"])
def test_a_number_of_launches_is_one_or_more(team, value):
    """Anything else is refused before a test runs."""
    code, out = run_pytest(team, f"--scaling-launches={value}")
    assert code == 4 and "is no number of launches; give 1 or more" in out


def test_a_test_that_uses_benchmark_itself_keeps_it(team):
    """Its own rounds are its benchmark; the case adds none."""
    (team / "test_both.py").write_text(
        "def test_both(benchmark, scaling_case):\n    benchmark.pedantic(scaling_case, rounds=2)\n"
    )
    assert run_pytest(team, "test_both.py", "--benchmark-json=b.json")[0] == 0
    (one,) = json.loads((team / "b.json").read_text())["benchmarks"]
    assert (one["name"], one["stats"]["rounds"]) == ("test_both", 2)


def test_a_pytest_benchmark_that_is_not_understood_is_said(team):
    """The case still runs and the test passes; a warning names what is missing."""
    change = "\nfrom pytest_benchmark.fixture import BenchmarkFixture\ndel BenchmarkFixture._make_stats\n"
    (team / "conftest.py").write_text(CONFTEST + change)
    code, out = run_pytest(team, "-W", "default", "-m", "scaling")
    assert code == 0 and "this pytest-benchmark is not understood" in out


CI = re.findall(r"^(pytest .*)$", DOC.split("### In continuous integration")[1], re.M)


def test_commands_for_continuous_integration_work_in_their_order(team):
    """Each line of the page succeeds on the page's own tests; the last one fails at a third of the speed."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", DOC, re.S) if "scaling_case" in block)
    (team / "test_team.py").write_text(re.sub(r"> 0\.\d+", "> 0", code) + "\n\ndef test_plain():\n    pass\n")
    assert len(CI) == 5
    for line in CI:
        code, out = shell(team, line)
        assert code == 0, out
    assert len(json.loads((team / "scaling.json").read_text())["benchmarks"][0]["stats"]["data"]) == 5
    code, out = shell(team, CI[-1], RATE="30")
    assert code != 0 and "Performance has regressed" in out


def shell(folder, line, **variables):
    """A line of the page as it is written, with this environment's pytest; its code and output."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | variables
    done = subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
