"""From a study to an Analysis: curves under one named base, pairs of settings, memory, exclusions, the best."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench.analysis import analyse
from bench.answers import Analysis, Comparison, Curve
from bench.case import Case
from bench.records import LaunchRecord
from bench.store import Store
from tests.simulate import CPU_HOST, GPU_HOST, each_rank, failed, simulate

SINGLE = Case()


def ddp(ranks: int, **fields) -> Case:
    """DDP on so many ranks."""
    return Case(strategy="ddp", ranks=ranks, **fields)


def at_rates(root: Path, rates: dict[Case, float] | list[tuple[Case, float]], **fields) -> Store:
    """A study without spread, in which each case trains exactly so many samples a second."""
    pairs = list(rates)
    values = {case.id: rate for case, rate in pairs}
    options = {"spread": 0.0, "step_s": lambda case: case.global_batch / values[case.id]} | fields
    return simulate(root, [case for case, _ in pairs], **options)


def only_curve(analysis: Analysis) -> Curve:
    """The one curve of an analysis."""
    assert len(analysis.curves) == 1
    return analysis.curves[0]


def efficiencies(curve: Curve) -> dict[int, float]:
    """Devices -> efficiency."""
    return {point.devices: round(point.efficiency.value, 4) for point in curve.points}


def pairs(analysis: Analysis, factor: str) -> dict[tuple[str, str], Comparison]:
    """(a, b) -> comparison, of one factor."""
    return {(one.a, one.b): one for one in analysis.comparisons if one.factor == factor}


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((6982.74, 9908.78, 9128.08), {1: 1.0, 2: 0.7095, 4: 0.3268}),
        ((4192.01, 6686.33, 7094.30), {1: 1.0, 2: 0.7975, 4: 0.4231}),
        ((7827.6, 13258, 13203), {1: 1.0, 2: 0.8469, 4: 0.4217}),
    ],
)
def test_every_point_is_relative_to_the_one_base(tmp_path: Path, rates, expected) -> None:
    """The last row is divided by 4 x T(1), never by 2 x T(2)."""
    cells = [ddp(n, batch=256) for n in (1, 2, 4)]
    curve = only_curve(analyse([at_rates(tmp_path / "s", zip(cells, rates, strict=True))]))
    assert efficiencies(curve) == expected
    assert curve.base == "ddp on 1 rank"
    assert curve.base_samples_per_s == pytest.approx(rates[0])


def test_weak_and_strong_scaling_are_two_curves(tmp_path: Path) -> None:
    """(1, 256), (2, 256 in all) and (2, 256 each) are one weak and one strong curve over one base."""
    weak, strong = ddp(2, batch=256), ddp(2, batch=256, scaling="strong")
    rates = [(Case(batch=256), 1000.0), (weak, 1800.0), (strong, 1500.0)]
    curves = {curve.scaling: curve for curve in analyse([at_rates(tmp_path / "s", rates)]).curves}
    assert efficiencies(curves["weak"]) == {2: 0.9}
    assert efficiencies(curves["strong"]) == {2: 0.75}
    assert {curve.base_cell for curve in curves.values()} == {Case(batch=256).id}
    assert [(p.batch, p.global_batch) for p in curves["weak"].points] == [(256, 512)]
    assert [(p.batch, p.global_batch) for p in curves["strong"].points] == [(128, 256)]
    assert curves["weak"].serial_fraction[2] == pytest.approx(0.2)
    assert curves["strong"].serial_fraction[2] == pytest.approx((1 / 1.5 - 1 / 2) / (1 - 1 / 2))


def test_speed_up_comes_from_samples_not_from_step_times(tmp_path: Path) -> None:
    """A step of 52 ms with twice the samples is a speed-up of 0.82 and an efficiency of 0.41."""
    steps = {1: 0.02148, 2: 0.05231}
    cells = [ddp(n, batch=512) for n in steps]
    store = simulate(tmp_path / "s", cells, spread=0.0, step_s=lambda case: steps[case.devices])
    point = only_curve(analyse([store])).points[1]
    assert point.samples_per_s.value == pytest.approx(19_576, abs=1)
    assert round(point.speedup.value, 3) == 0.821
    assert round(point.efficiency.value, 3) == 0.411


def test_single_is_the_base_and_ddp_on_one_rank_a_point(tmp_path: Path) -> None:
    """Both one-device rows appear, are never merged, and the base is named."""
    rates = [(SINGLE, 100.0), (ddp(1), 98.0), (ddp(2), 180.0)]
    analysis = analyse([at_rates(tmp_path / "s", rates)])
    curve = only_curve(analysis)
    assert (curve.base, curve.base_cell, curve.base_samples_per_s) == (
        "single, no wrapper",
        SINGLE.id,
        pytest.approx(100.0),
    )
    assert efficiencies(curve) == {1: 0.98, 2: 0.9}
    assert {cell.cell for cell in analysis.cells} == {SINGLE.id, ddp(1).id, ddp(2).id}


def test_a_base_with_other_settings_is_not_used(tmp_path: Path) -> None:
    """A single cell with other workers or data is no base; SyncBN and backend, which single cannot have, may differ."""
    other = Case(data="photos", num_workers=4)
    cells = [
        other,
        SINGLE,
        ddp(2, sync_bn=True, backend="gloo"),
        ddp(2, data="photos"),
        ddp(4, data="photos"),
    ]
    curves = {c.settings["data"]: c for c in analyse([simulate(tmp_path / "s", cells)]).curves}
    assert curves["device"].base == "single, no wrapper, plain BN"
    assert curves["photos"].base == "relative to 2 devices"
    assert [point.devices for point in curves["photos"].points] == [2, 4]


def test_without_one_device_efficiency_is_relative_to_the_smallest(tmp_path: Path) -> None:
    """Totals of 240, 160 and 120 on 1, 2 and 3 nodes of 8: efficiencies 1, 1/3, 1/6, and the total falls."""
    cells = [ddp(8, nodes=nodes) for nodes in (1, 2, 3)]
    analysis = analyse([at_rates(tmp_path / "s", zip(cells, (240.0, 160.0, 120.0), strict=True))])
    curve = only_curve(analysis)
    assert curve.base == "relative to 8 devices"
    assert efficiencies(curve) == {8: 1.0, 16: 0.3333, 24: 0.1667}
    assert [round(point.speedup.value, 3) for point in curve.points] == [1.0, 0.667, 0.5]
    assert [point.per_device for point in curve.points] == pytest.approx([30, 10, 5])
    message = next(f.message for f in analysis.findings if f.code == "throughput-falls")
    assert message.startswith("adding nodes loses throughput: 240 samples/s")
    assert message.endswith("stop at 1 node")


@pytest.mark.parametrize(
    ("counts", "note"),
    [
        ([1], "one device count: no curve"),
        ([1, 2], "two device counts: efficiency, no fit"),
        ([1, 2, 4], None),
    ],
)
def test_few_points_say_so(tmp_path: Path, counts: list[int], note: str | None) -> None:
    """One count: a table with E = 1 and no curve; two: efficiency and no fit."""
    curve = only_curve(analyse([simulate(tmp_path / "s", [ddp(n) for n in counts])]))
    assert curve.note == note
    assert curve.points[0].efficiency.value == 1.0


def test_a_study_of_one_device_still_has_its_table(tmp_path: Path) -> None:
    """single alone: one point, E = 1, no curve."""
    curve = only_curve(analyse([simulate(tmp_path / "s", [SINGLE])]))
    assert (curve.note, len(curve.points), curve.points[0].efficiency.value) == (
        "one device count: no curve",
        1,
        1.0,
    )


def test_efficiency_is_paired_by_block(tmp_path: Path) -> None:
    """Drift that both sides of a block share leaves the efficiency's interval narrow."""

    def drift(record: LaunchRecord) -> LaunchRecord:
        window = record.window
        assert window is not None
        rate = (window.samples_per_s or 0) * (1 + 0.2 * record.block)
        return msgspec.structs.replace(record, window=msgspec.structs.replace(window, samples_per_s=rate))

    store = simulate(tmp_path / "s", [SINGLE, ddp(2)], spread=0.001, change=drift)
    point = only_curve(analyse([store])).points[0]
    assert (point.efficiency.half_width or 1) < 0.01
    assert (point.samples_per_s.half_width or 0) > 0.1
    assert point.efficiency.n == 5


