"""The report: what it says, that it says it safely, and that it is written whole or not at all."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench import plugins, report, report_card, report_facts, report_tables, report_trust, wording
from bench.analysis import analyse
from bench.answers import Best, Drift, Spread
from bench.case import Case
from bench.console import results
from bench.errors import UsageError
from bench.figures import _canvas, _curves
from bench.tables import amount, data
from tests import analysis_samples as samples
from tests import simulate

PERCENT = "\u00a0%"


def texts(table):
    """The texts of a table, a list a row."""
    return [[entry.text for entry in line.entries] for line in table.lines]


def column(table, title):
    """The texts of one column."""
    at = [one.title for one in table.columns].index(title)
    return [line.entries[at].text for line in table.lines]


def read(path):
    """The rows of a CSV."""
    return list(csv.DictReader(path.read_text().splitlines()))


# The verdict card


def test_headline_is_one_sentence_for_a_newcomer():
    """Devices, strategy, throughput, speed-up, efficiency, base and main loss stand in the first sentences."""
    assert report_card.card(samples.study()).headline.replace(PERCENT, " %") == (
        "2 CPU ranks under DDP train 41.2 samples/s, 1.62 times one rank: 81 % [79, 83] of ideal "
        "(base: single, no wrapper, 25.4 samples/s). "
        "Most of the loss: waiting in backward for the other rank (118 ms, 15 % of the step)."
    )


def falling(n=5, rate=20.0):
    """A study in which one device is faster than two."""
    single, two = Case(), Case(strategy="ddp", ranks=2)
    best, more = (
        Best(
            cell=case.id,
            label="",
            samples_per_s=samples.interval(value, n=n),
            efficiency=share,
            base="b",
            loss=None,
        )
        for case, value, share in ((single, 25.0, None), (two, rate, samples.interval(rate / 50, n=n)))
    )
    cells = (samples.cell(single, 25.0, n), samples.cell(two, rate, n))
    drawn = (
        samples.curve(
            "ddp",
            [two],
            [rate],
            single,
            n,
            base_samples_per_s=25.0,
            points=(samples.point(two, rate, 25.0, n),),
        ),
    )
    ratio = samples.interval(rate / 25, n=n)
    return samples.analysis(cells=cells, curves=drawn, best=best, best_note=None, more=more, more_ratio=ratio)


def test_headline_says_first_that_more_devices_are_slower():
    """One device wins: that more are slower comes first, then what the best of those reaches."""
    text = report_card.card(falling()).headline.replace(PERCENT, " %")
    assert text == (
        "More devices are slower than one: 1 CPU rank without a wrapper trains 25.0 samples/s. "
        "The best on more devices: 2 CPU ranks under DDP train 20.0 samples/s, 0.8 times one rank: "
        "40.0 % [39.0, 41.0] of ideal (base: single, no wrapper, 25.0 samples/s)."
    )
    tiles = {tile.title: tile.value for tile in report_card.card(falling()).tiles}
    assert tiles["Efficiency on 2 devices"].replace(PERCENT, " %") == "40.0 %"


def test_headline_says_which_one_rank_more_are_held_against():
    """One rank under DDP wins, and the base is another one: 0.8 times is not of the 26 samples/s just named."""
    fallen, alone = falling(), Case(strategy="ddp")
    shown = msgspec.structs.replace(
        fallen,
        cells=(*fallen.cells, samples.cell(alone, 26.0)),
        best=msgspec.structs.replace(fallen.best, cell=alone.id, samples_per_s=samples.interval(26.0)),
    )
    headline = report_card.card(shown).headline.replace(PERCENT, " %")
    assert ": 1 CPU rank under DDP trains 26.0 samples/s. The best on more devices: " in headline
    assert "train 20.0 samples/s, 0.8 times one rank without a wrapper: 40.0 % [" in headline


def test_headline_of_a_loss_says_how_sure_it_is():
    """One launch has no interval; what is not told apart is no loss."""
    assert report_card.card(falling(n=1)).headline.startswith(
        "More devices are slower than one (one launch: no interval): "
    )
    assert report_card.card(falling(rate=24.9)).headline.startswith("More devices gain nothing over one: ")


def test_headline_and_card_name_the_settings_that_won():
    """Settings that vary and are off their defaults, and what they give over the default ones."""
    case = Case(strategy="ddp", ranks=2, precision="bf16", fused=True, cpu_binding="cores")
    best = Best(
        cell=case.id,
        label="",
        samples_per_s=samples.interval(298.0),
        efficiency=None,
        base=None,
        loss=None,
        settings=("cpu_binding", "precision", "fused"),
        over_plain=samples.interval(2.026),
    )
    one = samples.analysis(cells=(samples.cell(case, 298.0),), best=best, best_note=None)
    card = report_card.card(one)
    assert card.headline == (
        "2 CPU ranks under DDP with cpu binding cores, bf16 and fused train 298 samples/s. "
        "These settings give +102.6 % [+98.5, +106.7] over the default ones."
    )
    assert "Settings" in {tile.title for tile in card.tiles}
    base, bare = Case(precision="bf16", fused=True, cpu_binding="cores"), Case()
    for single, words in ((base, "times one rank with the same: "), (bare, "times one rank: ")):
        drawn = samples.curve("ddp", [case], [298.0], single, points=(samples.point(case, 298.0, 216.0),))
        shown = msgspec.structs.replace(
            one,
            cells=(*one.cells, samples.cell(single, 216.0)),
            curves=(drawn,),
            best=msgspec.structs.replace(best, efficiency=samples.interval(0.69)),
        )
        assert words in report_card.card(shown).headline
    unknown = msgspec.structs.replace(one, best=msgspec.structs.replace(best, over_plain=None))
    assert "over the default" not in report_card.card(unknown).headline


def test_headline_of_one_device_claims_no_scaling():
    """On one device there is a throughput and a sentence about what it doesn't say."""
    card = report_card.card(samples.one_point())
    assert card.headline == "1 CPU rank without a wrapper trains 25.4 samples/s."
    assert card.limits == ["Everything was measured on 1 device, so nothing can be said about scaling."]


