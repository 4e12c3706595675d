"""False alarms and power of the verdicts, on simulated launches with the spread of published repeats."""

import numpy as np
import pytest

from bench.stats import CLAIMS
from tests.judged import SPREADS, pair, pairs, share


def test_identical_pairs_are_called_different_as_often_as_said() -> None:
    """2,000 identical pairs with published spreads: 4 to 6 % have p < 0.05; at most 2 % get a word that claims a difference."""
    found = pairs(1.0, SPREADS)
    assert 0.04 <= np.mean([one.p_value < 0.05 for one in found]) <= 0.06
    assert share(found, *CLAIMS) <= 0.02
    assert share(found, "faster", "slower") <= 0.005
    assert share(found, "equivalent") > 0.8


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_a_noisy_host_has_no_more_false_alarms(spread: float) -> None:
    """At 1 and 4 % between launches: 4 to 6 % by p; no more of them by word; next to none faster or slower."""
    found = pairs(1.0, (spread,))
    assert 0.04 <= np.mean([one.p_value < 0.05 for one in found]) <= 0.06
    assert share(found, *CLAIMS) <= 0.06
    assert share(found, "faster", "slower") <= 0.005


def test_a_loss_of_a_twentieth_is_called_slower() -> None:
    """5 % less throughput at 1 % between launches: slower in at least 95 % with 5 to 6 launches, and seen in all."""
    found = pairs(0.95, (1.0,))
    assert share(found, "slower") >= 0.95
    assert share(found, *CLAIMS) >= 0.999
    assert np.mean([one.n for one in found]) < 6


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_a_loss_of_a_fiftieth_is_never_called_faster(spread: float) -> None:
    """2 % less throughput, whatever the spread: never faster."""
    assert share(pairs(0.98, (spread,)), "faster") == 0


def test_a_machine_that_others_use_half_of_the_time_decides_nothing() -> None:
    """Equal cells, every second launch at random 30 % slower, as beside a program that comes and goes: inconclusive."""
    random = np.random.default_rng(1)
    found = [pair(random, 1.0, 0.01, disturbed=0.3) for _ in range(1000)]
    assert share(found, "inconclusive") >= 0.93
    assert share(found, "equivalent") <= 0.01
