"""What `scaling_case` runs and returns, with launches that are made up."""

from pathlib import Path

import msgspec
import pytest

from bench import scaling_case
from bench.case import Case
from bench.errors import UsageError
from bench.scaling_case import CannotRun, LaunchFailed, run
from tests.hosts import cpu_host, gpu_host
from tests.simulate import failed, launch_record

PAIR = {"strategy": "ddp", "ranks": 2, "model": "mlp", "data": "device"}
STEP_S = {"single": 0.10, "ddp": 0.125}


@pytest.fixture
def conductor(monkeypatch):
    """Runs no process: each launch is as long as STEP_S says, and 20 % longer in block 1, unless `change`d."""

    class Conductor:
        change = staticmethod(lambda record: record)

        def __init__(self, plan, store, host, rules, show):
            self.plan, self.store, self.rules = plan, store, rules

        def run(self):
            self.store.root.joinpath("logs").mkdir()
            for block in range(self.rules.max_launches):
                for order, cell in enumerate(self.plan.runnable):
                    slow = 1.2 if block == 1 else 1.0
                    record = launch_record(cell.case, block, order, slow, step_s=lambda c: STEP_S[c.strategy])
                    record = Conductor.change(record)
                    self.store.append(record)
                    if record.status != "ok" and self.rules.fail_fast:
                        raise scaling_case.FailedFast

    monkeypatch.setattr(scaling_case, "Study", Conductor)
    monkeypatch.setattr(scaling_case, "_host", cpu_host)
    return Conductor


def test_efficiency_is_relative_to_one_device_and_paired(tmp_path, conductor):
    """Two ranks at 0.125 s a step against one at 0.1: 1.6 times the speed; a slow block widens nothing."""
    result = run("two", PAIR, None, 3, tmp_path)
    assert result.speedup.value == pytest.approx(1.6)
    assert result.efficiency.value == pytest.approx(0.8)
    assert (result.efficiency.low, result.efficiency.high) == pytest.approx((0.8, 0.8))
    assert result.samples_per_s.low < result.samples_per_s.value < result.samples_per_s.high
    assert result.base_cell.startswith("single-n1-")
    assert (result.devices, len(result.launches), result.reject) == (2, 3, None)
    assert result.phases_s["data_wait"] is None
    assert sum(v for v in result.phases_s.values() if v) == pytest.approx(result.step_s)


def test_one_launch_has_no_interval(tmp_path, conductor):
    """The value is there, its limits are not, and the study says that it was quick."""
    result = run("two", PAIR, None, 1, tmp_path)
    assert result.efficiency.value == pytest.approx(0.8)
    assert result.efficiency.low is None and result.efficiency.high is None
    assert scaling_case.Store(result.study).header().quick


@pytest.mark.parametrize(
    ("fields", "base", "cells"),
    [
        (PAIR, None, ["single-n1", "ddp-n2"]),
        (PAIR, False, ["ddp-n2"]),
        (PAIR, {"strategy": "ddp", "ranks": 1}, ["ddp-n1", "ddp-n2"]),
        (PAIR | {"ranks": 1}, None, ["ddp-n1"]),
        (PAIR | {"ranks": 1}, {"strategy": "single"}, ["single-n1", "ddp-n1"]),
    ],
)
def test_the_base_is_what_was_asked_for(tmp_path, conductor, fields, base, cells):
    """None: one device for a case of several; False: none; a dict: those settings."""
    result = run("case", fields, base, 1, tmp_path)
    stored = scaling_case.Store(result.study).header().cells
    assert ["-".join(cell.id.split("-")[:2]) for cell in stored] == cells
    assert (result.efficiency is None) == (len(cells) == 1)


def test_a_bare_module_without_data_is_found_as_what_the_plan_made_of_it(tmp_path, conductor, monkeypatch):
    """A factory of a model alone: samples are made up for it and for its base, and the result is of those cells."""
    monkeypatch.chdir(Path(__file__).parents[1])
    result = run(
        "bare", {"strategy": "ddp", "ranks": 2, "model": "examples.my_model:build"}, None, 1, tmp_path
    )
    assert result.cell.startswith("ddp-n2-b8-examples.my-model-build-synthetic-")
    assert result.base_cell.startswith("single-n1-b8-examples.my-model-build-synthetic-")
    assert result.efficiency.value == pytest.approx(0.8)