def test_a_quick_card_has_no_interval_and_says_so():
    """With one launch a cell no interval is shown and the card says that there is no verdict."""
    card = report_card.card(samples.quick())
    assert "[" not in card.headline
    assert card.limits == ["One launch a cell: no intervals and no verdicts."]
    assert card.settings == []


def test_a_study_without_results_says_why():
    """Where every launch failed the card gives the reason instead of a number."""
    card = report_card.card(samples.all_failed())
    assert card.headline == "No configuration can be called best."
    assert "None of 2 cells gave a number: rank 1: SIGKILL." in card.limits
    assert [tile.title for tile in card.tiles] == ["Findings"]


def test_the_card_counts_problems_and_warnings_only():
    """A note is no warning: the sample has one problem, one warning and two notes."""
    tile = report_card.card(samples.study()).tiles[-1]
    assert (tile.value, tile.detail, tile.href) == ("2", "1 problem, 1 warning", "#findings")


def test_the_card_names_the_largest_decided_settings():
    """Settings come largest change first, each once, and undecided ones not at all."""
    chosen = report_card.card(samples.study()).settings
    assert [(one.factor, one.verdict) for one in chosen] == [
        ("sync_bn", "slower"),
        ("num_workers", "faster"),
        ("strategy", "small change"),
    ]


# Tables


def test_scaling_table_values():
    """A curve's table holds throughput, speed-up, efficiency and interval of every device count."""
    table = report_tables.scaling(samples.study().curves[0])
    assert column(table, "devices") == ["1", "2", "4"]
    assert column(table, "samples/s") == ["25.4", "41.2", "52.0"]
    assert column(table, "speed-up") == ["1.00", "1.62", "2.05"]
    assert [one.replace(PERCENT, " %") for one in column(table, "efficiency")] == ["100 %", "81 %", "51 %"]
    assert column(table, "Gustafson")[0] == "n/a"
    assert "base: single, no wrapper, 25.4 samples/s" in table.caption


def test_a_point_below_its_base_has_no_serial_share():
    """The reason stands where the share would be; the base's own count stays n/a."""
    curve = falling().curves[0]
    curve = msgspec.structs.replace(curve, serial_fraction={2: None})
    assert column(report_tables.scaling(curve), "Gustafson") == ["n/a: slower than one device"]


