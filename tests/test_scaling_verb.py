"""`scaling`: one table a curve, plain where the output is no terminal, and one JSON object."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.case import Case
from bench.errors import UsageError
from bench.verbs.scaling import PLUGIN
from tests.simulate import failed, simulate

CELLS = [Case(), *(Case(strategy="ddp", ranks=ranks) for ranks in (1, 2, 4))]
SPLIT = {"a": CELLS[:1], "b": CELLS[2:]}
RATES = {1: 100.0, 2: 180.0, 4: 320.0}


def exact(case: Case) -> float:
    """Step times that give RATES."""
    return case.global_batch / RATES[case.devices]


def test_a_row_has_throughput_speed_up_efficiency_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Devices, total and per-device throughput, speed-up, efficiency and the base in words and numbers."""
    PLUGIN([str(simulate(tmp_path / "s", CELLS, spread=0.0, step_s=exact).root)])
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.split()[:1] == ["4"])
    assert " ".join(row.split()) == ("4 16 64 320 samples/s 80.0 samples/s 3.20x 80.0 % [80.0 %, 80.0 %]")
    assert "baseline: single, no wrapper, 100 samples/s on 1 device" in out
    assert "serial fraction (Gustafson): 20.0 % at 2, 26.7 % at 4" in out
    assert "\x1b" not in out


def test_one_launch_shows_that_there_is_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Quick: n/a (n = 1) in the place of an interval."""
    PLUGIN([str(simulate(tmp_path / "s", CELLS, quick=True).root)])
    assert capsys.readouterr().out.count("n/a (n = 1)") == 3


def test_lines_that_could_not_be_read_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A study cut inside its first line: no curve, and the reason beside it; nothing of it where all is whole."""
    store = simulate(tmp_path / "s", CELLS, quick=True)
    PLUGIN([str(store.root)])
    assert capsys.readouterr().err == ""
    store.launches_path.write_bytes(store.launches_path.read_bytes()[:100])
    PLUGIN([str(store.root)])
    captured = capsys.readouterr()
    assert "no curve" in captured.out
    assert captured.err == f"note: {store.launches_path}: 1 line could not be read\n"


def test_json_is_one_object_with_the_curves(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Every point with its values, null where there is no interval, read by a strict parser."""
    store = simulate(tmp_path / "s", CELLS, spread=0.0, step_s=exact, quick=True)
    PLUGIN([str(store.root)], json=True)
    answer = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (curve,) = answer["curves"]
    assert curve["base"] == "single, no wrapper"
    assert [point["efficiency"]["value"] for point in curve["points"]] == pytest.approx([1.0, 0.9, 0.8])
    assert curve["points"][0]["efficiency"]["low"] is None
    assert curve["serial_fraction"] == {"1": None, "2": pytest.approx(0.2), "4": pytest.approx(0.8 / 3)}
    assert answer["note"] is None


def test_several_studies_are_one_curve(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The base of one study and the points of another stand in one table."""
    stores = [simulate(tmp_path / name, cells, spread=0.0, step_s=exact) for name, cells in SPLIT.items()]
    PLUGIN([str(store.root) for store in stores])
    out = capsys.readouterr().out
    assert "baseline: single, no wrapper, 100 samples/s on 1 device" in out
    assert [line.split()[0] for line in out.splitlines() if line.split()[0].isdigit()] == ["2", "4"]


def test_what_is_slower_than_one_device_has_no_serial_share(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """A share above 100 % is no share: it is missing, with the reason."""
    rates = {1: 100.0, 2: 80.0, 4: 150.0}
    store = simulate(
        tmp_path / "s",
        SPLIT["a"] + SPLIT["b"],
        spread=0.0,
        step_s=lambda c: c.global_batch / rates[c.devices],
    )
    PLUGIN([str(store.root)])
    assert "(Gustafson): n/a at 2 (slower than one device), 83.3 % at 4\n" in capsys.readouterr().out


def test_a_study_without_a_curve_says_why(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """All failed: one line, no table, and no error."""
    store = simulate(tmp_path / "s", CELLS, change=failed)
    PLUGIN([str(store.root)])
    assert capsys.readouterr().out == "s: no curve: no launch finished\n"
    PLUGIN([str(store.root)], json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["curves"] == []
    assert answer["note"] == "s: no curve: no launch finished"


def test_names_cannot_format_the_output(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A study's name that looks like markup is printed as it is."""
    PLUGIN([str(simulate(tmp_path / "[red]s[bold]", CELLS, change=failed).root)])
    assert "[red]s[bold]: no curve" in capsys.readouterr().out


def test_what_is_no_study_is_one_line(tmp_path: Path) -> None:
    """A folder that is no study is a UsageError that says so."""
    with pytest.raises(UsageError, match="not a study"):
        PLUGIN([str(tmp_path)])


def test_listing_the_verb_loads_nothing_heavy() -> None:
    """Importing the verb loads neither pandas, scipy nor torch: the command line starts fast."""
    code = (
        "import sys, bench.verbs.scaling\n"
        "print([name for name in ('torch', 'numpy', 'pandas', 'scipy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
