"""A wall clock that jumps two hours to and fro, once a second, in every process of a run: no duration notices.

The clock is a library that is preloaded, a stand-in for a clock that somebody sets: this machine's own is not touched.
"""

import shutil
import subprocess
import sys

import pytest

from tests.e2e.command import HERE, ours, scalemark, start, suite
from tests.e2e.test_conductor import PACED, records
from tests.e2e.test_faults import SUITE

pytestmark = [
    pytest.mark.e2e, pytest.mark.long, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here"),
]  # fmt: skip

JUMPS = """
import time
seen, end = [], time.monotonic() + 3
while time.monotonic() < end:
    seen.append(time.time() - time.monotonic())
    time.sleep(0.05)
print(max(seen) - min(seen))
"""


@pytest.fixture(scope="module")
def stepping(tmp_path_factory):
    """Variables that give a process such a clock."""
    library = tmp_path_factory.mktemp("clock") / "stepping.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "stepping_clock.c", "-ldl"], check=True
    )
    return {"LD_PRELOAD": str(library)}


def test_no_duration_follows_a_wall_clock_that_is_stepped(tmp_path, stepping, monkeypatch):
    """All launches are good, their times fit those of a clock that only rises, and report and --resume work."""
    for name, value in stepping.items():
        monkeypatch.setenv(name, value)
    jump = subprocess.run([sys.executable, "-c", JUMPS], capture_output=True, text=True, check=True)
    assert float(jump.stdout) == pytest.approx(7200, abs=1)

    name = suite(tmp_path, PACED)
    code, out = scalemark(tmp_path, "run", name, "--quick", "-o", "results/s")
    assert code == 0, out
    found = records(tmp_path / "results/s")
    assert [record.status for record in found] == ["ok"] * 3
    for record in found:
        assert 0 < record.window.wall_s < record.wall_s < 300
        assert 0 < record.overhead_s < record.wall_s
        assert all(0 <= seconds < 60 for seconds in record.phases_s.values() if seconds is not None)
        assert record.telemetry["rank 0/cpu_percent"]["mean"] is not None
    assert scalemark(tmp_path, "run", name, "--quick", "--resume", "-o", "results/s")[0] == 0
    assert records(tmp_path / "results/s") == found
    assert scalemark(tmp_path, "report", "results/s")[0] == 0
    assert ours(tmp_path) == []


def test_the_time_limit_follows_no_wall_clock(tmp_path, stepping, monkeypatch):
    """A rank that hangs is found after its limit, neither at once nor two hours later."""
    for name, value in stepping.items():
        monkeypatch.setenv(name, value)
    name = suite(tmp_path, SUITE.format(faults='"hang"'))
    start(tmp_path, "run", name, "--quick", "-o", "results/s").wait(timeout=120)
    (record,) = records(tmp_path / "results/s")
    assert (record.status, record.reason, record.first_rank) == ("timeout", "hang", 1), record.detail
    assert record.requested.timeout_s <= record.wall_s < 60
