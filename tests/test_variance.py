"""Variance by level: simulated series and launches whose standard deviations are known come out again."""

import numpy as np
import pytest

from bench import variance


def autoregressive(random: np.random.Generator, rows: int, n: int, rho: float) -> np.ndarray:
    """(rows, n) steps around 1 with standard deviation 0.03 and autocorrelation rho."""
    noise = random.normal(0, 0.03, (rows, n + 50))
    x = np.zeros_like(noise)
    for t in range(1, n + 50):
        x[:, t] = rho * x[:, t - 1] + noise[:, t] * np.sqrt(1 - rho**2)
    return 1 + x[:, 50:]


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_error_of_a_mean_counts_that_neighbours_are_alike(rho: float) -> None:
    """Of 500 windows of 150 steps the error says how their means really scatter, within a tenth, at either autocorrelation."""
    steps = autoregressive(np.random.default_rng(1), 500, 150, rho)
    true = steps.mean(1).std(ddof=1)
    said = np.sqrt(np.mean([variance.error_of_mean(row) ** 2 for row in steps]))
    assert said == pytest.approx(true, rel=0.1)


def test_few_steps_have_no_error() -> None:
    """Below 20 steps autocorrelation cannot be told: null. Constant steps: 0. One step has no deviation."""
    assert variance.error_of_mean([1.0] * 19) is None
    assert variance.error_of_mean([1.0] * 20) == 0.0
    assert variance.relative_sd([1.0]) is None
    assert variance.relative_sd([1.0, 3.0]) == pytest.approx(np.sqrt(2) / 2)
    assert variance.relative_sd([0.0, 0.0]) is None


def test_what_steps_explain_is_no_difference_between_launches() -> None:
    """True 1 % between launches and 0.5 % of a mean by its steps: 1 % is found; with no more than the steps', 0."""
    random = np.random.default_rng(2)
    groups = [random.normal(0, np.hypot(0.01, 0.005), 5) for _ in range(400)]
    found = [variance.between_launches([group], [0.005] * 5) for group in groups]
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(0.01, rel=0.1)
    assert variance.between_launches([[0.0, 0.001, 0.0]], [0.01] * 3) == 0.0


def test_too_few_launches_or_allocations_give_null() -> None:
    """Two launches, or one allocation, say nothing about the spread of either."""
    assert variance.between_launches([[0.0, 0.1]], [0.0] * 2) is None
    assert variance.between_launches([[0.0], [0.1], [0.2]], [0.0] * 3) is None
    whole = variance.between_launches([[0.0, 0.1, 0.0]], [0.0] * 3)
    assert whole == pytest.approx(np.std([0, 0.1, 0], ddof=1))
    assert variance.between_allocations([[0.0, 0.1, 0.2]]) is None
    assert variance.between_allocations([[0.0], [0.1]]) is None


def test_launches_whose_steps_say_nothing_have_no_spread_of_their_own() -> None:
    """Where one launch of four has too few steps, what its own explain is in what is seen, and cannot be taken out."""
    logs = [[0.0, 0.1, 0.0, 0.1]]
    assert variance.between_launches(logs, [0.001] * 4) is not None
    assert variance.between_launches(logs, [0.001, None, 0.001, 0.001]) is None


def test_allocations_vary_beyond_their_launches() -> None:
    """2 % between allocations and 1 % between launches, unequal numbers of them: 2 % is found on average."""
    random = np.random.default_rng(3)
    found = []
    for _ in range(400):
        groups = [random.normal(random.normal(0, 0.02), 0.01, n) for n in (4, 5, 8, 5)]
        found.append(variance.between_allocations(groups))
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(0.02, rel=0.1)


def test_a_cell_that_closed_early_does_not_bend_the_blocks() -> None:
    """Block terms come out exactly, though the fast cell ran in the first blocks only; unconnected blocks give None."""
    drift = np.array([0.0, 0.01, 0.03, 0.02, 0.05])
    rows = [(cell, block) for cell in (0, 1) for block in range(5) if not (cell == 0 and block > 2)]
    cells, blocks = zip(*rows, strict=True)
    y = [3.0 * (cell == 0) + drift[block] for cell, block in rows]
    assert variance.block_effects(y, cells, blocks) == pytest.approx(drift)
    assert variance.block_effects([1.0, 2.0], [0, 1], [0, 1]) is None
