"""Where warm-up ends, and when a window counts as moving."""

import numpy as np
import pytest

from bench.steady import find_cut, mser, theil_sen_drift


def noisy(steps, spread=0.03, seed=0, correlation=0.5):
    """Step times around 0.1 s with autocorrelated noise."""
    rng = np.random.default_rng(seed)
    noise = np.zeros(steps)
    for i in range(1, steps):
        noise[i] = correlation * noise[i - 1] + rng.normal(0, spread * np.sqrt(1 - correlation**2))
    return 0.1 * (1 + noise)


def test_short_windows_are_assumed_steady_and_say_so():
    """Under 53 steps there are too few blocks: 3 steps and a tenth go, and the state is `assumed`."""
    cut, extend = find_cut(noisy(40))
    assert (cut.first, cut.state, extend) == (7, "assumed", False)


def test_at_least_one_step_is_kept():
    """Even a window of one step has a step left."""
    for steps in (1, 2, 3, 4):
        assert find_cut(noisy(steps))[0].first < steps


def test_a_slow_first_step_leaves_the_mean_alone():
    """Steps of 1.38 s, then 0.1 s: the window's mean is 0.1 s."""
    step_s = np.array([1.38] + [0.1] * 99)
    cut, extend = find_cut(step_s)
    assert not extend
    assert step_s[cut.first :].mean() == pytest.approx(0.1, rel=1e-9)


def test_warm_up_is_found_where_it_ends():
    """Twenty steps that run down from double the time are gone in every run, and mostly little more than those."""
    cuts = []
    for seed in range(40):
        step_s = noisy(120, seed=seed)
        step_s[:20] *= np.linspace(2, 1.2, 20)
        cuts.append(find_cut(step_s)[0].first)
    assert min(cuts) >= 18
    assert np.median(cuts) <= 40


def test_what_is_left_of_warm_up_hardly_moves_the_mean():
    """Exponential warm-up of 30 % over some five steps: what stays in the window is under 0.14 % on average."""
    bias = []
    for seed in range(200):
        plain = noisy(100, spread=0.01, seed=seed)
        cut, _ = find_cut(plain * (1 + 0.3 * np.exp(-np.arange(100) / 5)))
        warm = plain * (1 + 0.3 * np.exp(-np.arange(100) / 5))
        bias.append(warm[cut.first :].mean() / plain[cut.first :].mean() - 1)
    assert np.mean(bias) < 0.0014


@pytest.mark.parametrize("steps", range(60, 65))
def test_the_cut_lies_behind_the_last_slow_step(steps):
    """Ten steps at three times the time are gone whatever the remainder of the steps over whole blocks."""
    step_s = np.full(steps, 0.1)
    step_s[:10] = 0.3
    cut, _ = find_cut(step_s)
    assert cut.first >= 10
    assert step_s[cut.first :].mean() == pytest.approx(0.1)


def test_a_steady_window_is_rarely_extended():
    """Of 200 steady windows of 100 steps with 3 % noise, few are extended: drift needs its interval."""
    extended = sum(find_cut(noisy(100, seed=seed))[1] for seed in range(200))
    assert extended <= 30


def test_a_real_drift_is_extended_once_and_then_called_unsteady():
    """Steps that slow down by 10 % ask for more; if more does not help, the window is `unsteady`."""
    step_s = noisy(100, spread=0.01) * np.linspace(1, 1.1, 100)
    cut, extend = find_cut(step_s)
    assert extend
    assert cut.drift > 0.02
    again, further = find_cut(noisy(200, spread=0.01) * np.linspace(1, 1.2, 200), extended=True)
    assert (again.state, again.extended, further) == ("unsteady", True, False)
    assert "drifts by +" in again.note


def test_constant_steps_are_steady():
    """No spread at all divides by nothing and drifts nowhere."""
    cut, extend = find_cut(np.full(100, 0.1))
    assert (cut.state, extend, cut.drift) == ("steady", False, 0.0)


def test_the_cut_is_the_minimum_of_its_formula():
    """mser returns the d that minimises the squared error over (m - d)^2."""
    z = np.array([5.0, 4.0, 1.0, 1.1, 0.9, 1.0, 1.05, 0.95])
    scores = [np.sum((z[d:] - z[d:].mean()) ** 2) / (8 - d) ** 2 for d in range(5)]
    assert mser(z) == int(np.argmin(scores)) == 2


def test_the_drift_is_relative_to_the_whole_window():
    """A line from 1.0 to 1.1 drifts by a tenth of its median, with an interval around it."""
    drift, low, high = theil_sen_drift(np.linspace(1.0, 1.1, 20))
    assert drift == pytest.approx(0.1 / 1.05)
    assert low <= drift <= high