def test_sides_of_two_studies_are_not_paired(tmp_path: Path) -> None:
    """A base from another study is used, with an interval from unpaired launches."""
    stores = [
        simulate(tmp_path / "base", [SINGLE], seed=1),
        simulate(tmp_path / "scaled", [ddp(2), ddp(4)], seed=2),
    ]
    curve = only_curve(analyse(stores))
    assert curve.base == "single, no wrapper"
    half = curve.points[0].efficiency.half_width
    assert half is not None
    assert half > 0
    apart = analyse([stores[0], simulate(tmp_path / "one", [ddp(1)], seed=3)])
    (verdict,) = pairs(apart, "strategy").values()
    assert verdict.verdict == "inconclusive"
    assert "different studies" in (verdict.note or "")


def test_one_launch_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    """Quick: values, null limits, converged null, inconclusive with its reason."""
    cells = [SINGLE, ddp(2, data="photos"), ddp(2, data="photos", num_workers=2)]
    analysis = analyse([simulate(tmp_path / "s", cells, quick=True)])
    for curve in analysis.curves:
        for point in curve.points:
            assert (point.efficiency.low, point.efficiency.high, point.converged) == (None, None, None)
    one = pairs(analysis, "num_workers")["0", "2"]
    assert (one.verdict, one.note, one.smallest_visible, one.launches_to_decide) == (
        "inconclusive",
        "one launch: no verdict",
        None,
        None,
    )
    assert analysis.quick
    assert "one launch a cell" in (analysis.best_note or "")


