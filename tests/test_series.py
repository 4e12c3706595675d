"""What was sampled as a summary: means, maxima, and what counters rose by in the window."""

import pytest

from bench.series import NOT_AROUND, NOT_THEN, Rows, TelemetrySummary, summarise

ROWS: Rows = {
    "time_s": [1.0, 1.0, 2.0, 2.0, 3.0],
    "node": [0, 0, 0, 0, 0],
    "subject": ["rank 0", "GPU-a", "rank 0", "GPU-a", "rank 0"],
    "measure": ["cpu_percent", "power_w", "cpu_percent", "power_w", "cpu_percent"],
    "value": [10.0, None, 30.0, None, 80.0],
}


def rows(measure: str, *points: tuple[float, float | None], subject: str = "GPU-a") -> Rows:
    """Readings of one measure, and one of another at the start and the end, so that the subject is there."""
    times = [at for at, _ in points]
    return {
        "time_s": times,
        "node": [0] * len(points),
        "subject": [subject] * len(points),
        "measure": [measure] * len(points),
        "value": [value for _, value in points],
    }


def test_summary_gives_mean_and_max_and_keeps_null_apart_from_zero() -> None:
    """A measure that was never read is null with its reason; bounds restrict the readings."""
    summary = summarise(ROWS, {"GPU-a/power_w": "NotSupported", "nvml": "told once"})
    assert summary.measures == {
        "GPU-a/power_w": {"mean": None, "max": None},
        "rank 0/cpu_percent": {"mean": 40.0, "max": 80.0},
    }
    assert summary.reasons == {"GPU-a/power_w": "NotSupported", "nvml": "told once"}
    assert (summary.readings, summary.span_s) == (3, 2.0)
    inner = summarise(ROWS, {}, begin_s=1.0, end_s=2.0)
    assert inner.measures["rank 0/cpu_percent"] == {"mean": 20.0, "max": 30.0}
    assert summarise({name: [] for name in ROWS}, {}) == TelemetrySummary()


def test_energy_is_what_flowed_in_the_window() -> None:
    """100 W until 2 s, then 300 W: of 1.5 s to 3.5 s it is 50 + 450 J, not a mean of a running total."""
    steps = rows("energy_j", (0, 0.0), (1, 100.0), (2, 200.0), (3, 500.0), (4, 800.0))
    assert summarise(steps, {}, 1.5, 3.5).measures == {"GPU-a/energy_j": {"total": pytest.approx(500)}}
    assert summarise(steps, {}, 2.2, 2.7).measures == {"GPU-a/energy_j": {"total": pytest.approx(150)}}
    assert summarise(steps, {}).measures == {"GPU-a/energy_j": {"total": 800}}


def test_events_are_counted_whole() -> None:
    """One error between two readings is one, wherever in between the window begins; earlier ones do not count."""
    errors = rows("ecc_uncorrected", (0, 0.0), (1, 5.0), (2, 6.0), (3, 6.0), (4, 9.0))
    assert summarise(errors, {}, 1.9, 3.0).measures == {"GPU-a/ecc_uncorrected": {"total": 1}}
    assert summarise(errors, {}, 2.0, 3.0).measures == {"GPU-a/ecc_uncorrected": {"total": 0}}


@pytest.mark.parametrize(
    "points",
    [
        [(2, 0.0), (3, 9.0), (5, 20.0)],  # first read when the window had begun
        [(0, 0.0), (2, 9.0), (3, 20.0)],  # the sampler was gone before it ended
        [(0, 0.0), (2, 9.0), (3, None), (5, None)],  # reset on the way
        [(2, 0.0)],
    ],
)
@pytest.mark.parametrize("measure", ["energy_j", "errors"])
def test_a_counter_not_known_on_both_sides_is_null(
    measure: str, points: list[tuple[float, float | None]]
) -> None:
    """What a counter rose by needs a reading before and one after the window: half of it is not given for all."""
    summary = summarise(rows(measure, *points), {}, 1.0, 4.0)
    assert summary.measures == {f"GPU-a/{measure}": {"total": None}}
    assert summary.reasons == ({f"GPU-a/{measure}": NOT_AROUND} if points[-1][1] is not None else {})


def test_a_gap_within_the_window_does_not_spoil_a_counter() -> None:
    """A reading that failed in the middle costs nothing: both sides are known."""
    gap = rows("energy_j", (0, 0.0), (1, None), (2, 200.0))
    assert summarise(gap, {}, 0.5, 1.5).measures == {"GPU-a/energy_j": {"total": pytest.approx(100)}}


def test_what_a_subject_has_at_other_times_only_is_null_with_that_reason() -> None:
    """A measure that is read seldom may miss a short window; a process that was gone by then is left out."""
    mixed = {name: list(column) for name, column in ROWS.items()}
    for column, value in zip(mixed.values(), (0.5, 0, "rank 0", "seldom", 7.0), strict=True):
        column.append(value)
    for column, value in zip(mixed.values(), (0.5, 0, "process 9", "cpu_percent", 7.0), strict=True):
        column.append(value)
    summary = summarise(mixed, {}, 1.0, 3.0)
    assert summary.measures["rank 0/seldom"] == {"mean": None, "max": None}
    assert summary.reasons == {"rank 0/seldom": NOT_THEN}
    assert not any(key.startswith("process") for key in summary.measures)


def test_a_reason_is_dropped_where_nothing_is_null() -> None:
    """A measure that was null only before the window needs no reason; one that failed on the way keeps it."""
    points = rows("power_w", (0, None), (1, 50.0), (2, 60.0), (3, None))
    why = {"GPU-a/power_w": "NoPermission"}
    assert summarise(points, why, 1.0, 2.0).reasons == {}
    assert summarise(points, why, 1.0, 3.0).reasons == why
