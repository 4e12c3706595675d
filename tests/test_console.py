"""The terminal's table of results and its findings."""

from pathlib import Path

from bench.analysis import analyse
from bench.case import Case
from bench.console import results
from tests.simulate import each_rank, failed, simulate

SINGLE, DDP = Case(), Case(strategy="ddp", ranks=2)


def lines(root: Path, cells: list[Case], **fields) -> list[str]:
    """The text of a simulated study, line by line, runs of spaces as one."""
    text = results(analyse([simulate(root / "study", cells, **fields)]))
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_study_with_a_curve_has_an_efficiency(tmp_path: Path) -> None:
    """The base says that it is one, the others their share of the ideal."""
    rate = {1: 100.0, 2: 150.0}
    shown = lines(tmp_path, [SINGLE, DDP], spread=0.0, step_s=lambda c: c.global_batch / rate[c.devices])
    assert shown[1].endswith("efficiency")
    assert shown[2].endswith("base")
    assert shown[3].endswith("75.0 %")


def test_where_every_cell_is_a_base_the_main_setting_is_held_against_its_default(tmp_path: Path) -> None:
    """A column of "base" says nothing: the change from the default stands in its place, at equal other settings."""
    cells = [
        Case(precision=name, channels_last=last) for name in (None, "fp32", "bf16") for last in (False, True)
    ]
    rates = {cell.id: rate for cell, rate in zip(cells, (100, 80, 101, 81, 150, 100), strict=True)}
    shown = lines(tmp_path, cells, spread=0.0, step_s=lambda case: case.global_batch / rates[case.id])
    assert shown[1].endswith("precision vs default")
    changes = [line.rpartition("ms ")[2] for line in shown[2:8]]
    assert changes == ["default", "default", "+1.0 %", "+1.3 %", "+50.0 %", "+25.0 %"]


def test_a_finding_whose_message_names_no_cell_names_its_first(tmp_path: Path) -> None:
    """By its name in the table, with how many more there are; a message that describes its cell stays."""
    name = "PowerSGD over gloo, a bucket at a time"
    shown = lines(tmp_path, [SINGLE, DDP], change=lambda r: each_rank(r, "effective", stand_ins=(name,)))
    (hook,) = [line for line in shown if name in line]
    assert hook.endswith("[no wrapper × 1 and 1 more]")
    loaded = lines(tmp_path / "loaded", [Case(data="photos")])
    (bound,) = [line for line in loaded if "input-bound" in line]
    assert "[" not in bound


def test_a_failure_shows_where_its_log_is(tmp_path: Path) -> None:
    """The path stands on a line of its own below the remedy."""
    store = simulate(tmp_path / "s", [SINGLE], blocks=1, change=failed)
    folder = store.log_dir(next(iter(store.records()[0])).launch)
    assert f"\n    log: {folder}\n" in results(analyse([store])) + "\n"


def test_a_width_beyond_the_value_is_a_range(tmp_path: Path) -> None:
    """No +-503 %: the limits."""
    shown = lines(tmp_path, [SINGLE], blocks=2, spread=0.5)
    assert "+-" not in shown[2]
    assert "[" in shown[2]
