"""Loader workers and factories that misbehave in every way: the class, the rank, and what is left behind."""

import os
from pathlib import Path

import pytest

from tests.e2e.command import ours, records, scalemark, suite, wait_for
from tests.e2e.test_faults import SUITE

pytestmark = pytest.mark.e2e

WORKERS = SUITE.replace('data = "own"', 'data = "own"\nnum_workers = 2').replace("steps = 8", "steps = 30")
# fault -> status, class, first rank, words of the detail
OF_WORKERS = {
    "worker_kill": ("failed", "loader_worker", 1, "DataLoader worker "),
    "worker_raise": ("failed", "loader_worker", 1, "ValueError: planted <b>failure</b>"),
    "worker_deaf": ("ok", None, None, None),
}
OF_FACTORIES = {
    "factory_raises": (
        "failed",
        "usage",
        1,
        "the factory raised ValueError: planted <b>failure</b>, faulty.py:",
    ),
    "factory_exits": ("failed", "usage", 1, "the factory raised SystemExit: no, thank you, faulty.py:"),
    "factory_prints": ("ok", None, None, None),
    "factory_forks": ("ok", None, None, None),
    "factory_twofold": ("ok", None, None, None),
    "factory_moves": ("ok", None, None, None),
    "factory_binds": ("ok", None, None, None),
}


def run(folder, faults, text=SUITE, **options):
    """One study of these faults: exit code, output, and the launch of each that was not run again."""
    name = suite(folder, text.format(faults=", ".join(f'"{fault}"' for fault in faults)))
    code, out = scalemark(folder, "run", name, "--quick", "-o", "results/s", **options)
    first = [record for record in records(folder / "results/s") if record.retry_of is None]
    return code, out, {record.requested.model_args["fault"]: record for record in first}


def check(found, expected):
    """Status, class, culprit and detail of every fault."""
    assert sorted(found) == sorted(expected)
    for fault, (status, reason, rank, says) in expected.items():
        record = found[fault]
        told = (record.status, record.reason, record.first_rank)
        assert told == (status, reason, rank), (fault, record.detail)
        assert says is None or says in record.detail, record.detail


def test_a_loader_worker_that_fails_is_told_and_one_that_hears_nothing_is_ended(tmp_path):
    """Killed, or raising: its rank is named, with the user's own words. Deaf to SIGTERM: no harm, and it ends too."""
    code, out, found = run(tmp_path, OF_WORKERS, WORKERS)
    check(found, OF_WORKERS)
    assert code == 1
    assert "Traceback" not in out
    assert ours(tmp_path) == []


@pytest.mark.long
def test_a_loader_worker_that_hangs_is_a_hang_of_its_rank(tmp_path):
    """At the time limit the rank whose worker sleeps is the one that is furthest behind, and nothing is left."""
    _, _, found = run(tmp_path, ["worker_hang"], WORKERS)
    record = found["worker_hang"]
    assert (record.status, record.reason, record.first_rank) == ("timeout", "hang", 1), record.detail
    assert ours(tmp_path) == []


@pytest.mark.long
def test_a_factory_may_do_as_it_likes_and_is_told_where_it_fails(tmp_path):
    """What raises or exits is `usage` with its line; printing, forking and moving do no harm; bound CPUs are marked."""
    code, out, found = run(tmp_path, OF_FACTORIES)
    check(found, OF_FACTORIES)
    assert code == 1
    assert "Traceback" not in out
    log = tmp_path / "results/s/logs" / found["factory_prints"].launch / "0.log"
    assert log.stat().st_size >= 1 << 20
    usable = len(os.sched_getaffinity(0))
    bound = [mark for mark in found["factory_binds"].marks if "bound by its model's code" in mark]
    assert len(bound) == (usable > 1)
    assert not any("bound by" in mark for mark in found["factory_moves"].marks)
    log = tmp_path / "results/s/logs" / found["factory_twofold"].launch / "0.log"
    assert "the factory forked, and the child came back: it ends here" in log.read_text()
    assert {rank.effective.world_size for rank in found["factory_twofold"].ranks} == {2}
    wait_for(lambda: not [p for p in ours(tmp_path) + away(tmp_path) if p], 10)


def away(folder):
    """Processes in the folders that a factory has moved to."""
    return [process for place in folder.glob("away-*") for process in ours(place)]


@pytest.mark.long
def test_a_factory_that_always_exits_stops_the_study_before_it_starts(tmp_path):
    """sys.exit(0) while the model is built is bad input in one line, not a success."""
    name = suite(tmp_path, SUITE.format(faults='"factory_always_exits"'))
    code, out = scalemark(tmp_path, "run", name, "--quick", "-o", "results/s")
    assert code == 2
    assert "the factory raised SystemExit: 0, faulty.py:" in out.strip().splitlines()[-1]
    assert not (tmp_path / "results").exists()


@pytest.fixture
def few_processes():
    """A control group that holds at most 600 processes and threads; skipped where none can be made."""
    for root in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = root / f"scalemark-test-{os.getpid()}"
        try:
            if not (root / "cgroup.procs").exists():
                continue
            group.mkdir()
            (group / "pids.max").write_text("600")
        except OSError:
            continue
        yield group
        wait_for(lambda group=group: not (group / "cgroup.procs").read_text(), 10)
        group.rmdir()
        return
    pytest.skip("no control group with a limit of processes can be made here")


@pytest.mark.long
def test_used_up_threads_are_named(tmp_path, few_processes):
    """A rank that takes every thread the group may have fails as thread_limit, and its peer is not blamed."""
    join = lambda: (few_processes / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
    code, out, found = run(tmp_path, ["threads", "none"], preexec_fn=join)
    record = found["threads"]
    assert (record.status, record.reason, record.first_rank) == ("failed", "thread_limit", 1), record.detail
    assert found["none"].status == "ok", found["none"].detail
    assert code == 1, out


@pytest.mark.long
@pytest.mark.parametrize("limit", [8, 16, 24])
def test_a_group_with_hardly_any_processes_gives_no_traceback(tmp_path, few_processes, limit):
    """Where not even the engine, the sampler or the ranks can start, the run says so and ends."""
    (few_processes / "pids.max").write_text(str(limit))
    join = lambda: (few_processes / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
    text = SUITE.replace("faulty:build", "paced").replace('"own"', '"paced"')
    name = suite(tmp_path, text.partition("[matrix]")[0])
    code, out = scalemark(tmp_path, "run", name, "--quick", "-o", "results/s", preexec_fn=join)
    assert code in (1, 2, 4, 74), out
    assert "Traceback" not in out
    assert ours(tmp_path) == []