def test_converged_needs_a_narrow_interval_and_enough_launches(tmp_path: Path) -> None:
    """Narrow but few, or many but wide, is not converged."""

    def converged(name: str, blocks: int, spread: float) -> bool | None:
        return analyse([simulate(tmp_path / name, [SINGLE], blocks, spread)]).cells[0].converged

    assert converged("good", 5, 0.001) is True
    assert converged("few", 4, 0.001) is False
    assert converged("wide", 5, 0.1) is False


def test_failed_launches_are_in_the_table_and_in_no_curve(tmp_path: Path) -> None:
    """A cell that failed is a row without numbers; one of four launches lost leaves the cell partly there."""

    def change(record: LaunchRecord) -> LaunchRecord:
        if record.cell == ddp(4).id or (record.cell == ddp(2).id and record.block == 1):
            return failed(record, reason="oom_host", detail="rank 1: ended by SIGKILL")
        return record

    analysis = analyse([simulate(tmp_path / "s", [SINGLE, ddp(2), ddp(4)], blocks=4, change=change)])
    rows = {cell.cell: cell for cell in analysis.cells}
    lost, partly = rows[ddp(4).id], rows[ddp(2).id]
    assert (lost.status, lost.reason, lost.samples_per_s, lost.failed) == (
        "failed",
        "rank 1: ended by SIGKILL",
        None,
        4,
    )
    assert (partly.status, partly.launches, partly.failed) == ("partly", 4, 1)
    assert partly.samples_per_s is not None
    assert partly.samples_per_s.n == 3
    assert [point.devices for point in only_curve(analysis).points] == [2]
    assert len(analysis.exclusions) == 5
    assert analysis.exclusions[0].reason == "oom_host: rank 1: ended by SIGKILL"


def test_skipped_and_unrun_cells_are_rows(tmp_path: Path) -> None:
    """A skipped cell carries its reason; one that has not run yet says so."""
    cells = [SINGLE, ddp(2), ddp(4)]
    store = simulate(
        tmp_path / "s",
        cells,
        skipped={ddp(2).id: "SyncBN needs DDP"},
        change=lambda record: None if record.cell == ddp(4).id else record,
    )
    rows = {cell.cell: (cell.status, cell.reason) for cell in analyse([store]).cells}
    assert rows == {
        SINGLE.id: ("ok", None),
        ddp(2).id: ("skipped", "SyncBN needs DDP"),
        ddp(4).id: ("not run", None),
    }


def test_a_cell_skipped_in_one_study_and_run_in_another_is_there(tmp_path: Path) -> None:
    """Combined studies take the launches of whichever ran the cell."""
    stores = [
        simulate(tmp_path / "a", [SINGLE, ddp(2)], skipped={ddp(2).id: "no time"}),
        simulate(tmp_path / "b", [SINGLE, ddp(2)]),
    ]
    rows = {cell.cell: cell for cell in analyse([*stores, stores[0]]).cells}
    assert (rows[ddp(2).id].status, rows[ddp(2).id].launches) == ("ok", 5)
    assert rows[SINGLE.id].launches == 10


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_settings_that_did_not_take_effect_are_flagged_and_in_no_curve(tmp_path: Path, strategy: str) -> None:
    """DDP was asked for and something else ran: the row is marked, and no curve and no pair has it."""
    text = f"strategy: asked for ddp, ran as {strategy}"
    store = simulate(
        tmp_path / "s",
        [SINGLE, ddp(1), ddp(2)],
        change=lambda r: msgspec.structs.replace(r, mismatches=(text,)) if r.cell == ddp(2).id else r,
    )
    analysis = analyse([store])
    assert [point.devices for point in only_curve(analysis).points] == [1]
    row = next(cell for cell in analysis.cells if cell.cell == ddp(2).id)
    assert text in row.marks
    assert {one.reason for one in analysis.exclusions} == {text}
    assert analysis.best is not None
    assert analysis.best.cell != ddp(2).id


