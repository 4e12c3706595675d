"""Statistics: values against scipy's and against published arithmetic, and error rates by simulation."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bench import stats
from bench.stats import Estimate

LOGS = np.log([100.0, 103.0, 98.0, 101.0, 99.5])
finite_logs = st.lists(st.floats(-5, 5), min_size=2, max_size=12)


def test_an_interval_is_students_t_on_logs() -> None:
    """The mean of logs and its t interval, exponentiated."""
    interval = stats.mean_interval(LOGS)
    low, high = scipy.stats.t.interval(0.95, 4, LOGS.mean(), scipy.stats.sem(LOGS))
    assert interval.value == pytest.approx(scipy.stats.gmean([100.0, 103.0, 98.0, 101.0, 99.5]))
    assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert interval.n == 5


def test_one_launch_has_no_interval() -> None:
    """n = 1: null limits, no half-width, no p value, no smallest effect; not 0 and not infinity."""
    one = stats.mean([2.0])
    interval = one.interval()
    assert (interval.low, interval.high, interval.half_width, interval.n) == (None, None, None, 1)
    assert one.p_value is None
    assert stats.smallest_visible(one) is None
    assert stats.welch([1.0], [2.0, 2.1]).interval().low is None


def test_constant_launches_have_an_interval_of_no_width() -> None:
    """Equal launches: width 0, no division by zero, and equal sides are equivalent."""
    interval = stats.mean_interval([1.0, 1.0, 1.0])
    assert interval.low == interval.value == interval.high
    assert stats.verdict(stats.mean([0.0] * 4)) == "equivalent"
    assert stats.verdict(stats.welch([1.0] * 3, [1.0] * 3)) == "equivalent"
    assert stats.welch([1.0] * 3, [1.0] * 3).p_value == 1.0
    assert stats.mean([0.5] * 3).p_value == 0.0


def test_paired_and_welch_agree_with_scipy() -> None:
    """p values and degrees of freedom equal those of scipy's tests."""
    a, b = LOGS, LOGS + np.array([0.01, 0.02, 0.0, 0.03, 0.01])
    assert stats.mean(b - a).p_value == pytest.approx(scipy.stats.ttest_rel(b, a).pvalue)
    welch, theirs = stats.welch(a, b[:4]), scipy.stats.ttest_ind(b[:4], a, equal_var=False)
    assert welch.p_value == pytest.approx(theirs.pvalue)
    assert welch.freedom == pytest.approx(theirs.df)
    low, high = theirs.confidence_interval(0.95)
    assert (welch.interval().low, welch.interval().high) == pytest.approx((math.exp(low), math.exp(high)))


def test_pairing_removes_what_a_block_has_in_common() -> None:
    """Drift shared by both sides of a block widens the unpaired interval and not the paired one."""
    drift = np.linspace(0, 0.2, 6)
    a, b = drift, drift + 0.05 + np.array([1, -1, 1, -1, 1, -1]) * 0.001
    assert stats.verdict(stats.mean(b - a)) == "faster"
    assert stats.verdict(stats.welch(a, b)) == "inconclusive"


@pytest.mark.parametrize(
    ("mean", "error", "n", "word"),
    [
        (0.10, 0.01, 5, "faster"),
        (-0.10, 0.01, 5, "slower"),
        (0.001, 0.002, 5, "equivalent"),
        (0.03, 0.01, 5, "small change"),
        (-0.03, 0.01, 5, "small change"),
        (0.01, 0.05, 5, "inconclusive"),
        (0.0, 0.01, 5, "inconclusive"),
        (0.50, 0.001, 2, "inconclusive"),
        (0.50, None, 1, "inconclusive"),
    ],
)
def test_the_words_of_a_verdict(mean: float, error: float | None, n: int, word: str) -> None:
    """Beyond the margin, inside it, across it, or undecided; never decided from fewer than 3 launches."""
    assert stats.verdict(Estimate(mean=mean, error=error, freedom=n - 1, n=n)) == word


@given(finite_logs)
def test_exchanging_the_sides_exchanges_the_words(logs: list[float]) -> None:
    """faster becomes slower, and every other word stays."""
    swap = {"faster": "slower", "slower": "faster"}
    word = stats.verdict(stats.mean(logs))
    assert stats.verdict(stats.mean([-value for value in logs])) == swap.get(word, word)


@given(finite_logs, st.floats(0.001, 0.2), st.floats(0.001, 0.2))
def test_a_wider_margin_never_finds_more_differences(logs: list[float], small: float, more: float) -> None:
    """What is faster by a large margin is faster by a small one."""
    if stats.verdict(stats.mean(logs), small + more) in ("faster", "slower"):
        assert stats.verdict(stats.mean(logs), small) in ("faster", "slower")


