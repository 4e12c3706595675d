"""What a study calls its launches and which of them it traces, without running anything."""

import pytest

from bench.stopping import Rules
from bench.study import Study
from tests.hosts import cpu_host
from tests.simulate import simulate
from tests.test_stopping import CASES, four, records


@pytest.fixture
def study(tmp_path):
    """A study over four cells with nothing run."""
    return make(tmp_path)


def make(tmp_path, **rules):
    return Study(four(), simulate(tmp_path / "store", CASES, blocks=0), cpu_host(), Rules(**rules), show=None)


def test_a_launch_that_runs_again_has_a_name_of_its_own(study, tmp_path):
    """The second try of a block is -r1: no record, log or step file is overwritten."""
    (record,) = records(tmp_path, 0.01, 1, status="interrupted", window=None)
    cell = study._plan.cells[0]
    first = study._name(cell, 0)
    study._stopping.take(record)
    assert study._name(cell, 0) == f"{first}-r1"
    assert study._name(cell, 1) == first.replace("b00-", "b01-")


def test_a_trace_that_has_no_place_costs_no_launch(tmp_path):
    """Where the traces' folder cannot be made the launch goes on without one, and the reason is said once a cell."""
    said = []
    study = make(tmp_path, trace=True)
    study._show = type("Show", (), {"say": lambda self, text: said.append(text)})()
    (tmp_path / "store" / "traces").touch()
    cell = study._plan.cells[0]
    assert study._trace_folder(cell, "b00-x") is None
    assert study._trace_folder(cell, "b01-x") is None
    assert len(said) == 1
    assert "no traces" in said[0]
    assert "File exists" in said[0]


def test_the_first_launch_of_a_cell_is_traced(tmp_path):
    """With --trace each cell has one folder of traces; without it none."""
    study = make(tmp_path, trace=True)
    first, second = study._plan.cells[:2]
    assert study._trace_folder(first, "b00-x").endswith("traces/b00-x")
    assert study._trace_folder(first, "b01-x") is None
    assert study._trace_folder(second, "b00-y") is not None
    assert make(tmp_path / "other")._trace_folder(first, "b00-x") is None