def test_an_unsteady_cell_is_shown_and_gets_no_verdict(tmp_path: Path) -> None:
    """Its point stands on the curve, marked; its pairs are not comparable, with the reason."""

    def drifting(record: LaunchRecord) -> LaunchRecord:
        if record.requested.num_workers != 2:
            return record
        cut = msgspec.structs.replace(record.window.cut, state="unsteady")
        return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, cut=cut))

    cells = [ddp(2, data="photos", num_workers=w) for w in (0, 2)]
    analysis = analyse([simulate(tmp_path / "s", cells, change=drifting)])
    one = pairs(analysis, "num_workers")["0", "2"]
    assert (one.verdict, one.note) == ("not comparable", "2: unsteady")
    row = next(cell for cell in analysis.cells if cell.case.num_workers == 2)
    assert row.samples_per_s is not None
    assert "unsteady" in row.marks
    assert analysis.best is not None
    assert analysis.best.cell == cells[0].id


def sweep(values: dict[int, float], **fields) -> list[tuple[Case, float]]:
    """single on photos with so many workers, at so many samples/s."""
    return [(Case(data="photos", num_workers=workers, **fields), rate) for workers, rate in values.items()]


def test_workers_are_compared_with_none_and_with_the_best(tmp_path: Path) -> None:
    """Each level against 0, and the others against the best; a knee at 4 of up to 16."""
    rates = sweep({0: 50, 2: 100, 4: 180, 8: 182, 16: 175})
    analysis = analyse([at_rates(tmp_path / "s", rates, spread=0.001)])
    found = pairs(analysis, "num_workers")
    assert {key: one.verdict for key, one in found.items()} == {
        ("0", "2"): "faster",
        ("0", "4"): "faster",
        ("0", "8"): "faster",
        ("0", "16"): "faster",
        ("8", "2"): "slower",
        ("8", "4"): "equivalent",
        ("8", "16"): "slower",
    }
    assert found["0", "2"].ratio.value == pytest.approx(2.0, rel=0.01)
    assert found["0", "2"].context == "single on 1 device, batch 16 a device, resnet-small on photos"


def test_where_no_workers_are_best_each_pair_stands_once(tmp_path: Path) -> None:
    """The reference level is also the best: no pair is given twice."""
    analysis = analyse([at_rates(tmp_path / "s", sweep({0: 100, 1: 80, 2: 60}), spread=0.001)])
    assert [(one.a, one.b) for one in analysis.comparisons] == [("0", "1"), ("0", "2")]


def test_pinning_without_an_accelerator_is_no_comparison(tmp_path: Path) -> None:
    """Both arms ran unpinned: not comparable, with the reason, and no claim of a difference."""
    cells = [Case(data="photos", num_workers=2, pin_memory=pinned) for pinned in (False, True)]
    (one,) = pairs(analyse([simulate(tmp_path / "s", cells)]), "pin_memory").values()
    assert (one.a, one.b, one.verdict) == ("off", "on", "not comparable")
    assert one.note == "pin_memory has no effect: no accelerator"


@pytest.mark.parametrize(("gain", "word"), [(1.08, "faster"), (0.92, "slower"), (1.0, "equivalent")])
def test_pinning_with_an_accelerator_is_judged_on_the_whole_step(
    tmp_path: Path, gain: float, word: str
) -> None:
    """Faster, slower and no difference are all possible answers."""
    cells = [
        (Case(data="photos", num_workers=2, pin_memory=on), 100.0 * (gain if on else 1))
        for on in (False, True)
    ]
    store = at_rates(tmp_path / "s", cells, spread=0.002, host=GPU_HOST)
    (one,) = pairs(analyse([store]), "pin_memory").values()
    assert one.verdict == word


def test_the_price_of_syncbn_is_a_change_of_step_time(tmp_path: Path) -> None:
    """Steps that take 25 instead of 20 are +25.0 %, with the number of layers."""
    cells = [ddp(2, sync_bn=on) for on in (False, True)]
    store = simulate(
        tmp_path / "s",
        cells,
        spread=0.0,
        host=GPU_HOST,
        step_s=lambda case: 0.25 if case.sync_bn else 0.20,
        change=lambda r: each_rank(r, "effective", sync_bn_layers=53) if r.requested.sync_bn else r,
    )
    (one,) = pairs(analyse([store]), "sync_bn").values()
    assert (one.verdict, one.note) == ("slower", "+25.0 % step time, 53 SyncBN layers")
    assert one.ratio.value == pytest.approx(0.8)


