"""Suites of any content: cells, or one line that says what is wrong; never another exception."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import suite
from bench.case import FIELDS, Case
from bench.errors import UsageError
from bench.plan import make_plan
from tests.hosts import cpu_host, gpu_host
from tests.soak.inputs import NAMES, call, suite_text, toml

few = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
names = st.sampled_from([field for field in FIELDS if field != "model"]) | st.text(max_size=8)
texts = st.text(alphabet=st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | texts
    | st.sampled_from(["auto", "none", "ddp"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
tables = st.dictionaries(names, values, max_size=4)


def cells_or_one_line(path: Path) -> list[Case]:
    """The cells of a suite on two hosts; an error is a UsageError of one line."""
    found = []
    for host in (cpu_host(2), gpu_host(4)):
        try:
            found += suite.expand(suite.load(str(path)), host)
        except UsageError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 5000
    return found


@few
@given(case=tables, matrix=tables, base=st.none() | tables, exclude=st.lists(tables, max_size=2))
def test_any_tables_are_cells_or_one_line(tmp_path, case, matrix, base, exclude):
    """Fields and values of any kind in the tables of a suite."""
    parts = {"case": case, "matrix": matrix, "base": base, "exclude": exclude}
    text = "\n".join(f"{name} = {toml(part)}" for name, part in parts.items() if part is not None)
    path = tmp_path / "any.toml"
    path.write_text(text.replace("NaN", "nan").replace("Infinity", "inf"))
    for cell in cells_or_one_line(path):
        assert cell.ranks >= 1
        assert cell.batch >= 1


@few
@given(data=st.binary(max_size=200))
def test_any_bytes_are_no_suite_in_one_line(tmp_path, data):
    """A file that is no TOML, or not even text."""
    path = tmp_path / "any.toml"
    path.write_bytes(data)
    cells_or_one_line(path)


@few
@given(text=st.text(max_size=40) | st.builds("{}={}".format, names, texts))
def test_any_word_after_set_is_taken_or_refused_in_one_line(text):
    """`--set` with anything."""
    try:
        suite.expand(suite.override(suite.load("ddp"), [text]), cpu_host(2))
    except UsageError as error:
        assert "\n" not in str(error)


@few
@given(seed=st.integers(0, 2**32))
def test_suites_that_are_nearly_right_are_planned_or_refused_in_one_line(tmp_path, seed):
    """Known fields with values that nobody would give, through the whole plan: legality, estimates, time."""
    path = tmp_path / "mine.toml"
    path.write_text(suite_text(random.Random(seed)))
    try:
        plan = make_plan([str(path)], cpu_host(4), budget_s=600.0)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert plan.cells


def test_a_hundred_thousand_cells_are_refused_at_once(tmp_path, monkeypatch):
    """The plan counts them before it makes them, by one axis or by two, and says how many are allowed."""
    monkeypatch.chdir(tmp_path)
    long, square = list(range(1, 100_001)), list(range(1, 401))
    Path("long.toml").write_text(f"[matrix]\nbatch = {long}\n")
    Path("square.toml").write_text(f"[matrix]\nbatch = {square}\nseed = {square}\n")
    for name, count in (("long", 100_000), ("square", 160_000)):
        answer = call("plan", f"{name}.toml")
        assert (answer.code, answer.fault) == (2, None)
        assert f"{count} cells; at most 10000: give fewer levels" in answer.text


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_refused_in_one_printable_line(tmp_path, monkeypatch, name):
    """Names of HTML, of terminal codes, with path separators or of 10,000 characters, wherever a name may stand."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(f"[case]\nmodel = {json.dumps(name)}\n")
    for words in (
        ["plan", name], ["plan", "mine.toml"], ["plan", "single", "--set", f"strategy={name}"],
        ["plan", "single", "--set", f"{name}=1"], ["report", name or "-"], ["list", name or "-"],
    ):  # fmt: skip
        answer = call(*words)
        assert answer.code == 2, words
        assert answer.fault is None, answer.fault
        assert "\x1b" not in answer.text
        assert max(map(len, answer.text.splitlines())) <= 2100
    assert [path.name for path in tmp_path.rglob("*")] == ["mine.toml"]
