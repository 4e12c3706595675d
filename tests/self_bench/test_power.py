"""How often verdicts are right: false alarms and power of the judging code on simulated launches, as a table."""

import numpy as np
import pytest

from bench.stats import CLAIMS
from tests.judged import SPREADS, pairs, share

pytestmark = pytest.mark.self_bench


def test_false_alarms_and_power(benchmark):
    """2,000 pairs each: identical ones, and ones that are 2 and 5 % slower, at 0.5 to 4 % between launches."""
    rows = benchmark.pedantic(table, rounds=1)
    print("\npair | spread | p < 0.05 | any claim | slower | faster | launches a side")
    for name, spread, found in rows:
        significant = np.mean([one.p_value < 0.05 for one in found])
        launches = np.mean([one.n for one in found])
        said = [significant, share(found, *CLAIMS), share(found, "slower"), share(found, "faster")]
        print(
            f"{name} | {spread} | " + " | ".join(f"{100 * one:.1f} %" for one in said) + f" | {launches:.1f}"
        )
        benchmark.extra_info[f"{name}, {spread}"] = said
    assert all(share(found, "faster") == 0 for name, _, found in rows if name != "identical")


def table():
    """What a pair is, its spread in words, and what became of 2,000 of them."""
    ratios = {
        "identical": 1.0,
        "2 % less throughput": 0.98,
        "5 % longer step": 1 / 1.05,
        "5 % less throughput": 0.95,
    }
    rows = [("identical", "as published", pairs(1.0, SPREADS))]
    for name, ratio in ratios.items():
        rows += [(name, f"{spread} %", pairs(ratio, (spread,))) for spread in (0.5, 1.0, 1.5, 2.0, 4.0)]
    return rows
