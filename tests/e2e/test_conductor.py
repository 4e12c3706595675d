"""The conductor, its engine and its samplers, interrupted and killed: nothing measured is lost, nothing is left."""

import signal
import time

import pytest

from tests.e2e import command
from tests.e2e.command import kill, ours, ranks, scalemark, start, suite, wait_for

pytestmark = pytest.mark.e2e

PACED = """
[case]
strategy = "ddp"
ranks = 2
model = "paced"
data = "paced"
num_workers = 1
steps = 40
[matrix]
batch = [4, 5, 6]
"""


def records(study):
    """The launches of a study, less those that were run again because the host was busy with other work."""
    return [record for record in command.records(study) if record.retry_of is None]


def second_launch(folder, results=1):
    """The ranks of the launch that follows the first result, or so many."""
    found = ranks(folder)
    done = folder / "results/s/launches.jsonl"
    return found if len(found) == 2 and done.exists() and done.read_text().count("\n") == results else None


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=LONG), pytest.param(signal.SIGHUP, marks=LONG)],
)
def test_a_signal_keeps_what_was_measured_and_resume_finishes(tmp_path, number):
    """Ctrl-C, SIGTERM or SIGHUP ends the study within 5 s with everything on disk and nothing running; --resume runs the rest once."""
    name = suite(tmp_path, PACED)
    process = start(tmp_path, "run", name, "--quick", "-o", "results/s")
    wait_for(lambda: second_launch(tmp_path), 120)
    began = time.monotonic()
    kill(process, number)
    assert process.wait(timeout=30) == 130
    assert time.monotonic() - began < 5
    assert ours(tmp_path) == []
    words = f"run {name} --quick -o results/s --resume"
    assert f"Go on with: scalemark {words}" in (tmp_path / "out").read_text()
    before = records(tmp_path / "results/s")
    assert [r.status for r in before] == ["ok", "interrupted"]

    code, out = scalemark(tmp_path, "run", name, "--quick", "--resume", "-o", "results/s")
    after = records(tmp_path / "results/s")
    assert code == 0, out
    assert after[:2] == before
    assert sorted(r.cell for r in after if r.status == "ok") == sorted({r.cell for r in after})
    assert len({r.launch for r in after}) == len(after)


def test_a_killed_conductor_leaves_no_process_and_can_be_resumed(tmp_path):
    """After SIGKILL of the conductor engine, ranks, loader workers and sampler end; the study goes on later."""
    name = suite(tmp_path, PACED)
    process = start(tmp_path, "run", name, "--quick", "-o", "results/s")
    wait_for(lambda: second_launch(tmp_path), 120)
    assert len(ours(tmp_path)) >= 6  # conductor, engine, fork server, sampler, two ranks, two workers
    kill(process)
    process.wait()
    wait_for(lambda: not ours(tmp_path), limit_s=10)
    assert [r.status for r in records(tmp_path / "results/s")] == ["ok"]
    code, out = scalemark(tmp_path, "run", name, "--quick", "--resume", "-o", "results/s")
    assert code == 0, out
    assert [r.status for r in records(tmp_path / "results/s")] == ["ok"] * 3


def test_a_killed_engine_or_fork_server_costs_one_launch(tmp_path):
    """Their SIGKILL fails the running launch as engine_lost; the next cells run on a new engine; --resume tries again."""
    name = suite(tmp_path, PACED.replace("[4, 5, 6]", "[4, 5, 6, 7]"))
    process = start(tmp_path, "run", name, "--quick", "-o", "results/s")
    found = wait_for(lambda: second_launch(tmp_path), 120)
    kill(found[0].parent().parent())  # the engine
    found = wait_for(lambda: second_launch(tmp_path, results=2), 120)
    kill(found[0].parent())  # the fork server
    assert process.wait(timeout=120) == 1
    assert [(r.status, r.reason) for r in records(tmp_path / "results/s")] == [
        ("ok", None), ("failed", "engine_lost"), ("failed", "engine_lost"), ("ok", None),
    ]  # fmt: skip
    assert "the fork server died" in records(tmp_path / "results/s")[2].detail
    assert ours(tmp_path) == []

    code, out = scalemark(tmp_path, "run", name, "--quick", "--resume", "-o", "results/s")
    assert code == 0, out  # what failed is tried again, and has its result now
    assert records(tmp_path / "results/s")[-1].status == "ok"
    code, out = scalemark(tmp_path, "run", "single", "--quick", "--resume", "-o", "results/s")
    assert code == 2
    assert "results/s is a study of mine.toml, not of single" in out


def test_a_rank_killed_from_outside_is_the_one_that_is_named(tmp_path):
    """kill -9 of rank 1 gives a record that names rank 1 and SIGKILL; the study goes on."""
    name = suite(tmp_path, PACED)
    process = start(tmp_path, "run", name, "--quick", "-o", "results/s")
    found = wait_for(lambda: second_launch(tmp_path), 120)
    kill(found[1])
    assert process.wait(timeout=120) == 1
    second = records(tmp_path / "results/s")[1]
    assert (second.status, second.reason, second.signal, second.first_rank) == (
        "failed",
        "signal",
        "SIGKILL",
        1,
    )
    assert [r.status for r in records(tmp_path / "results/s")] == ["ok", "failed", "ok"]


def test_a_killed_sampler_costs_its_telemetry_only(tmp_path):
    """Without its sampler a launch still has its numbers, and the reason is in the record."""
    name = suite(tmp_path, PACED.replace("[4, 5, 6]", "[4]").replace("steps = 40", "steps = 100"))
    process = start(tmp_path, "run", name, "--quick", "-o", "results/s")
    wait_for(lambda: len(ranks(tmp_path)) == 2)
    kill(
        wait_for(lambda: next((p for p in ours(tmp_path) if "bench.sampling" in " ".join(p.cmdline())), None))
    )
    assert process.wait(timeout=120) == 0
    (record,) = records(tmp_path / "results/s")
    assert record.window is not None
    assert "sampler" in record.telemetry_reasons


def test_two_conductors_on_one_study_are_refused(tmp_path):
    """The second run on a study that is being written is told so, and the first goes on."""
    name = suite(tmp_path, PACED.replace("[4, 5, 6]", "[4]"))
    first = start(tmp_path, "run", name, "--quick", "--set", "steps=120", "-o", "results/s")
    wait_for(lambda: len(ranks(tmp_path)) == 2)
    code, out = scalemark(tmp_path, "run", name, "--quick", "--resume", "-o", "results/s")
    assert code == 2
    assert "another run is writing this study" in out
    assert first.wait(timeout=120) == 0


def test_two_studies_at_once_both_finish(tmp_path):
    """Ports are chosen free a launch: two studies on one host do not meet."""
    name = suite(tmp_path, PACED.replace("[4, 5, 6]", "[4]"))
    both = [start(tmp_path, "run", name, "--quick", "-o", f"results/s{i}") for i in (1, 2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
