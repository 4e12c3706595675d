"""How the report writes numbers and names."""

import pytest

from bench import wording
from bench.answers import Interval
from bench.case import Case
from tests import analysis_samples as samples

SETTINGS = [("precision", "bf16"), ("fused", True), ("num_workers", 2), ("fused", False), ("threads", None)]
ONE = Interval(value=41.2, low=None, high=None, n=1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(41.23, "41.2"), (4123.4, "4,123"), (0.04123, "0.0412"), (0, "0"), (None, "n/a"), (float("inf"), "n/a")],
)
def test_number_has_three_significant_figures(value, text):
    """Numbers have three significant figures, integer parts in full; what is missing or not finite says so."""
    assert wording.number(value) == text


def test_one_launch_has_no_interval():
    """An interval of one launch is said to be missing, with the count; nothing is made up."""
    assert wording.plus_minus(ONE) == "n/a (n = 1)"
    assert wording.bounds(ONE) == "n/a (n = 1)"
    assert wording.share_bounds(ONE) == "n/a (n = 1)"
    assert wording.bounds(None) == "n/a"


def test_a_width_beyond_the_value_is_a_range():
    """±503 % would be a negative throughput: the limits stand in its place."""
    wide = Interval(value=182.0, low=16.1, high=1847.0, n=2)
    assert wording.plus_minus(wide) == "[16.1, 1,847]"
    assert wording.plus_minus(Interval(value=100.0, low=80.0, high=120.0, n=2)) == "±20\u00a0%"


def test_a_setting_always_has_words():
    """A named setting that is off says so; the short labels leave it out."""
    assert [wording.setting(*one) for one in SETTINGS] == [
        "bf16",
        "fused",
        "2 workers",
        "fused off",
        "threads default",
    ]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.79, 0.83, "[79, 83]"), (0.8123, 0.8188, "[81.2, 81.9]"), (1.0, 1.0, "[100, 100]")],
)
def test_decimals_follow_the_interval(low, high, text):
    """An efficiency shows a decimal only where its interval is narrow enough for one."""
    assert wording.share_bounds(Interval(value=(low + high) / 2, low=low, high=high, n=5)) == text


def test_changes_are_signed():
    """The limits of a ratio are shown as signed changes."""
    assert wording.change_bounds(Interval(value=1.02, low=0.991, high=1.05, n=5)) == "[-0.9, +5.0]"


def test_labels_name_what_differs_and_nothing_else():
    """A cell's label has strategy and devices, then only the settings that differ within the study."""
    cases = [Case(strategy="ddp", ranks=2, data="photos", num_workers=workers) for workers in (0, 2)]
    labels = wording.cell_labels([samples.cell(case, 10.0) for case in cases])
    assert list(labels.values()) == ["DDP × 2 · 0 workers", "DDP × 2 · 2 workers"]


def test_equal_labels_are_told_apart_by_id():
    """Cells that differ only in something unnamed get the end of their id."""
    cases = [Case(strategy="ddp", ranks=2, steps=steps) for steps in (10, 20)]
    labels = list(wording.cell_labels([samples.cell(case, 10.0) for case in cases]).values())
    assert labels == [f"DDP × 2 · {case.id[-6:]}" for case in cases]


def test_common_parts_are_said_once():
    """What all texts share is taken out of each and given apart; a single text stays whole."""
    short, common = wording.without_common(["ddp, weak, photos", "dp, weak, photos"])
    assert short == ["ddp", "dp"]
    assert common == "weak, photos"
    assert wording.without_common(["ddp, weak", "ddp, weak, bf16"])[0] == ["default", "bf16"]
    assert wording.without_common(["ddp, weak"]) == (["ddp, weak"], "")


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        ("2026-01-05T10:00:59+00:00", "2026-01-05 10:00 UTC"),
        ("2026-01-05T10:00:59Z", "2026-01-05 10:00 UTC"),
        ("2026-01-05T10:00:59", "2026-01-05 10:00"),
        ("soon\x1b", "soon?"),
    ],
)
def test_moment_reads_as_a_date(stamp, text):
    """A time stamp is shown to the minute with its zone; any other text stays, made harmless."""
    assert wording.moment(stamp) == text


def test_labels_say_how_a_step_is_taken_in_few_words():
    """Precision by its name, a flag by the flag, DDP's buffers by what is unusual, defaults not at all."""
    plain = Case(strategy="zero1", ranks=2)
    fields = ("precision", "compile", "broadcast_buffers", "grad_accumulation")
    assert wording.label(plain, fields[:3]) == "ZeRO-1 × 2"
    case = Case(strategy="ddp", ranks=2, precision="bf16", compile=True, broadcast_buffers=False)
    assert wording.label(case, fields[:3]) == "DDP × 2 · bf16 · compile · buffers not sent"
    assert wording.label(Case(grad_accumulation=4), fields[3:]) == "no wrapper × 1 · grad accumulation 4"