def test_a_reference_implementation_never_wins(tmp_path: Path) -> None:
    """On CPU, dp and SyncBN are shown against torch's own, not judged, and not the best."""
    cells = [SINGLE, Case(strategy="dp", ranks=2), ddp(2), ddp(2, sync_bn=True)]
    store = simulate(tmp_path / "s", cells, step_s=lambda case: 0.01 if case.strategy == "dp" else 0.1)
    analysis = analyse([store])
    for factor in ("strategy", "sync_bn"):
        (one,) = pairs(analysis, factor).values()
        assert one.verdict == "not comparable"
        assert (one.note or "").startswith("reference implementation on CPU: does not transfer")
        assert one.ratio.low is not None
    assert analysis.best is not None
    assert analysis.best.cell == ddp(2).id
    curves = {curve.label: curve.reference for curve in analysis.curves}
    assert sorted(curves.values()) == [False, True, True]


def test_two_reference_rows_are_judged_with_the_note(tmp_path: Path) -> None:
    """Between settings of one reference implementation a verdict stands, and says what it does not carry over to."""
    cells = [Case(strategy="dp", ranks=2, data="photos", num_workers=workers) for workers in (0, 2)]
    (one,) = pairs(analyse([simulate(tmp_path / "s", cells)]), "num_workers").values()
    assert one.verdict == "faster"
    assert "does not transfer" in (one.note or "")


def test_dataparallel_is_compared_with_ddp_on_equal_devices(tmp_path: Path) -> None:
    """24 s and 18 s an epoch against 27 s on one device: efficiencies 0.5625 and 0.75, ddp faster."""
    rates = [(SINGLE, 1 / 27), (Case(strategy="dp", ranks=2), 1 / 24), (ddp(2), 1 / 18), (ddp(4), 1 / 10)]
    analysis = analyse([at_rates(tmp_path / "s", rates, host=GPU_HOST, spread=0.001)])
    shown = {curve.strategy: efficiencies(curve)[2] for curve in analysis.curves}
    assert shown == {"dp": pytest.approx(0.5625, abs=0.002), "ddp": pytest.approx(0.75, abs=0.002)}
    assert pairs(analysis, "strategy")["dp", "ddp"].verdict == "faster"
    assert "on 2 devices" in pairs(analysis, "strategy")["dp", "ddp"].context


def test_cells_that_differ_in_two_things_are_no_pair(tmp_path: Path) -> None:
    """Workers and batch both differ: nothing is compared."""
    cells = [Case(data="photos"), Case(data="photos", num_workers=2, batch=32)]
    assert analyse([simulate(tmp_path / "s", cells)]).comparisons == ()


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda r: each_rank(r, "effective", threads=2), "threads 1 vs 2"),
        (
            lambda r: msgspec.structs.replace(r, fingerprint="other"),
            "host or software differs between the two sides",
        ),
    ],
)
def test_what_differs_besides_the_factor_is_refused_and_named(
    tmp_path: Path, change: Callable[[LaunchRecord], LaunchRecord], note: str
) -> None:
    """Threads or host differ between the sides: not comparable, with the difference."""
    cells = [Case(data="photos", num_workers=workers) for workers in (0, 2)]
    store = simulate(tmp_path / "s", cells, change=lambda r: change(r) if r.requested.num_workers else r)
    (one,) = pairs(analyse([store]), "num_workers").values()
    assert (one.verdict, one.note) == ("not comparable", note)


def test_differences_that_chance_explains_are_not_claimed_in_a_matrix(tmp_path: Path) -> None:
    """Of 40 pairs of identical settings none is faster or slower; those that look so alone say why not."""
    cells = [
        Case(data="photos", batch=batch, persistent_workers=on, num_workers=1)
        for batch in range(1, 41)
        for on in (False, True)
    ]
    analysis = analyse([simulate(tmp_path / "s", cells, spread=0.03, seed=5)])
    words = [one.verdict for one in pairs_of(analysis, "persistent_workers")]
    assert len(words) == 40
    assert not {"faster", "slower", "small change"} & set(words)
    assert any("Benjamini-Hochberg" in (one.note or "") for one in pairs_of(analysis, "persistent_workers"))


def pairs_of(analysis: Analysis, factor: str) -> list[Comparison]:
    """All comparisons of one factor."""
    return [one for one in analysis.comparisons if one.factor == factor]


def test_an_undecided_pair_says_what_would_decide_it(tmp_path: Path) -> None:
    """Inconclusive comes with the smallest effect that would have shown and the launches that would decide."""
    rates = sweep({0: 100.0, 1: 103.0})
    (one,) = pairs(analyse([at_rates(tmp_path / "s", rates, spread=0.03)]), "num_workers").values()
    assert one.verdict == "inconclusive"
    assert one.smallest_visible is not None
    assert one.smallest_visible > 0.03
    assert one.launches_to_decide is not None
    assert one.launches_to_decide > 5