def test_strong_scaling_names_its_own_law():
    """The serial part is Karp-Flatt's under strong scaling, and never under the other's name."""
    strong = msgspec.structs.replace(samples.study().curves[0], scaling="strong")
    titles = [one.title for one in report_tables.scaling(strong).columns]
    assert "Karp-Flatt" in titles
    assert "Gustafson" not in titles


def test_comparison_table_keeps_the_inconclusive():
    """An undecided comparison stands in the table with the launches that would decide it."""
    table = report_tables.comparisons(samples.study())
    assert column(table, "verdict") == ["faster", "inconclusive", "equivalent", "slower", "small change"]
    assert column(table, "launches to decide") == ["n/a", "12", "n/a", "n/a", "n/a"]


def test_comparison_table_has_n_and_the_familys_p():
    """Every comparison says how many launches it rests on, and its p-value adjusted for the family."""
    analysis = samples.study()
    judged = msgspec.structs.replace(analysis.comparisons[0], p_value=0.0004, p_adjusted=0.002, family=5)
    table = report_tables.comparisons(msgspec.structs.replace(analysis, comparisons=(judged,)))
    assert (column(table, "n"), column(table, "p")) == (["5"], ["0.002"])


def test_trust_says_what_is_known_and_what_is_not():
    """An older study: no A/A pair, no drift, no cost of marks, in words; a new one has the figures."""
    labels = {cell.cell: "DDP × 2" for cell in samples.study().cells}
    said = dict(report_trust.facts(samples.study(), labels))
    assert said["The same cell twice"].startswith("No A/A pair was run (--aa)")
    assert said["Cost of the instrumentation"] == "Not known: these launches did not time their marks."
    assert said["Drift over the study"].startswith("Not known")
    analysis = samples.study()
    spread = Spread(
        step=0.03, within=0.004, launches=0.012, allocations=None, launch_count=5, allocation_count=1
    )
    cells = [
        msgspec.structs.replace(analysis.cells[0], spread=spread, instrumentation=0.00021, step_s=0.1),
        *analysis.cells[1:],
    ]
    drift = Drift(study="s", blocks=6, change=samples.interval(0.97, 0.01), real=True)
    analysis = msgspec.structs.replace(analysis, cells=tuple(cells), drifts=(drift,))
    said = dict(report_trust.facts(analysis, labels))
    assert "at most 0.021\u00a0% of it, 0.021 ms (DDP × 2)" in said["Cost of the instrumentation"]
    assert said["Drift over the study"].startswith("-3.0 % [-4.0, -2.0] from the first of 6 blocks")
    (table,) = report_trust.tables(analysis, labels)
    assert column(table, "between launches") == ["1.20\u00a0%"]
    assert column(table, "between allocations") == ["n/a"]
    (row,) = report_trust.files(analysis)["spread.csv"]
    assert (row["launches_sd"], row["allocations_sd"], row["instrumentation_share"]) == (0.012, None, 0.00021)


def test_every_launch_left_out_has_its_cause_and_the_launch_that_stands_for_it(tmp_path):
    """A contaminated launch that was run again is in the ledger and in no number; one that was kept is marked."""

    def dirty(record):
        words = ("busy host: other processes used 1.5 of 2 CPUs",) if record.block < 2 else ()
        return msgspec.structs.replace(record, contaminated=words, disqualified=bool(words))

    store = simulate.simulate(tmp_path / "s", [Case()], change=dirty)
    first, *_ = store.records()[0]
    clean = msgspec.structs.replace(
        first, launch="again", contaminated=(), disqualified=False, retry_of=first.launch
    )
    store.append(clean)
    second = store.records()[0][1]
    wild = msgspec.structs.replace(second.window, samples_per_s=second.window.samples_per_s * 9)
    store.append(msgspec.structs.replace(second, launch="no better", retry_of=second.launch, window=wild))
    analysis = analyse([store])
    row, worse = report_facts.exclusion_rows(analysis)
    assert (row["launch"], row["cause"], row["study"]) == (first.launch, "contaminated", "s")
    assert (worse["launch"], worse["cause"]) == ("no better", "contaminated")
    assert worse["reason"].endswith(f"; run again no better: {second.launch} stays")
    assert (analysis.cells[0].launches, analysis.cells[0].replaced) == (5, 2)
    assert column(report_tables.cells(analysis, {analysis.cells[0].cell: "it"}), "launches") == [
        "5 (+2 replaced)"
    ]
    assert "5 (+2 replaced)" in results(analysis)
    assert analysis.cells[0].samples_per_s.high < 2 * analysis.cells[0].samples_per_s.low
    assert row["reason"] == "busy host: other processes used 1.5 of 2 CPUs; replaced by again"
    assert analysis.cells[0].samples_per_s.n == 5
    assert analysis.cells[0].marks == (
        "busy host: other processes used 1.5 of 2 CPUs",
    )  # of the second, kept


