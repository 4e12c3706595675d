"""Other work on the machine while a study runs: launches beside it are marked and run again, and no change is claimed."""

import multiprocessing
import os
import re
import threading
from contextlib import contextmanager

import pytest

from bench.analysis import analyse
from bench.contamination import BUSY, replaced
from bench.store import Store
from tests.e2e.command import records, scalemark, suite

pytestmark = pytest.mark.e2e

SUITE = """
[case]
strategy = "single"
model = "mlp"
model_args = {width = 512}
data = "device"
batch = 256
steps = 50
"""
PACED = """
[case]
strategy = "single"
model = "paced"
data = "device"
batch = 2
steps = 50
"""


def burn():
    """A busy loop."""
    while True:
        pass


class Burners:
    """As many busy loops as there are CPUs, while they are on."""

    def __init__(self):
        self._running = []

    def turn(self, on):
        """Start them, or end them."""
        if on and not self._running:
            context = multiprocessing.get_context("fork")
            self._running = [context.Process(target=burn, daemon=True) for _ in range(os.cpu_count() or 1)]
            for process in self._running:
                process.start()
        elif not on:
            for process in self._running:
                process.kill()
                process.join()
            self._running = []


@contextmanager
def burning(logs, wanted):
    """Busy loops beside the launches whose names are `wanted`, from the moment that their folder of logs appears."""
    over = threading.Event()

    def follow():
        burners = Burners()
        while not over.wait(0.02):
            launches = [path for path in logs.glob("b*") if path.is_dir()]
            newest = max(launches, key=lambda path: path.stat().st_mtime_ns, default=None)
            burners.turn(newest is not None and wanted(newest.name))
        burners.turn(False)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def first_try_in_an_even_block(name):
    """Half of the blocks, and no launch that is run again."""
    return int(re.match(r"b(\d+)-", name)[1]) % 2 == 0 and not re.search(r"-r\d+$", name)


def test_a_launch_beside_a_busy_loop_is_run_again_in_its_block(tmp_path):
    """The first stays on record with its cause, the second has its place unless it is no better; one counts, and it is said."""
    study = tmp_path / "results" / "quick"
    file = suite(tmp_path, PACED)
    with burning(study / "logs", first_try_in_an_even_block):
        code, out = scalemark(tmp_path, "run", file, "-o", "results/quick", "--quick", "--budget", "none")
    assert code == 0, out
    first, again = records(study, again=True)
    assert first.disqualified
    assert any(BUSY in word for word in first.contaminated), first.contaminated
    assert (again.retry_of, again.block, again.order) == (first.launch, 0, 1)
    assert again.launch == f"{first.launch}-r1"
    assert f"[1:again] {again.cell}" in out
    kept, gone = (first, again) if again.disqualified else (again, first)  # by what else runs on the host
    (left_out,) = analyse([Store(study)]).exclusions
    assert (left_out.launch, left_out.cause) == (gone.launch, "contaminated")
    assert kept.launch in left_out.reason


@pytest.mark.long
def test_a_busy_loop_beside_half_of_the_launches_makes_no_change(tmp_path):
    """Every launch beside it is marked with what it took; some run again; the same cell twice does not differ."""
    study = tmp_path / "results" / "busy"
    file = suite(tmp_path, SUITE)
    with burning(study / "logs", first_try_in_an_even_block):
        code, out = scalemark(tmp_path, "run", file, "-o", "results/busy", "--aa", "--budget", "150s")
    assert code == 0, out
    found = records(study, again=True)
    beside = [record for record in found if first_try_in_an_even_block(record.launch)]
    assert len(beside) >= 2
    for record in beside:
        assert any(BUSY in word for word in record.contaminated), (record.launch, record.contaminated)
        assert record.disqualified
    again = [record for record in found if record.retry_of]
    assert 1 <= len(again) <= max(2, 2 * 5 // 5)
    instead = replaced(found)
    assert instead.keys() <= {record.launch for record in found if record.disqualified}
    assert all(record.block == int(record.retry_of[1:3]) for record in again)
    analysis = analyse([Store(study)])
    assert {row.launch for row in analysis.exclusions if "contaminated" in row.cause} >= instead.keys()
    (twin,) = analysis.twins
    assert twin.verdict not in ("faster", "slower"), twin
