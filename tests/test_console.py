"""The terminal's table of results and its findings."""

import re
from pathlib import Path

import msgspec

from bench.analysis import analyse
from bench.case import Case
from bench.console import results
from bench.records import LaunchRecord
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
    (hook,) = [line for line in shown if name in line and "[" in line]
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


def test_verdicts_are_a_table_with_what_they_could_have_shown(tmp_path: Path) -> None:
    """Change, interval, word, n, smallest visible effect, launches to decide; the pair of equal cells comes first."""
    cells = [Case(data="photos", num_workers=workers) for workers in (0, 2)]
    rate = {0: 100.0, 2: 101.0}
    fields = {"spread": 0.02, "twins": {cells[0].id: 1.0}, "step_s": lambda case: 16 / rate[case.num_workers]}
    shown = lines(tmp_path, cells, **fields)
    head = shown.index("setting change 95 % interval verdict n smallest visible launches to decide")
    assert re.fullmatch(r"same again, .* \[\S+, \S+\] equivalent 5 \d+\.\d% n/a", shown[head + 1])
    assert re.fullmatch(r"num_workers 0 -> 2, .* \[\S+, \S+\] inconclusive 5 \d+\.\d% \d+", shown[head + 2])


def test_a_quick_study_has_no_table_of_verdicts(tmp_path: Path) -> None:
    """One launch a cell decides nothing, so there is none."""
    cells = [Case(data="photos", num_workers=workers) for workers in (0, 2)]
    assert not any("launches to decide" in line for line in lines(tmp_path, cells, quick=True))


def test_two_modes_stand_beside_the_number(tmp_path: Path) -> None:
    """A cell whose launches fall in two groups says so in its row, and a comparison with it in its note."""
    cells = [Case(data="photos", num_workers=workers) for workers in (0, 2)]

    def slow_mode(record: LaunchRecord) -> LaunchRecord:
        if record.requested.num_workers == 0 or record.block % 3:
            return record
        rate = record.window.samples_per_s * 0.7
        return msgspec.structs.replace(
            record, window=msgspec.structs.replace(record.window, samples_per_s=rate)
        )

    analysis = analyse([simulate(tmp_path / "s", cells, blocks=9, spread=0.005, change=slow_mode)])
    assert [("two modes" in cell.marks) for cell in analysis.cells] == [False, True]
    shown = results(analysis).splitlines()
    assert shown[1].split()[-1] == "marks"
    assert shown[3].endswith("  not converged, two modes")
    assert "doubtful: the launches of 2 fall in two groups" in (analysis.comparisons[0].note or "")