def test_energy_has_a_column_where_a_device_told_of_it():
    """Cells without it say n/a; a study on CPUs has no such column, and its CSV an empty one."""
    analysis = samples.gpus()
    labels = {cell.cell: cell.cell for cell in analysis.cells}
    shown = column(report_tables.cells(analysis, labels), "energy a sample")
    assert shown[:2] == ["503 mJ", "510 mJ"]
    assert shown[-1] == "n/a"
    cpu = samples.study()
    titles = [one.title for one in report_tables.cells(cpu, {c.cell: c.cell for c in cpu.cells}).columns]
    assert "energy a sample" not in titles
    assert {row["energy_per_sample_j"] for row in report_facts.cell_rows(cpu.cells, ())} == {None}


def test_memory_kinds_that_nobody_has_are_no_columns():
    """On a CPU host there is no column of device memory; on devices there is."""
    cpu, gpu = samples.study(), samples.gpus()
    titles = [
        {column.title for column in report_tables.memory(one, wording.cell_labels(one.cells)).columns}
        for one in (cpu, gpu)
    ]
    assert "allocated" not in titles[0]
    assert {"allocated", "reserved", "device used", "rank, PSS"} <= titles[1]


def test_failed_cells_stand_in_the_table_without_numbers():
    """A failed cell keeps its row: status, reason, and n/a where a number would be."""
    analysis = samples.study()
    table = report_tables.cells(analysis, wording.cell_labels(analysis.cells))
    assert column(table, "status")[-1] == "failed"
    assert column(table, "samples/s")[-1] == "n/a"
    assert column(table, "marks, reason")[-1] == "rank 1: SIGKILL"


def test_missing_has_no_sort_value():
    """What is missing sorts as missing, not as zero."""
    assert amount(None).sort is None
    assert amount(0.0).sort == 0.0


def test_long_data_is_cut_and_says_so():
    """A picture's table shows its first rows and how many there are."""
    table = data([{"at": place} for place in range(1000)])
    assert len(table.lines) == 300
    assert table.note == "First 300 of 1,000 rows; the CSV has all."


# The page


