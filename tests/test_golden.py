"""A real study, kept in the repository, goes through to the report and gives the numbers it gave before."""

import csv
from pathlib import Path

import pytest

from bench.analysis import analyse
from bench.report import write
from bench.store import Store

ROOT = Path(__file__).parents[1]
STUDY, REPORTS = ROOT / "results" / "example", ROOT / "reports" / "example"
TABLES = sorted(path.name for path in REPORTS.glob("*.csv"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The example's page and tables, made now."""
    folder = tmp_path_factory.mktemp("golden")
    files = write(analyse([Store(STUDY)]), folder / "example.html")
    return {file.name: file for file in files}


def rows(path):
    """A CSV as rows of numbers and texts."""
    with path.open(newline="") as lines:
        return [[number(cell) for cell in row] for row in csv.reader(lines)]


def number(text):
    """The number a cell holds, to nine digits, or its text."""
    try:
        return float(f"{float(text):.9g}")
    except ValueError:
        return text


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_example_are_those_kept(written, name):
    """Every table of reports/example is what the stored launches give today."""
    assert rows(written[name]) == rows(REPORTS / name)


def test_the_page_of_the_example_is_kept_and_whole(written):
    """The page that the README shows has every picture and the same verdict as one made now."""
    kept, made = (ROOT / "reports/example.html").read_text(), written["example.html"].read_text()
    assert kept.count("<svg") == made.count("<svg") >= 5
    sentence = "2 CPU ranks under DDP train"
    at = made.index(sentence)
    assert made[at : at + 120] in kept


def test_the_examples_numbers_hang_together():
    """Efficiency is throughput over N times the base's, phases sum to the step, intervals hold their value."""
    analysis = analyse([Store(STUDY)])
    assert analysis.curves
    for curve in analysis.curves:
        for point in curve.points:
            assert point.per_device * point.devices == pytest.approx(point.samples_per_s.value)
            assert point.efficiency.low <= point.efficiency.value <= point.efficiency.high
            assert point.speedup.value == pytest.approx(
                point.efficiency.value * point.devices / curve.base_devices
            )
    for cell in analysis.cells:
        if cell.step_s:
            assert sum(v for v in cell.phases_s.values() if v is not None) == pytest.approx(
                cell.step_s, rel=0.02
            )
            assert cell.samples_per_s.value * cell.step_s == pytest.approx(cell.case.global_batch, rel=0.05)
