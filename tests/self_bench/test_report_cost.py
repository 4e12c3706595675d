"""The report of a large study: time, memory and size, and how they grow."""

import json
import subprocess
import sys
import time

import pytest

from bench.case import Case
from tests.simulate import simulate

pytestmark = pytest.mark.self_bench

REPORT = """
import json, sys, time
from pathlib import Path
began = time.perf_counter()
from bench.analysis import analyse
from bench.report import write
from bench.store import Store
page = write(analyse([Store(Path(sys.argv[1]))]), Path(sys.argv[2]))[0]
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) * 1024  # ru_maxrss would count the pages of the process that started this one
print(json.dumps({"seconds": time.perf_counter() - began, "peak_bytes": peak, "html_bytes": page.stat().st_size}))
"""


def report(root, launches):
    """Simulate a study of so many launches of 8 ranks and 200 steps, and report on it in a fresh process."""
    cells = [
        Case(strategy="ddp", ranks=8, data="photos", steps=200, num_workers=workers, batch=batch)
        for workers in range(10)
        for batch in range(1, 11)
    ]
    began = time.perf_counter()
    store = simulate(root / f"s{launches}", cells, blocks=launches // len(cells), steps=200, write_steps=True)
    print(f"\n{launches} launches simulated in {time.perf_counter() - began:.0f} s")
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(store.root), str(root / f"r{launches}.html")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    print(found)
    return found


def test_a_thousand_launches_make_a_small_quick_report(benchmark, tmp_path):
    """1,000 launches of 8 ranks and 200 steps: at most 20 s, 1.5 GiB and 5 MB of HTML."""
    found = benchmark.pedantic(report, (tmp_path, 1000), rounds=1)
    benchmark.extra_info |= found
    assert found["seconds"] <= 20
    assert found["peak_bytes"] <= 1.5 * 2**30
    assert found["html_bytes"] < 5e6


def test_ten_times_the_launches_cost_at_most_ten_times(benchmark, tmp_path):
    """From 1,000 to 10,000 launches time and memory grow no faster than the data."""
    small = report(tmp_path, 1000)
    large = benchmark.pedantic(report, (tmp_path, 10_000), rounds=1)
    benchmark.extra_info |= {f"growth_{key}": large[key] / small[key] for key in small}
    assert large["seconds"] <= 10 * small["seconds"]
    assert large["peak_bytes"] <= 10 * small["peak_bytes"]
    assert large["html_bytes"] < 5e6
