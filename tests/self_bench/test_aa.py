"""Twenty pairs of the same thing on this host, through `scalemark ab`: how many are called different?"""

import json
import math
import os
import subprocess
import sys

import pytest

from bench import stats
from tests.e2e.command import records, suite

pytestmark = pytest.mark.self_bench

RUNS, BATCHES = 4, (8, 12, 16, 24, 32)  # runs apart, with engines of their own, of five cells each
RUN = "2m"
MOST = 3  # of 20; the nominal rate is 1
SUITE = f"""
[case]
strategy = "single"
model = "mlp"
data = "device"
steps = 30
[matrix]
batch = {list(BATCHES)}
"""


def test_the_same_twice_is_seldom_called_different(benchmark, tmp_path):
    """At most 3 of 20 pairs, each judged alone (5 % nominal) and from the records; nothing is corrected for their number.

    AA_RUNS=1 tries one run of five pairs.
    """
    runs = int(os.environ.get("AA_RUNS", RUNS))
    name = suite(tmp_path, SUITE)
    benchmark.pedantic(lambda: [run(tmp_path, name, seed) for seed in range(runs)], rounds=1)
    found = [one for seed in range(runs) for one in estimates(tmp_path / f"results/aa{seed}")]
    words = [stats.verdict(one) for one in found]
    apart = sum(abs(one.mean) > stats.quantile(0.975, one.freedom) * one.error for one in found)
    called = sum(word in ("faster", "slower", "small change") for word in words)
    told = {word: words.count(word) for word in sorted(set(words))}
    benchmark.extra_info |= {"pairs": len(found), "called": called, "intervals without 0": apart, **told}
    for one, word in zip(found, words, strict=True):
        print(
            f"\n{math.expm1(one.mean):+.2%} ± {stats.quantile(0.975, one.freedom) * one.error:.2%}, {one.n}: {word}",
            end="",
        )
    print(f"\n{len(found)} pairs of the same: {called} called different, {apart} intervals without 0; {told}")
    assert len(found) == runs * len(BATCHES)
    assert called <= MOST


def run(folder, name, seed):
    """Five cells against themselves."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench", "ab", name, "--base", sys.executable, "--new", sys.executable,
         "--json", "--budget", RUN, "--seed", str(seed), "-o", f"results/aa{seed}"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["refusals"] == [], done.stderr


def estimates(study):
    """ln(new / base) of every cell over its blocks, from the records alone."""
    base, new = (logs(study / side) for side in ("base", "new"))
    cells = sorted({cell for cell, _ in base})
    differences = {
        cell: [new[key] - base[key] for key in base.keys() & new.keys() if key[0] == cell] for cell in cells
    }
    return [stats.mean(values) for values in differences.values()]


def logs(study):
    """ln(samples/s) by cell and block, of the launch that counts: the last one."""
    return {
        (r.cell, r.block): math.log(r.window.samples_per_s)
        for r in records(study, again=True)
        if r.status == "ok"
    }