def test_each_call_is_a_study_of_its_own(tmp_path, conductor):
    """A second case of the same test takes the next number."""
    studies = [run("two", PAIR, None, 1, tmp_path / "results").study for _ in range(2)]
    assert studies == [tmp_path / "results/two-1", tmp_path / "results/two-2"]


def test_what_ran_differently_is_not_judged(tmp_path, conductor):
    """A setting that was not in effect in the base: the reason instead of an efficiency."""

    def change(record):
        said = ("threads: 1 asked for, 2 in effect",) if record.requested.strategy == "single" else ()
        return msgspec.structs.replace(record, mismatches=said)

    conductor.change = staticmethod(change)
    result = run("two", PAIR, None, 2, tmp_path)
    assert result.reject == f"{result.base_cell}: threads: 1 asked for, 2 in effect"
    assert result.efficiency is None and result.speedup is None
    assert result.samples_per_s.value > 0


def test_a_failed_launch_is_its_class_its_words_and_its_log(tmp_path, conductor):
    """One line that names the cell, why it failed and the log of the rank that failed first."""

    def change(record):
        if record.requested.strategy == "single":
            return record
        log = tmp_path / "two-1/logs" / record.launch / "1.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("ValueError: no\n")
        return failed(record)

    conductor.change = staticmethod(change)
    with pytest.raises(LaunchFailed) as caught:
        run("two", PAIR, None, 3, tmp_path)
    text = str(caught.value)
    assert text.startswith("ddp-n2-b8-mlp-device-")
    assert ": exception: rank 1: ValueError: no; see " in text
    assert Path(text.split("; see ")[1]).read_text() == "ValueError: no\n"
    assert [r.status for r in scaling_case.Store(tmp_path / "two-1").records()[0]].count("failed") == 1


@pytest.mark.parametrize(
    ("fields", "base", "says"),
    [
        ({"rank": 2}, None, "settings: unknown name 'rank'; known: .*; did you mean 'ranks'?"),
        (PAIR, {"strateg": "dp"}, "unknown name 'strateg'.*did you mean 'strategy'?"),
        (PAIR | {"ranks": "two"}, None, "ranks: Expected `int`, got `str`"),
        (PAIR | {"precision": "int8"}, None, "precision: unknown name 'int8'; known: bf16, fp16, .*none"),
        (PAIR | {"strategy": "ddpp"}, None, "unknown name 'ddpp'.*did you mean 'ddp'"),
        (PAIR, True, "base: give a dict of settings, None .* or False"),
        (PAIR, "single", "base: give a dict of settings, None .* or False"),
    ],
)
def test_mistakes_are_one_line(tmp_path, conductor, fields, base, says):
    """What, where and what is allowed, as for a suite; no study is begun."""
    with pytest.raises(UsageError, match=says) as caught:
        run("case", fields, base, 1, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_this_host_cannot_run_says_why(tmp_path, conductor, monkeypatch):
    """A rule of legal.py, or fewer devices than asked for: the reason, and no study."""
    with pytest.raises(CannotRun, match="single runs on one device, 2 were asked for"):
        run("case", PAIR | {"strategy": "single"}, False, 1, tmp_path)
    monkeypatch.setattr(scaling_case, "_host", lambda: gpu_host(devices=1))
    with pytest.raises(CannotRun, match="2 devices asked for, 1 to be had"):
        run("case", PAIR, None, 1, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_stops_pytest_too(tmp_path, conductor):
    """An interrupted study is a KeyboardInterrupt to the test's runner."""

    def change(record):
        raise scaling_case.Interrupted

    conductor.change = staticmethod(change)
    with pytest.raises(KeyboardInterrupt):
        run("two", PAIR, None, 1, tmp_path)


def test_a_result_names_a_study_that_the_report_reads(tmp_path, conductor):
    """The stored study holds both cells with their launches, and its curve has the same efficiency."""
    from bench.analysis import analyse

    result = run("two", PAIR, None, 3, tmp_path)
    analysis = analyse([scaling_case.Store(result.study)])
    (curve,) = analysis.curves
    assert curve.points[-1].efficiency.value == pytest.approx(result.efficiency.value)
    assert {cell.launches for cell in analysis.cells} == {3}
    assert Case(**PAIR, batch=8).id == result.cell
