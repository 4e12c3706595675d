"""Results on a disk that fills up, turns read-only or goes away: one line, nothing measured lost, and --resume goes on."""

import os
import shutil

import pytest

from tests.e2e.command import ours, ranks, scalemark, start, suite, wait_for
from tests.e2e.disks import Disk
from tests.e2e.test_conductor import PACED, records, second_launch

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a disk of its own")


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MiB under results/ of the test's folder."""
    made = Disk(tmp_path / "results", megabytes=4)
    yield made
    made.close()


def last_line(folder):
    """What the run said last."""
    text = (folder / "out").read_text()
    assert "Traceback" not in text
    return text.strip().splitlines()[-1]


@ROOT
@pytest.mark.parametrize(
    ("spoil", "mend", "says"),
    [
        (lambda disk: disk.fill(), lambda disk: disk.free(), "No space left on device"),
        (lambda disk: disk.lock(), lambda disk: disk.unlock(), "Read-only file system"),
    ],
    ids=["full", "read-only"],
)
def test_a_disk_that_fails_in_the_middle_costs_the_running_launch(tmp_path, disk, spoil, mend, says):
    """The run ends with 74 and one line that names the file; what was on disk stays; --resume runs the rest."""
    name = suite(tmp_path, PACED)
    process = disk.start(tmp_path, "run", name, "--quick", "-o", "results/s")
    try:
        wait_for(lambda: len(ranks(tmp_path)) == 2 and len(lines(disk)) == 1, 120)
        before = lines(disk)
        spoil(disk)
    except BaseException:
        process.kill()
        process.wait()
        raise
    assert process.wait(timeout=120) == 74
    assert says in last_line(tmp_path)
    assert last_line(tmp_path).startswith(f"scalemark: {'results/s'}")
    assert ours(tmp_path) == []

    refused = disk.start(tmp_path, "run", name, "--quick", "-o", "results/s", "--resume")
    assert refused.wait(timeout=60) == (
        74 if says.startswith("No space") else 2
    )  # a full disk may have room for a name
    assert says in last_line(tmp_path)

    mend(disk)
    assert lines(disk)[:1] == before
    assert disk.start(tmp_path, "run", name, "--quick", "-o", "results/s", "--resume").wait(timeout=120) == 0
    shutil.copytree(disk.inside / "s", tmp_path / "copy")
    assert [record.status for record in records(tmp_path / "copy")] == ["ok"] * 3


def lines(disk):
    """Whole lines of the study's launches."""
    path = disk.inside / "s/launches.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return data.splitlines()[: data.count(b"\n")]


@ROOT
def test_a_full_disk_at_the_start_is_one_line(tmp_path, disk):
    """Nothing runs where not even the study's own facts can be written."""
    name = suite(tmp_path, PACED)
    disk.fill()
    assert disk.start(tmp_path, "run", name, "--quick", "-o", "results/s").wait(timeout=60) == 74
    assert "No space left on device" in last_line(tmp_path)
    assert last_line(tmp_path).startswith("scalemark: results/s")


def test_a_removed_study_ends_the_run(tmp_path):
    """The folder is gone in the middle: one line says so, no half study is made in its place, nothing runs on."""
    name = suite(tmp_path, PACED)
    process = start(tmp_path, "run", name, "--quick", "-o", "results/s")
    wait_for(lambda: second_launch(tmp_path), 120)
    shutil.rmtree(tmp_path / "results/s")
    assert process.wait(timeout=60) == 74
    assert last_line(tmp_path) == "scalemark: results/s: was removed while the study ran"
    assert not (tmp_path / "results/s").exists()
    assert ours(tmp_path) == []
    code, out = scalemark(tmp_path, "run", name, "--quick", "-o", "results/again")
    assert code == 0, out
