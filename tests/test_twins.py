"""A/A pairs: the same cell twice. Where they differ no verdict holds; they are part of nothing else."""

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
import scipy.stats

from bench.analysis import analyse
from bench.answers import Analysis
from bench.case import Case
from bench.console import results
from bench.evidence import gather, relative
from bench.report import render
from bench.store import Store
from bench.twins import twins
from tests.simulate import CPU_HOST, simulate

CELLS = [Case(data="photos", num_workers=workers) for workers in (0, 2)]
SPEED = {0: 0.1, 2: 0.08}


def study(root: Path, longer: float, **fields) -> Analysis:
    """Two settings a fifth apart, and the first of them again, with its times `longer`."""
    fields = {"spread": 0.003, "host": CPU_HOST} | fields
    return analyse([
        simulate(root / "s", CELLS, step_s=lambda case: SPEED[case.num_workers], twins={CELLS[0].id: longer}, **fields)
    ])  # fmt: skip


def test_an_equal_pair_leaves_the_verdicts(tmp_path: Path) -> None:
    """The pair is judged equivalent with its ratio and interval, and the setting keeps its word."""
    analysis = study(tmp_path, 1.0)
    (pair,) = analysis.twins
    assert (pair.verdict, pair.ratio.n, pair.twin) == ("equivalent", 5, f"{pair.cell}-aa")
    assert pair.ratio.value == pytest.approx(1, abs=0.01)
    assert [one.verdict for one in analysis.comparisons] == ["faster"]
    assert analysis.off is None


def test_a_pair_that_differs_puts_every_verdict_off(tmp_path: Path) -> None:
    """The same cell 5 % slower: no word but inconclusive, with the reason; said in report, console and findings."""
    analysis = study(tmp_path, 1.05)
    assert analysis.twins[0].verdict == "slower"
    (one,) = analysis.comparisons
    assert (one.verdict, one.launches_to_decide) == ("inconclusive", None)
    assert (one.note or "").startswith("A/A pair differs: the same cell twice, single on 1 device, ")
    assert one.ratio.value == pytest.approx(1.25, abs=0.02)  # the number stays, the word goes
    assert analysis.findings[0].code == "aa-differs"
    page = render(analysis)
    assert page.index("Verdicts are off.") < page.index('class="headline"')
    assert "verdicts are off: A/A pair differs" in results(analysis)


def test_a_wide_pair_differs_from_nothing(tmp_path: Path) -> None:
    """A noisy host: the pair is inconclusive, and says that it is too wide; verdicts stand by their own intervals."""
    analysis = study(tmp_path, 1.0, spread=0.05)
    assert (analysis.twins[0].verdict, analysis.off) == ("inconclusive", None)
    assert analysis.twins[0].note == "too wide to show that they are the same"


def test_the_repeated_cell_is_part_of_nothing_else(tmp_path: Path) -> None:
    """Faster by chance, it is no best, no point of a curve, no side of a comparison; it is a row, named as what it is."""
    analysis = study(tmp_path, 1 / 1.5)
    twin = analysis.twins[0].twin
    assert analysis.best is not None
    assert analysis.best.cell == CELLS[1].id
    used = {point.cell for curve in analysis.curves for point in curve.points}
    used |= {curve.base_cell for curve in analysis.curves}
    used |= {cell for one in analysis.comparisons for cell in (one.a_cell, one.b_cell)}
    assert twin not in used
    assert [cell.twin_of for cell in analysis.cells] == [None, None, CELLS[0].id]
    assert "the same again" in results(analysis)


def test_two_launches_judge_no_pair(tmp_path: Path) -> None:
    """Fewer than three a side: not judged, whatever they show."""
    analysis = study(tmp_path, 1.5, blocks=2)
    assert (analysis.twins[0].verdict, analysis.twins[0].note) == (
        "inconclusive",
        "2 launches a side: not judged",
    )
    assert analysis.off is None


def test_launches_of_different_times_are_no_pair(tmp_path: Path) -> None:
    """Within one study two sides that share no block tell nothing, however far apart; of two studies Welch's holds."""
    store = simulate(
        tmp_path / "s", CELLS, step_s=lambda case: SPEED[case.num_workers], spread=0.003, host=CPU_HOST
    )
    rows = [record if record.cell == CELLS[0].id else msgspec.structs.replace(record, block=record.block + 5)
            for record in store.records()[0]]  # fmt: skip
    (store.root / "launches.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    (one,) = analyse([Store(store.root)]).comparisons
    assert (one.verdict, one.note) == ("inconclusive", "no common blocks: run at different times")
    assert (one.ratio.low, one.p_value, one.launches_to_decide) == (None, None, None)
    assert one.ratio.value == pytest.approx(1.25, abs=0.02)
    first, second = gather([Store(store.root)]).measured
    apart = dataclasses.replace(second, launches=tuple(r._replace(study="other") for r in second.launches))
    assert relative(first, apart).p_value < 0.001


def test_a_twin_of_another_time_is_not_judged(tmp_path: Path) -> None:
    """An A/A pair without common blocks says so, and puts no verdict off."""
    evidence = gather([simulate(tmp_path / "s", CELLS, twins={CELLS[0].id: 1.05}, spread=0.003)])
    ((_, again),) = evidence.twins
    later = dataclasses.replace(again, launches=tuple(r._replace(block=r.block + 9) for r in again.launches))
    known = dataclasses.replace(evidence, cells=evidence.cells | {later.id: later})
    (pair,) = twins(known)
    assert (pair.verdict, pair.note) == ("inconclusive", "no common blocks: run at different times")


@pytest.mark.parametrize(("run", "failed"), [(0, 1), (1, 0)])
def test_a_good_launch_of_a_later_run_makes_up_for_a_failure(tmp_path: Path, run: int, failed: int) -> None:
    """In a block of its own it takes the failure off the list; one of the same run does not."""
    store = simulate(tmp_path / "s", CELLS[:1], blocks=2)
    bad, good = store.records()[0]
    bad = msgspec.structs.replace(bad, status="failed", reason="signal", window=None)
    rows = (bad, msgspec.structs.replace(good, run=run))
    (store.root / "launches.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    assert len(gather([Store(store.root)]).cells[CELLS[0].id].failures) == failed


def test_many_pairs_are_one_gate(tmp_path: Path) -> None:
    """Six pairs: what is significant alone (p below 0.05) is not once Holm's method has counted the others."""
    cells = [Case(batch=batch) for batch in range(1, 7)]
    twins = {case.id: 1.0 for case in cells} | {cells[0].id: 1.025}
    store = simulate(tmp_path / "s", cells, seed=4, spread=0.008, twins=twins)
    logs: dict[str, dict[int, float]] = {}
    for record in store.records()[0]:
        assert record.window is not None
        logs.setdefault(record.cell, {})[record.block] = np.log(record.window.samples_per_s)
    p = {
        case.id: scipy.stats.ttest_rel(*([logs[cell][block] for block in range(5)] for cell in (f"{case.id}-aa", case.id))).pvalue
        for case in cells
    }  # fmt: skip
    analysis = analyse([store])
    assert min(p.values()) == p[cells[0].id] < 0.05
    first = next(pair for pair in analysis.twins if pair.cell == cells[0].id)
    assert first.p_adjusted == pytest.approx(6 * p[first.cell])
    assert (first.verdict, analysis.off) == ("inconclusive", None)