@pytest.mark.parametrize("sample", samples.SAMPLES.values(), ids=samples.SAMPLES)
def test_every_kind_of_study_gives_a_whole_page(sample):
    """Every section is there, and no None, nan or template syntax leaks into the text."""
    page = report.render(sample())
    for section in ("verdict", "findings", "throughput", "cells", "exclusions", "environment", "method"):
        assert f'id="{section}"' in page
    text = re.sub(r"<(style|script|svg).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    assert not re.search(r"\bNone\b(?! of)|\bnan\b|\binf\b|\{\{|\{%", text)
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")


@pytest.mark.parametrize("name", ["study", "hostile", "gpus"])
def test_the_same_analysis_gives_the_same_bytes(name):
    """Nothing of the moment or of the process is in the page."""
    assert report.render(samples.SAMPLES[name]()) == report.render(samples.SAMPLES[name]())


def test_hostile_names_are_text():
    """Markup, terminal codes and direction marks in names come out as harmless, short text."""
    page = report.render(samples.hostile())
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "A" * 1001 not in page
    assert len(page) < 1_000_000


def test_the_page_asks_nobody():
    """A policy forbids all loading, and no element names another place."""
    page = report.render(samples.study())
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?:[a-z]+:)?//', page)
    assert not re.findall(r"url\((?!#)", page)
    assert "@import" not in page


def test_findings_come_problems_first_with_remedies():
    """Problems stand before warnings; each has its remedy and a link to its cell's row."""
    page = report.render(samples.study())
    assert page.index('class="problem"') < page.index('class="warning"') < page.index('class="info"')
    for finding in samples.FINDINGS:
        assert finding.remedy in page
    assert 'href="#cell-3"' in page
    assert 'id="cell-3"' in page


def test_pictures_without_rows_say_why():
    """An empty study has no empty frame: each question is answered by a sentence."""
    page = report.render(samples.empty())
    assert "<svg" not in page
    assert page.count('class="nothing"') >= 5


def test_launches_that_are_in_no_number_are_told_apart(tmp_path: Path) -> None:
    """Of five launches one still drifted at its end: the numbers are of four, and the column says so."""

    def drifting(record):
        if record.block:
            return record
        cut = msgspec.structs.replace(record.window.cut, state="unsteady")
        return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, cut=cut))

    store = simulate.simulate(tmp_path / "s", [Case()], blocks=5, change=drifting)
    (cell,) = analyse([store]).cells
    assert (cell.launches, wording.launches(cell)) == (5, "4 of 5")


def test_a_thousand_launches_stay_small():
    """1,000 launches of 8 ranks make a page under 5 MB that says what its pictures leave out."""
    page = report.render(samples.large())
    assert len(page.encode()) < 5_000_000
    assert "Showing the 24 fastest of 200 cells" in page
    assert page.count('<tr id="cell-') == 200


def test_render_needs_no_torch():
    """A report can be made where torch is not installed."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.path.insert(0, sys.argv[1])\n"
        "from tests import analysis_samples; from bench.report import render; print(len(render(analysis_samples.study())))"
    )
    here = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# The files


def test_links_lead_to_the_files(tmp_path):
    """Every CSV that the page links to lies in the folder of its name beside it."""
    page, *files = report.write(samples.study(), tmp_path / "a study.html")
    linked = set(re.findall(r'href="(a%20study/[^"]+\.csv)"', page.read_text()))
    assert linked == {f"a%20study/{file.name}" for file in files}
    assert all(file.parent == tmp_path / "a study" for file in files)


def test_csv_keeps_numbers_whole(tmp_path):
    """A CSV holds full precision, an empty field for None, and units in its heading."""
    report.write(samples.study(), tmp_path / "r.html")
    rows = read(tmp_path / "r" / "cells.csv")
    assert float(rows[2]["samples_per_s"]) == 41.2
    assert rows[-1]["samples_per_s"] == rows[-1]["step_s"] == rows[0]["h2d_s"] == ""
    assert {"memory_bytes", "first_step_s", "num_workers", "global_batch"} <= set(rows[0])


def test_csv_holds_no_formula(tmp_path):
    """A name that a spreadsheet would run is kept as text."""
    case = Case(strategy="single")
    bad = samples.analysis(cells=(samples.cell(case, None, reason="=HYPERLINK(1)"),))
    report.write(bad, tmp_path / "r.html")
    rows = read(tmp_path / "r" / "cells.csv")
    assert rows[0]["reason"] == "'=HYPERLINK(1)"


def test_files_of_an_earlier_report_do_not_stay(tmp_path):
    """A CSV that has no rows any more is removed; other people's files stay."""
    path = tmp_path / "r.html"
    report.write(samples.study(), path)
    (tmp_path / "r" / "mine.txt").write_text("x")
    report.write(samples.all_failed(), path)
    assert sorted(file.name for file in (tmp_path / "r").iterdir()) == [
        "cells.csv",
        "exclusions.csv",
        "mine.txt",
    ]


def test_a_write_that_fails_leaves_the_old_page(tmp_path, monkeypatch):
    """If the disk fails in the middle the old page stays whole and nothing half-written is left."""
    path = tmp_path / "r.html"
    report.write(samples.one_point(), path)
    before = path.read_bytes()

    rename = os.replace

    def full(source, target):
        if Path(target).suffix == ".html":
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match=r"r\.html: the report cannot be written here: No space left"):
        report.write(samples.study(), path)
    assert path.read_bytes() == before
    assert not [file for file in tmp_path.rglob(".*") if file.is_file()]


