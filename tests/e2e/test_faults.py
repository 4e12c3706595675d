"""Ranks that fail in every way: a record with its class and culprit each, and the other cells go on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.command import ours, records, scalemark, suite

pytestmark = pytest.mark.e2e

SUITE = """
[case]
strategy = "ddp"
ranks = 2
model = "faulty:build"
data = "own"
batch = 4
steps = 8
timeout_s = 6.0
[matrix]
"model_args.fault" = [{faults}]
"""

# fault -> status, class, signal
EXPECTED = {
    "none": ("ok", None, None),
    "warmup": ("ok", None, None),
    "raise": ("failed", "exception", None),
    "exit": ("failed", "exception", None),
    "kill": ("failed", "signal", "SIGKILL"),
    "term": ("failed", "signal", "SIGTERM"),
    "interrupt": (
        "ok",
        None,
        None,
    ),  # not the rank's to judge: an orphan gets one before the engine has noticed
    "thread": ("ok", None, None),
    "segv": ("failed", "signal", "SIGSEGV"),
    "stop": ("timeout", "hang", None),
    "hang": ("timeout", "hang", None),
    "slow": ("timeout", "too_slow", None),
    "name": ("failed", "no_such_name", None),
    "fds": ("failed", "fd_limit", None),
    "uneven": ("failed", "uneven_batches", None),
    "port": ("failed", "port_in_use", None),
    "device_memory": ("failed", "oom_device", None),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """One study with a cell for every fault."""
    folder = tmp_path_factory.mktemp("faults")
    name = suite(folder, SUITE.format(faults=", ".join(f'"{fault}"' for fault in EXPECTED)))
    code, out = scalemark(folder, "run", name, "--quick", "-o", "results/faults")
    return folder, code, out, {r.requested.model_args["fault"]: r for r in records(folder / "results/faults")}


@pytest.mark.parametrize("fault", EXPECTED)
def test_every_fault_has_its_class_and_its_culprit(study, fault):
    """Status, class and signal are right, and the rank named first is the one that was broken."""
    record = study[3][fault]
    status, reason, signal = EXPECTED[fault]
    assert (record.status, record.reason, record.signal) == (status, reason, signal), record.detail
    if status != "ok" and fault not in ("uneven", "slow"):  # an uneven number is seen by all ranks at once
        assert record.first_rank == 1
    assert (record.window is not None) == (status == "ok")


def test_a_misspelt_name_has_the_nearest_beside_it(study):
    """The line of the record ends with the name that was meant."""
    assert study[3]["name"].detail.endswith("did you mean 'device_count'?")


def test_a_rank_that_is_late_in_warm_up_does_not_slow_the_window(study):
    """Half a second of one rank's first step is in the first step's time and not in the window."""
    record = study[3]["warmup"]
    assert record.first_step_s >= 0.5
    assert record.window.step_s < 0.05


def test_a_failed_cell_stops_no_other(study):
    """Every cell has its record, the healthy one its number, and the exit code says that some failed."""
    _, code, out, found = study
    assert len(found) == len(EXPECTED)
    assert found["none"].window.samples_per_s > 0
    assert code == 1
    assert "Traceback" not in out


def test_a_hung_rank_leaves_its_stack_in_its_log(study):
    """At the time limit each rank writes where it stands: the sleeping line is in the log."""
    folder, _, _, found = study
    log = folder / "results/faults/logs" / found["hang"].launch / "1.log"
    assert "faulty.py" in log.read_text()


def test_no_process_is_left_behind(study):
    """After the study nothing of it runs."""
    assert ours(study[0]) == []


def test_a_window_is_not_extended_into_the_time_limit(tmp_path):
    """Steps that still drift when the limit is near keep their window, as unsteady, and say why."""
    text = SUITE.format(faults='"drift"').replace('strategy = "ddp"\nranks = 2', 'strategy = "single"')
    name = suite(tmp_path, text.replace("steps = 8", "steps = 60"))
    code, out = scalemark(tmp_path, "run", name, "--quick", "-o", "results/drift")
    (record,) = records(tmp_path / "results/drift")
    assert (code, record.status) == (0, "ok"), out
    assert (record.window.cut.state, record.window.cut.extended) == ("unsteady", False)
    assert "the time limit is near" in record.window.cut.note


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small /dev/shm")
def test_a_full_shared_memory_is_named(tmp_path):
    """Loader workers on a /dev/shm of 2 MiB fail with the class shm_full, and the cell has its record."""
    text = SUITE.format(faults='"none"').replace('data = "own"', 'data = "own"\nnum_workers = 2')
    text += (
        '[matrix]\n"model_args.megabytes" = [1]\n'
        if "[matrix]" not in text
        else '"model_args.megabytes" = [1]\n'
    )
    name = suite(tmp_path, text)
    inner = (
        "mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "
        f"{sys.executable} -P -m bench run {name} --quick -o results/shm"
    )
    (tmp_path / "faulty.py").write_text((Path(__file__).parent / "faulty.py").read_text())
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inner], cwd=tmp_path, capture_output=True, timeout=120
    )
    (record,) = records(tmp_path / "results/shm")
    assert (record.status, record.reason) == ("failed", "shm_full"), done.stdout.decode()
    assert done.returncode == 4


def memory_group():
    """A folder of a control group with a memory limit that this test may make, or None."""
    for root, limit in (
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    ):
        group = root / "scalemark-test"
        try:
            if not (root / "cgroup.procs").exists():
                continue
            group.mkdir(exist_ok=True)
            (group / limit).write_text(str(1300 << 20))
        except OSError:
            continue
        return group
    return None


def test_out_of_memory_in_a_control_group_is_named(tmp_path):
    """A rank that the kernel kills at the group's limit has the class oom_host, not just a signal."""
    group = memory_group()
    if group is None:
        pytest.skip("no control group with a memory limit can be made here")
    name = suite(tmp_path, SUITE.format(faults='"memory"').replace("timeout_s = 6.0", "timeout_s = 60.0"))
    try:
        code, out = scalemark(
            tmp_path, "run", name, "--quick", "-o", "results/memory",
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )  # fmt: skip
        (record,) = records(tmp_path / "results/memory")
        assert (record.status, record.reason, record.first_rank) == ("failed", "oom_host", 1), out
        assert code == 4
    finally:
        subprocess.run(["rmdir", str(group)], check=False)
