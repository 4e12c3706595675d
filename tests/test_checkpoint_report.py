"""Checkpoints in the report: what its tables and its picture say, the sentence at its top, and its own page."""

import csv

import msgspec
import pytest

from bench.analysis import analyse
from bench.begin import header
from bench.checkpoint_records import AS_IT_IS, MAPS
from bench.checkpoint_rows import append
from bench.figures.checkpoints import PLUGIN, _lines
from bench.plan import Plan
from bench.report import render, write
from bench.report_card import card
from bench.report_checkpoints import loads, saves, ways
from bench.stopping import Rules
from bench.store import Store
from tests import analysis_samples as samples
from tests.checkpoints import bad, load, save, some
from tests.hosts import cpu_host


def column(table, title):
    """The texts of one column."""
    at = [column.title for column in table.columns].index(title)
    return [line.entries[at].text for line in table.lines]


def test_a_line_a_save():
    """Times in milliseconds, sizes in MiB, what is missing as such, and torch's words where a save failed."""
    table = saves(some())
    assert column(table, "saved by")[:4] == ["no wrapper", "no wrapper", "no wrapper", "DDP × 2"]
    assert column(table, "save, ms")[0] == "20.0" and column(table, "on disk, ms")[0] == "50.0"
    assert column(table, "range, ms")[0] == "19.0 to 30.0"
    assert column(table, "outcome")[-1] == "failed" and column(table, "note")[-1] == "No space left on device"
    assert column(table, "save, ms")[-1] == "n/a"


def test_a_line_a_file_and_loader():
    """The ways of loading share a line; its time is that of the way that stands for all."""
    rows = [
        *(load(way, seconds=1.0) for way in MAPS if way != "device"),
        load("device", seconds=0.25),
        load(AS_IT_IS),
    ]
    table = loads(rows)
    assert column(table, "map_location") == ["all ok"] and column(table, "load, ms") == ["250"]
    assert column(table, "equal") == ["yes"]
    assert column(loads([load(), load("cpu", equal=False)]), "equal") == ["no"]
    assert column(loads([bad("refused", "x")]), "equal") == ["n/a"]


@pytest.mark.parametrize(("rows", "text"), [
    ([load("none"), load("cpu")], "all ok"),
    ([load("in place")], "ok"),
    ([bad("refused", "x", "none"), load("cpu"), bad("mismatch", "y", AS_IT_IS)],
     "refused: none; mismatch: keys as they are; else ok"),
    ([bad("refused", "x", "none"), bad("refused", "x", "cpu")], "all refused"),
    ([bad("refused", "x", "none"), bad("failed", "x", "cpu")], "refused: none; failed: cpu"),
])  # fmt: skip
def test_the_ways_that_went_wrong_are_named(rows, text):
    """And the rest is not listed."""
    assert ways(rows) == text


def test_the_picture_pairs_a_save_with_the_load_by_its_own_strategy():
    """A row a save that went well: until all go on, on the disk, and the load that resumes from it, where it was seen."""
    rows = PLUGIN.frame(samples.analysis(checkpoints=some()))
    lines = dict(_lines(rows))
    assert lines["no wrapper, state dict, rank 0"] == {"save_s": 0.02, "durable_s": 0.05, "load_s": 0.01}
    assert lines["no wrapper, dcp, rank 0"]["load_s"] == 0.08
    assert lines["DDP × 2, state dict, rank 0"]["load_s"] == 0.01
    assert "load_s" not in lines["DDP × 2, state dict, every rank"]
    assert "DDP × 2, dcp, rank 0" not in lines
    assert PLUGIN.note(rows) == "1 save failed."


def test_a_study_of_checkpoints_says_so_at_the_top():
    """What came of all loads that were tried, and no limits of cells; a study with cells keeps its own verdict."""
    only = card(samples.analysis(checkpoints=some()))
    assert only.headline == (
        "5 of 6 checkpoints were saved. 15 of 20 loads brought every tensor back bit by bit;"
        " 4 were refused by torch, 1 did not fit the model's keys."
    )
    assert only.limits == []
    assert [(tile.title, tile.value, tile.detail) for tile in only.tiles[1:]] == [
        ("Shortest save", "20.0 ms", "DDP × 2, state dict, every rank"),
        ("Longest save", "120 ms", "no wrapper, dcp, rank 0"),
    ]
    changed = card(samples.analysis(checkpoints=(save(), save("ddp", 2), load(), load("cpu", equal=False))))
    assert changed.headline == (
        "2 of 2 checkpoints were saved. 1 of 2 loads brought every tensor back bit by bit; 1 changed a tensor."
    )
    nothing = card(samples.analysis(checkpoints=(save(outcome="failed", seconds=None),)))
    assert nothing.headline == "0 of 1 checkpoints were saved; none was loaded."
    both = msgspec.structs.replace(samples.study(), checkpoints=some())
    assert card(both).headline == card(samples.study()).headline


def study(root, rows):
    """A study of checkpoints on disk."""
    store = Store(root)
    plan = Plan(suites=("checkpoint",), cells=(), factors={}, estimates={})
    store.create(header(root.name, plan, cpu_host(), Rules(), ("scalemark", "checkpoint")))
    append(root, rows)
    return store


def test_a_study_without_cells_goes_through_to_its_page(tmp_path):
    """Findings, both tables and the picture, nothing of what was not measured, and all rows in the CSV."""
    analysis = analyse([study(tmp_path / "s", some())])
    assert {"checkpoint-not-saved", "checkpoint-prefix"} <= {finding.code for finding in analysis.findings}
    page, *files = write(analysis, tmp_path / "s.html")
    text = page.read_text()
    assert "What does a checkpoint cost?" in text and "What came of saving and loading?" in text
    for other in ("How much faster does it get", "no cells", "0 launches", "A/A", "Every launch", "#cells"):
        assert other not in text
    (table,) = (file for file in files if file.name == "checkpoints.csv")
    lines = list(csv.DictReader(table.read_text().splitlines()))
    assert len(lines) == len(some())
    assert [line["outcome"] for line in lines] == [row.outcome for row in some()]


def test_a_line_cut_short_is_told_in_the_report(tmp_path):
    """The other rows are shown, and a warning counts what is lost."""
    store = study(tmp_path / "s", some())
    with (store.root / "checkpoints.jsonl").open("ab") as file:
        file.write(b'{"kind":"sa')
    analysis = analyse([store])
    assert len(analysis.checkpoints) == len(some())
    (finding,) = (one for one in analysis.findings if one.code == "checkpoint-broken-lines")
    assert finding.level == "warning" and finding.message.startswith("1 line of checkpoints.jsonl")


def test_a_study_without_checkpoints_has_no_such_section():
    """Neither the tables nor the picture."""
    page = render(samples.study())
    assert 'id="saved"' not in page and "What does a checkpoint cost?" not in page


def test_hostile_rows_stay_text():
    """Names and messages from a file that somebody edited are shown, not run."""
    page = render(samples.hostile())
    assert 'id="saved"' in page
    assert "<script>alert" not in page and "\x1b" not in page