def test_memory_is_the_largest_reading_of_each_rank(tmp_path: Path) -> None:
    """Allocated, reserved and device used stay apart; the fullest rank is the cell's; null on CPU."""
    store = simulate(
        tmp_path / "gpu",
        [ddp(2)],
        host=GPU_HOST,
        change=lambda r: each_rank(
            r, "memory", device_used_bytes=r.ranks[0].memory.device_used_bytes + r.block
        ),
    )
    analysis = analyse([store])
    rows = analysis.memory
    assert [row.rank for row in rows] == [0, 1]
    first = store.records()[0][0].ranks[0].memory
    assert rows[0].device_used_bytes == first.device_used_bytes - store.records()[0][0].block + 4
    assert rows[0].peak_allocated_bytes != rows[0].peak_reserved_bytes
    assert (analysis.cells[0].memory_bytes, analysis.cells[0].memory_source) == (
        rows[0].device_used_bytes,
        "nvml",
    )
    cpu = analyse([simulate(tmp_path / "cpu", [Case(data="photos", num_workers=2)])])
    (row,) = cpu.memory
    assert row.device_used_bytes is None
    assert cpu.cells[0].memory_bytes == (row.rank_pss_bytes or 0) + (row.workers_pss_bytes or 0)
    assert (cpu.cells[0].memory_source, cpu.device_kind) == ("PSS of rank and workers", "CPU rank")
    assert analysis.device_kind == "CUDA device"


def test_the_best_is_named_with_its_base_and_its_main_loss(tmp_path: Path) -> None:
    """The fastest cell, its efficiency under the named base, and the phase that grew most."""
    analysis = analyse([simulate(tmp_path / "s", [SINGLE, ddp(1), ddp(2), ddp(4)])])
    best = analysis.best
    assert best is not None
    assert (best.cell, best.base) == (ddp(4).id, "single, no wrapper")
    assert best.efficiency == analysis.curves[0].points[-1].efficiency
    assert best.loss is not None
    assert best.loss.label == "backward incl. gradient exchange"
    assert best.loss.seconds == pytest.approx(0.013, rel=0.1)


def test_where_more_devices_are_slower_the_best_of_those_is_given_too(tmp_path: Path) -> None:
    """One device wins; on more the fastest is DDP on 2, with its efficiency, its loss and its ratio to the best."""
    rates = [(SINGLE, 190.0), (ddp(2), 154.0), (Case(strategy="zero1", ranks=2), 120.0), (ddp(4), 90.0)]
    analysis = analyse([at_rates(tmp_path / "s", rates)])
    assert analysis.best is not None
    assert analysis.best.cell == SINGLE.id
    assert analysis.more is not None
    assert analysis.more_ratio is not None
    assert analysis.more.cell == ddp(2).id
    assert analysis.more.efficiency is not None
    assert analysis.more.efficiency.value == pytest.approx(154 / 380)
    assert analysis.more_ratio.value == pytest.approx(154 / 190)
    assert analysis.more.loss is not None
    assert analysis.more.loss.phase == "backward"
    assert {finding.code for finding in analysis.findings} >= {"throughput-falls"}


def test_where_most_devices_are_best_there_is_no_more(tmp_path: Path) -> None:
    """The best on the largest count needs no second one."""
    analysis = analyse([simulate(tmp_path / "s", [SINGLE, ddp(2), ddp(4)])])
    assert (analysis.more, analysis.more_ratio) == (None, None)


def test_the_settings_that_won_are_named_and_held_against_the_plain_ones(tmp_path: Path) -> None:
    """Of what varies, what is off its default; what all cells share is no choice; unmeasured plain cells are None."""
    cells = {
        (precision, fused): ddp(2, optimizer="adamw", precision=precision, fused=fused)
        for precision in ("fp32", "bf16")
        for fused in (False, True)
    }
    rates = {("fp32", False): 100.0, ("fp32", True): 110.0, ("bf16", False): 140.0, ("bf16", True): 150.0}
    analysis = analyse([at_rates(tmp_path / "s", [(cells[key], rate) for key, rate in rates.items()])])
    assert analysis.best is not None
    assert analysis.best.settings == ("precision", "fused")
    assert analysis.best.over_plain is not None
    assert analysis.best.over_plain.value == pytest.approx(1.5)
    rest = [(cells[key], rate) for key, rate in rates.items() if key != ("fp32", False)]
    best = analyse([at_rates(tmp_path / "t", rest)]).best
    assert best is not None
    assert (best.settings, best.over_plain) == (("precision", "fused"), None)
    assert set(pairs(analysis, "precision")) == {("fp32", "bf16")}  # the plain one first


def test_what_is_slower_than_the_base_has_no_serial_share(tmp_path: Path) -> None:
    """Half the throughput on two devices would be a share of 150 %: there is none."""
    curve = only_curve(
        analyse([at_rates(tmp_path / "s", [(SINGLE, 100.0), (ddp(2), 50.0), (ddp(4), 300.0)])])
    )
    assert curve.serial_fraction == {2: None, 4: pytest.approx(1 / 3)}