def test_a_correction_rules_out_claims_of_a_difference_only() -> None:
    """Not significant in its family: no faster, slower or small change; equivalent stays."""
    claims = [Estimate(mean=0.1, error=0.01, freedom=4, n=5), Estimate(mean=0.03, error=0.01, freedom=4, n=5)]
    assert [stats.verdict(claim, significant=False) for claim in claims] == ["inconclusive"] * 2
    same = Estimate(mean=0.001, error=0.002, freedom=4, n=5)
    assert stats.verdict(same, significant=False) == "equivalent"


def test_identical_pairs_are_called_different_at_the_nominal_rate() -> None:
    """Of 2,000 identical pairs of 5 launches 5 % exclude 0, and nearly none is called faster or slower."""
    random = np.random.default_rng(1)
    differences = random.normal(0, 0.01, (2000, 5)) - random.normal(0, 0.01, (2000, 5))
    estimates = [stats.mean(row) for row in differences]
    assert np.mean([(one.p_value or 0) < 0.05 for one in estimates]) == pytest.approx(0.05, abs=0.015)
    assert np.mean([stats.verdict(one) in ("faster", "slower") for one in estimates]) < 0.005


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """95 % of the intervals of 3 to 10 launches hold the true throughput."""
    random = np.random.default_rng(2)
    for n in (3, 5, 10):
        rows = [stats.mean_interval(row) for row in random.normal(0, 0.02, (1500, n))]
        assert np.mean([(row.low or 0) <= 1 <= (row.high or 0) for row in rows]) == pytest.approx(
            0.95, abs=0.015
        )


def test_the_smallest_visible_effect_is_seen_with_its_power() -> None:
    """An effect of that size is found in about 80 % of studies of that many launches."""
    random = np.random.default_rng(3)
    effect = stats.smallest_visible(Estimate(mean=0, error=0.01 / math.sqrt(6), freedom=5, n=6))
    assert effect is not None
    rows = random.normal(math.log1p(effect), 0.01, (1500, 6))
    assert np.mean([(stats.mean(row).p_value or 0) < 0.05 for row in rows]) == pytest.approx(0.8, abs=0.05)


def spread(variance: float, count: int) -> np.ndarray:
    """Logs of so many launches with mean 0 and exactly this variance."""
    x = np.linspace(-1, 1, count)
    return x * math.sqrt(variance / x.var(ddof=1))


def test_launches_to_decide_decide() -> None:
    """With that many launches the expected interval decides, with one fewer it does not; past the cap, None."""
    n = stats.still_to_decide(stats.mean(0.03 + spread(0.05**2, 5)))
    assert n is not None
    decides = [stats.mean(0.03 + spread(0.05**2, count)) for count in (n, n - 1)]
    assert [stats.verdict(one) for one in decides] == ["small change", "inconclusive"]
    assert [stats.still_to_decide(one) for one in decides] == [None, n]
    assert stats.still_to_decide(decides[1], cap=n - 1) is None
    assert stats.still_to_decide(stats.mean([0.0, 0.0])) == 3


@pytest.mark.parametrize(
    ("spreads", "launches", "effect", "n"),
    [
        ((0.005, 0.03), (3, 10), 0.02, 12),  # t(11.6) sqrt(0.03^2 / 12 + 0.005^2 / 12) = 0.0192
        ((0.005, 0.03), (10, 3), 0.02, 12),
        ((0.005, 0.03), (4, 4), 0.02, 12),
        ((0.02, 0.03), (3, 40), 0.03, 4),  # t(4.5) sqrt(0.02^2 / 4 + 0.03^2 / 40) = 0.0294: the 40 stay
    ],
)
def test_launches_to_decide_of_sides_that_are_unlike(
    spreads: tuple[float, float], launches: tuple[int, int], effect: float, n: int
) -> None:
    """The smaller side goes on to that number, with its own spread, and then both: so many decide, one fewer not."""

    def after(count: int) -> Estimate:
        ours, theirs = (spread(sd**2, max(count, had)) for sd, had in zip(spreads, launches, strict=True))
        return stats.welch(ours, effect + theirs)

    assert stats.still_to_decide(after(0)) == n
    assert [stats.verdict(after(count)) for count in (n, n - 1)] == ["small change", "inconclusive"]


def test_more_launches_of_the_quiet_side_decide_nothing() -> None:
    """What has to be run is told by the wild side: three of it beside ten quiet ones need as many as three beside three."""
    wild = 0.03 + spread(0.03**2, 3)
    found = [stats.still_to_decide(stats.welch(spread(0.001**2, count), wild)) for count in (3, 10)]
    assert found == [7, 7]