@pytest.mark.parametrize("name", ["r", "r.txt", "r.html.gz"])
def test_a_report_is_an_html_file(tmp_path, name):
    """A name that isn't an HTML file is refused in one line, and nothing is written."""
    with pytest.raises(UsageError, match=r"give a name that ends in \.html"):
        report.write(samples.study(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["file/r.html", "file/deeper/r.html", "x" * 300 + ".html"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, inside):
    """A place that is no folder, or a name that is too long, gives one line that says what to do."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="choose another place by -o") as caught:
        report.write(samples.study(), tmp_path / inside)
    assert "\n" not in str(caught.value)


# Pictures of many settings


def many_curves(count=8):
    """Curves of which the plain one is the slowest and has no name of its own."""
    cases = [[Case(strategy="ddp", ranks=n, batch=16 + i) for n in (1, 2)] for i in range(count)]
    return samples.analysis(
        curves=tuple(
            samples.curve(
                "ddp, weak" + f", bucket {i}" * bool(i),
                some,
                [10.0 + i, 15.0 + i],
                some[0],
                settings={"data": "device"} | ({"bucket": f"{i}"} if i else {}),
            )
            for i, some in enumerate(cases)
        )
    )


def test_both_pictures_of_curves_draw_the_same_ones():
    """The plain curve and the fastest have the same line in both; the plain one is called default."""
    throughput, efficiency = (
        plugins.load("figures", name).frame(many_curves()) for name in ("throughput", "efficiency")
    )
    drawn = [
        {row["curve"]: row["line"] for row in rows if row["line"] is not None}
        for rows in (throughput, efficiency)
    ]
    assert drawn[0] == drawn[1]
    assert list(drawn[0]) == ["ddp, weak", *(f"ddp, weak, bucket {i}" for i in range(3, 8))]
    assert sorted(drawn[0].values()) == [1, 2, 3, 4, 5, 6]
    names, common = _curves.names(_curves.shown(throughput))
    assert names == ["default", *(f"bucket {i}" for i in range(3, 8))]
    assert common == "ddp, weak"


def test_the_page_counts_skipped_cells_apart_and_names_traces():
    """24 measured and 8 skipped are not 32 cells; traces are named with their folder and how to open them."""
    cells = [samples.cell(Case(batch=i + 1), 10.0, status="skipped" if i < 8 else "ok") for i in range(32)]
    assert report_facts.counted(cells) == "24 cells, 8 skipped"
    assert report_facts.counted(cells[8:9]) == "1 cell"
    page = report.render(samples.analysis(traces={"results/x/traces": 2}))
    assert re.search(r"2 files, one a rank, in <code>results/x/traces</code>.*chrome://tracing", page)
    assert "Profiler traces" not in report.render(samples.analysis())


def test_long_names_stand_above_their_bars():
    """A name that would take the width of a phone stands above its bar; a short one at its left."""
    assert _canvas.name_room(["DDP × 2"])[1] is False
    assert _canvas.name_room(["no wrapper × 1 · cpu binding cores · fp32 · fused"]) == (12, True)


# From a study on disk


@pytest.fixture
def study(tmp_path):
    """A simulated study, one cell of which fails in every launch."""
    cases = [Case(strategy="single", threads=1)]
    cases += [Case(strategy="ddp", ranks=ranks, threads=1) for ranks in (1, 2, 4)]
    lost = cases[-1].id

    def change(record):
        return simulate.failed(record) if record.cell == lost else record

    return simulate.simulate(tmp_path / "results" / "golden", cases, change=change)


def test_a_simulated_study_reaches_the_page(study):
    """Efficiency, base and failed cell of a study on disk stand in its page as they were simulated."""
    analysis = analyse([study])
    headline = report_card.card(analysis).headline
    point = analysis.curves[0].points[-1]
    assert headline.startswith("2 CPU ranks under DDP train ")
    assert f"{wording.number(point.samples_per_s.value)} samples/s" in headline
    assert "base: single, no wrapper" in headline
    page = report.render(analysis)
    assert "rank 1: ValueError: no" in page


def test_the_verb_writes_the_newest_study(study, tmp_path, monkeypatch, capsys):
    """Without an argument the newest study under results/ is reported, under its own name in reports/."""
    from bench.verbs.report import PLUGIN as verb

    monkeypatch.chdir(tmp_path)
    verb()
    assert capsys.readouterr().out == "reports/golden.html\n"
    assert (tmp_path / "reports" / "golden" / "cells.csv").is_file()


def test_the_verb_says_that_there_is_no_study(tmp_path, monkeypatch):
    """Without any study one line says where it looked and what to do."""
    from bench.verbs.report import PLUGIN as verb

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no study in results/: run one with scalemark run SUITE"):
        verb()