def test_traces_of_a_study_are_counted(tmp_path: Path) -> None:
    """The folder and its files where there are any."""
    store = simulate(tmp_path / "s", [SINGLE])
    assert analyse([store]).traces == {}
    (store.trace_dir("b00") / "rank0.json.gz").write_text("{}")
    (store.trace_dir("b01") / "rank0.json.gz").write_text("{}")
    assert analyse([store]).traces == {str(tmp_path / "s" / "traces"): 2}


def test_waiting_for_a_late_rank_is_not_called_communication(tmp_path: Path) -> None:
    """Rank 1 is 50 ms late with its input; rank 0's 53 ms of backward are waiting: the loss is input."""
    analysis = analyse([late_input(tmp_path)])
    assert analysis.best is not None
    assert analysis.best.loss is not None
    assert (analysis.best.loss.phase, analysis.best.loss.label) == ("data_wait", "waiting for input")
    assert analysis.best.loss.seconds == pytest.approx(0.0503)


def late_input(tmp_path: Path) -> Store:
    """DDP on two ranks, one of which waits 50 ms a step for its data."""
    by_rank = [{"data_wait": 0.0001, "backward": 0.0534}, {"data_wait": 0.0503, "backward": 0.0052}]

    def change(record: LaunchRecord) -> LaunchRecord:
        ranks = [
            msgspec.structs.replace(rank, step_s=0.0555, phases_s=rank.phases_s | by_rank[rank.rank] | REST)
            for rank in record.ranks
        ]
        return msgspec.structs.replace(record, ranks=tuple(ranks))

    return simulate(tmp_path / "late", [ddp(2, data="photos")], change=change)


REST = {"h2d": 0.0, "forward": 0.002, "optimizer": 0.0, "other": 0.0}


def test_no_cause_is_named_from_part_of_a_step(tmp_path: Path) -> None:
    """Without backward there is no main loss, however large the rest is."""

    def without(record: LaunchRecord) -> LaunchRecord:
        ranks = [msgspec.structs.replace(r, phases_s=r.phases_s | {"backward": None}) for r in record.ranks]
        phases = record.phases_s | {"backward": None}
        return msgspec.structs.replace(record, ranks=tuple(ranks), phases_s=phases)

    analysis = analyse([simulate(tmp_path / "s", [SINGLE, ddp(2)], change=without)])
    assert analysis.best is not None
    assert analysis.best.loss is None
    assert analysis.cells[0].phases_s["backward"] is None


def test_copies_timed_by_the_cpu_are_never_the_loss_of_an_accelerator(tmp_path: Path) -> None:
    """Copies are asynchronous: only the device's clock can blame them."""

    def study(name: str, clock: str) -> Analysis:
        cells = [Case(data="photos")]
        phases = {
            "data_wait": 0.0,
            "h2d": 0.05,
            "forward": 0.02,
            "backward": 0.03,
            "optimizer": 0.0,
            "other": 0.0,
        }
        return analyse(
            [
                simulate(
                    tmp_path / name,
                    cells,
                    host=GPU_HOST,
                    phases=lambda case: phases,
                    change=lambda r: msgspec.structs.replace(r, clock=clock),
                )
            ]
        )

    by_events, by_cpu = study("events", "events").best, study("cpu", "cpu").best
    assert by_events is not None
    assert by_events.loss is not None
    assert by_events.loss.phase == "h2d"
    assert by_cpu is not None
    assert by_cpu.loss is None


def test_only_one_workload_is_ranked(tmp_path: Path) -> None:
    """A batch that lies on the device is always faster: it does not win over real data on more devices."""
    cells = [SINGLE, Case(data="photos"), ddp(2, data="photos")]
    analysis = analyse([simulate(tmp_path / "s", cells)])
    assert analysis.best is not None
    assert analysis.best.cell == cells[2].id
    assert "resnet-small on photos" in (analysis.best_note or "")


def test_stand_ins_win_only_among_themselves(tmp_path: Path) -> None:
    """A paced model is never better than a real one; alone, it is the best, with a note."""
    paced = Case(model="paced", strategy="ddp", ranks=8)
    mixed = analyse([simulate(tmp_path / "mixed", [SINGLE, paced])])
    alone = analyse([simulate(tmp_path / "alone", [paced])])
    assert mixed.best is not None
    assert mixed.best.cell == SINGLE.id
    assert alone.best is not None
    assert "only stand-ins" in (alone.best_note or "")