def test_benjamini_hochberg() -> None:
    """Worked example: a prefix of the sorted p values is rejected."""
    p = [0.01, 0.04, 0.03, 0.005]
    assert (stats.benjamini_hochberg_adjusted(p) <= 0.05).tolist() == [True, True, True, True]
    assert (stats.benjamini_hochberg_adjusted([0.04, 0.2, 0.9]) <= 0.05).tolist() == [False, False, False]
    assert (stats.benjamini_hochberg_adjusted([0.03, 0.9, 0.001]) <= 0.05).tolist() == [True, False, True]
    assert (stats.benjamini_hochberg_adjusted([]) <= 0.05).tolist() == []


def test_benjamini_hochberg_agrees_with_scipy() -> None:
    """Rejections equal those of scipy's adjusted p values."""
    p = np.random.default_rng(4).beta(0.3, 1.0, 50)
    assert (stats.benjamini_hochberg_adjusted(p) <= 0.05).tolist() == (
        scipy.stats.false_discovery_control(p) <= 0.05
    ).tolist()


def test_holm() -> None:
    """Holm's own procedure: the smallest p against alpha / m, the next against alpha / (m - 1), until one fails."""
    p = [0.01, 0.04, 0.03, 0.005]
    assert stats.holm_adjusted(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert (stats.holm_adjusted(p) <= 0.05).tolist() == [True, False, False, True]
    assert (stats.holm_adjusted([0.02, 0.02]) <= 0.05).tolist() == [True, True]
    assert (stats.holm_adjusted([0.03, 0.04]) <= 0.05).tolist() == [False, False]
    assert (stats.holm_adjusted([]) <= 0.05).tolist() == []


def test_a_gate_is_stricter_than_a_matrix() -> None:
    """Adjusted p-values: at least the plain ones, at most 1, in the same order, Holm's never below the other's."""
    p = np.random.default_rng(6).beta(0.3, 1.0, 40)
    gate, matrix = stats.holm_adjusted(p), stats.benjamini_hochberg_adjusted(p)
    assert matrix == pytest.approx(scipy.stats.false_discovery_control(p))
    assert np.all((p <= matrix) & (matrix <= gate) & (gate <= 1))
    assert np.all(np.diff(gate[np.argsort(p)]) >= 0)


def test_a_gate_of_equal_sides_rarely_fails() -> None:
    """2,000 gates of ten true null hypotheses: 4 to 6 % have a rejection at all; without the correction 40 %."""
    p = np.random.default_rng(7).uniform(size=(2000, 10))
    assert 0.04 <= np.mean([(stats.holm_adjusted(row) <= 0.05).any() for row in p]) <= 0.06
    assert np.mean((p < 0.05).any(1)) > 0.35


def test_two_groups_of_launches_are_flagged_and_one_is_not() -> None:
    """A slow mode in one launch of ten is seen; normal launches are flagged in at most 2 %."""
    random = np.random.default_rng(5)
    slow = [*random.normal(0, 0.01, 9), -0.15]
    assert stats.bimodal(slow)
    assert stats.bimodal([1.0, 1.0, 1.0, 1.2, 1.2])
    assert not stats.bimodal([1.0] * 8)
    assert not stats.bimodal([0.0, 1.0])
    for n in (5, 10, 20):
        assert np.mean([stats.bimodal(row) for row in random.normal(0, 0.01, (1000, n))]) < 0.025


def test_outliers_are_found_by_tukeys_fences() -> None:
    """One far value in ten is marked; none of a flat or an empty series is."""
    assert stats.tukey_outliers([1, 2, 3, 4, 5, 6, 7, 8, 9, 50]).tolist() == [False] * 9 + [True]
    assert not stats.tukey_outliers([1.0] * 5).any()
    assert stats.tukey_outliers([]).tolist() == []


def test_serial_fractions() -> None:
    """Karp-Flatt and Gustafson recover the fraction they assume; on one device there is none."""
    serial, devices = 0.1, 8
    assert stats.karp_flatt(1 / (serial + (1 - serial) / devices), devices) == pytest.approx(serial)
    scaled_speedup = devices - serial * (devices - 1)
    assert stats.gustafson(scaled_speedup / devices, devices) == pytest.approx(serial)
    assert stats.karp_flatt(1.0, 1) is None
    assert stats.gustafson(1.0, 1) is None


@pytest.mark.parametrize(
    ("series", "knee"),
    [
        ({0: 50, 2: 100, 4: 180, 8: 182, 16: 175}, 4),
        ({0: 100, 1: 80, 2: 60}, 0),
        ({0: 10, 1: 20, 2: 40}, 2),
        ({4: 180, 8: 182, 0: 50}, 4),
    ],
)
def test_the_knee_is_the_smallest_level_within_noise_of_the_best(series: dict[int, int], knee: int) -> None:
    """A flat top is won by its smallest level; no workers at all is a legal answer."""
    assert stats.knee(list(series), list(series.values())) == knee
