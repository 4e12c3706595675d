"""How values are written: one formatter, one word for what is missing."""

import math

import pytest

from bench.measures import MEASURES, MISSING, format_bounds, format_change, format_value
from bench.records import PHASES


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("samples_per_s", 1234.5, "1,234 samples/s"),
        ("samples_per_s", 41.23, "41.2 samples/s"),
        ("step_s", 0.0412, "41.2 ms"),
        ("step_s", 0.0000412, "0.0412 ms"),
        ("step_s", 1.5, "1.50 s"),
        ("wall_s", 1500.0, "25.0 min"),
        ("efficiency", 0.7095, "71.0 %"),
        ("efficiency", 1.12, "112.0 %"),
        ("speedup", 0.8213, "0.82x"),
        ("device_used_bytes", 512 * 2**20, "512 MiB"),
        ("device_used_bytes", 3 * 2**29, "1.50 GiB"),
        ("devices", 4.0, "4"),
        ("energy_per_sample_j", 0.0412, "41.2 mJ"),
        ("energy_per_sample_j", 41.2, "41.2 J"),
        ("energy_per_sample_j", 4120.0, "4.12 kJ"),
        ("step_s", 0.0, "0 ms"),
    ],
)
def test_a_value_is_written_with_the_unit_of_its_size(name: str, value: float, text: str) -> None:
    """Seconds become ms, bytes MiB or GiB; an efficiency above 100 % is never clipped; zero is a number."""
    assert format_value(name, value) == text


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_there_is_one_word_for_what_is_missing(value: float | None) -> None:
    """Null, NaN and infinity are all written alike, whatever the measure, and never as 0."""
    assert {format_value(name, value) for name in MEASURES} == {MISSING}
    assert format_change(value) == MISSING


def test_a_change_is_relative_to_the_old_value() -> None:
    """20 minutes that become 25 are +25.0 %, not -20 %."""
    assert format_change(25 / 20) == "+25.0 %"
    assert format_change(20 / 25) == "-20.0 %"


def test_bounds_without_an_interval_say_how_many_launches() -> None:
    """One launch has no interval, and no 0 in its place."""
    assert format_bounds("efficiency", None, None, 1) == "n/a (n = 1)"
    assert format_bounds("efficiency", 0.9, 0.95, 5) == "[90.0 %, 95.0 %]"


def test_every_phase_is_a_measure_and_says_which_way_is_better() -> None:
    """Phases are in the table; throughput is better when higher, a step when lower."""
    assert {f"{phase}_s" for phase in PHASES} <= MEASURES.keys()
    assert MEASURES["samples_per_s"].better == "higher"
    assert MEASURES["step_s"].better == "lower"