@pytest.mark.parametrize(
    ("cells", "fields", "note"),
    [
        ([], {}, "the study has no cells"),
        ([SINGLE, ddp(2)], {"change": failed}, "no launch finished"),
        ([Case(strategy="dp", ranks=2)], {}, "only reference implementations"),
    ],
)
def test_empty_failed_and_reference_studies_have_no_best_and_say_why(
    tmp_path: Path, cells, fields, note: str
) -> None:
    """There is an Analysis for every study, whatever is missing."""
    analysis = analyse([simulate(tmp_path / "s", cells, **fields)])
    assert analysis.best is None
    assert note in (analysis.best_note or "")


def test_everything_needed_to_repeat_a_study_is_in_its_files(tmp_path: Path) -> None:
    """Command, host, settings and variables come from the study alone, and survive JSON unchanged."""
    store = simulate(
        tmp_path / "s",
        [ddp(2)],
        header={"command": ("scalemark", "run", "ddp"), "left_out": ("8 ranks: no time",)},
        change=lambda r: msgspec.structs.replace(r, environment={"NCCL_DEBUG": f"{r.block % 2}"}),
    )
    analysis = analyse([store])
    assert analysis.command == ("scalemark", "run", "ddp")
    assert analysis.host == CPU_HOST
    assert analysis.environment == {"NCCL_DEBUG": "0 | 1"}
    assert analysis.left_out == ("8 ranks: no time",)
    assert analysis.cells[0].case == ddp(2)
    assert msgspec.json.decode(msgspec.json.encode(analysis), type=Analysis) == analysis


def test_the_same_files_give_the_same_analysis(tmp_path: Path) -> None:
    """Nothing depends on time, order of folders or hash seeds."""
    store = simulate(tmp_path / "s", [SINGLE, ddp(2), ddp(4), Case(strategy="dp", ranks=2)])
    assert analyse([store]) == analyse([store])


def test_a_study_is_analysed_without_torch(tmp_path: Path) -> None:
    """With torch gone from the interpreter the analysis is complete."""
    store = simulate(tmp_path / "s", [SINGLE, ddp(2)])
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path; from bench.analysis import analyse; from bench.store import Store\n"
        f"print(len(analyse([Store(Path({str(store.root)!r}))]).cells))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_no_number_of_an_analysis_is_nan(tmp_path: Path) -> None:
    """Missing is null in every field of a study where much is missing."""
    cells = [SINGLE, ddp(2), ddp(4), Case(strategy="dp", ranks=2)]

    def change(record: LaunchRecord) -> LaunchRecord:
        if record.cell == ddp(4).id:
            return failed(record)
        return msgspec.structs.replace(record, first_step_s=None, first_batch_s=None)

    analysis = analyse([simulate(tmp_path / "s", cells, change=change)])
    assert not [
        value for value in numbers(msgspec.to_builtins(analysis, str_keys=True)) if not math.isfinite(value)
    ]


def numbers(value: object):
    """Every float in nested dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, float):
        yield value


def test_sharded_strategies_are_held_against_ddp_too(tmp_path: Path) -> None:
    """With single or dp in the study their first level is the reference; what ZeRO and FSDP cost is said against DDP."""
    names = ("dp", "ddp", "zero1", "fsdp")
    analysis = analyse([simulate(tmp_path / "s", [Case(strategy=name, ranks=2) for name in names])])
    pairs = {(one.a, one.b) for one in analysis.comparisons}
    assert pairs == {("dp", "ddp"), ("dp", "zero1"), ("dp", "fsdp"), ("ddp", "zero1"), ("ddp", "fsdp")}


def test_a_curve_with_ddp_options_has_the_plain_device_as_its_base(tmp_path: Path) -> None:
    """A bucket size or a hook is DDP's: the single cell without it does the same work and is the base."""
    cells = [SINGLE, ddp(2, bucket_cap_mb=1.0, comm_hook="fp16", broadcast_buffers=False)]
    (curve,) = analyse([simulate(tmp_path / "s", cells)]).curves
    assert curve.base_cell == SINGLE.id
    other = [Case(precision="bf16"), ddp(2)]
    (curve,) = analyse([simulate(tmp_path / "other", other)]).curves
    assert curve.base_cell != other[0].id


def test_a_base_under_strong_scaling_has_the_same_micro_batch(tmp_path: Path) -> None:
    """A strong batch of 64 in 4 micro-batches is a micro-batch of 16 on one device, not one of 64."""
    strong = ddp(2, batch=64, scaling="strong", grad_accumulation=4)
    same, other = Case(batch=16, grad_accumulation=4), Case(batch=64, grad_accumulation=4)
    (curve,) = analyse([simulate(tmp_path / "s", [other, same, strong])]).curves
    assert curve.base_cell == same.id
