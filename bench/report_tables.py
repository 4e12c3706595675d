"""The report's tables: curves, comparisons, memory, all cells, exclusions."""

from collections.abc import Callable, Sequence

from bench import wording
from bench.answers import Analysis, CellResult, Comparison, Curve, Exclusion, Interval, MemoryRow, Point
from bench.measures import format_change, format_value
from bench.plugins import clip
from bench.tables import (
    MOST_ROWS,
    Column,
    Entry,
    Line,
    Spec,
    Table,
    amount,
    build,
    limits,
    number_column,
    word,
)


def scaling(curve: Curve) -> Table:
    """One curve, a line a device count."""
    law, hint = {
        "strong": (
            "Karp-Flatt",
            "serial part of the work that would explain the loss: (1/S - 1/N) / (1 - 1/N)",
        ),
        "weak": ("Gustafson", "serial part of the work that would explain the loss: (N - N E) / (N - 1)"),
    }[curve.scaling]
    spec: Spec[Point] = [
        (number_column("devices"), lambda p: amount(p.devices, f"{p.devices:,}")),
        (number_column("samples a step"), lambda p: amount(p.global_batch, f"{p.global_batch:,}")),
        (number_column("samples/s"), lambda p: amount(p.samples_per_s.value)),
        (number_column("95 % interval"), lambda p: limits(p.samples_per_s, wording.bounds)),
        (number_column("per device"), lambda p: amount(p.per_device)),
        (number_column("speed-up"), lambda p: amount(p.speedup.value, f"{p.speedup.value:.2f}")),
        (number_column("efficiency"), lambda p: efficiency(p.efficiency)),
        (number_column("95 % interval"), lambda p: base_or_limits(curve, p)),
        (number_column(law, hint), lambda p: serial_part(curve, p)),
        (number_column("step"), lambda p: amount(p.step_s, wording.duration(p.step_s))),
        (number_column("launches"), lambda p: amount(len(p.launches), f"{len(p.launches)}")),
        (Column("marks"), lambda p: marks(p.marks)),
    ]
    base = f"{clip(curve.base, 60)}, {wording.number(curve.base_samples_per_s)} samples/s"
    caption = f"{clip(curve.label, 200)} — base: {base}"
    return build(caption, curve.points, spec, "scaling.csv", clip(curve.note or "", 200))


def base_or_limits(curve: Curve, point: Point) -> Entry:
    """The interval of an efficiency; the base has none, being measured against itself."""
    if point.cell == curve.base_cell:
        return Entry("base", tone="missing")
    return limits(point.efficiency, wording.share_bounds)


def efficiency(interval: Interval | None) -> Entry:
    """An efficiency with the decimals that its interval allows."""
    if interval is None:
        return amount(None)
    return amount(interval.value, wording.share(interval.value, wording.share_decimals(interval)))


def serial_part(curve: Curve, point: Point) -> Entry:
    """The serial part in per cent, one decimal; why there is none where the point is slower than the base."""
    value = curve.serial_fraction.get(point.devices)
    if value is None and point.speedup.value < 1 and point.devices != curve.base_devices:
        reason = f"slower than {'one device' if curve.base_devices == 1 else 'the base'}"
        return Entry(f"n/a: {reason}", tone="missing reason", hint="a share above 100 % would be no share")
    return amount(value, wording.share(value, 1))


def fraction(value: float | None) -> Entry:
    """A part of a whole in per cent, one decimal."""
    return amount(value, wording.share(value, 1))


def marks(names: Sequence[str]) -> Entry:
    """What a reader must know about this row's numbers."""
    return Entry(clip(", ".join(names), 80), tone="mark", hint=clip(", ".join(names), 400) if names else "")


def comparisons(analysis: Analysis) -> Table:
    """Every pair of cells that differ in one setting."""
    contexts, common = wording.without_common([one.context for one in analysis.comparisons])
    short = dict(zip(map(id, analysis.comparisons), contexts, strict=True))
    spec: Spec[Comparison] = [
        (Column("setting"), lambda c: word(c.factor)),
        (Column("from → to"), lambda c: word(f"{c.a} → {c.b}")),
        (Column("same on both sides"), lambda c: word(short[id(c)])),
        (number_column("first, samples/s"), lambda c: amount(c.a_samples_per_s)),
        (number_column("second, samples/s"), lambda c: amount(c.b_samples_per_s)),
        (number_column("change"), lambda c: amount(c.ratio.value, format_change(c.ratio.value))),
        (number_column("95 % interval, %"), lambda c: limits(c.ratio, wording.change_bounds)),
        (Column("verdict"), lambda c: Entry(c.verdict, tone=c.verdict.replace(" ", "-"))),
        (
            number_column("smallest visible", "the smallest change that this many launches could have shown"),
            lambda c: amount(c.smallest_visible, wording.share(c.smallest_visible, 1)),
        ),
        (
            number_column(
                "launches to decide", "launches a side that would decide an inconclusive comparison"
            ),
            lambda c: amount(c.launches_to_decide, f"{c.launches_to_decide}"),
        ),
        (
            number_column("n", "blocks that hold both, or launches of the side that has fewer"),
            lambda c: amount(c.ratio.n, f"{c.ratio.n}"),
        ),
        (
            number_column("p", "of no difference, adjusted for all comparisons of the family"),
            lambda c: amount(c.p_adjusted, wording.p_value(c.p_adjusted)),
        ),
        (Column("note"), lambda c: word(c.note) if c.note else Entry("")),
    ]
    note = f"In all rows: {clip(common, 200)}." if common else ""
    return build("Every pair of cells that differ in one setting", analysis.comparisons, spec, note=note)


def memory(analysis: Analysis, labels: dict[str, str]) -> Table:
    """Memory of every rank; a kind that no rank has is left out."""

    def column(title: str, field: str, hint: str = "") -> tuple[Column, Callable[[MemoryRow], Entry]]:
        return number_column(title, hint), lambda row: amount(
            getattr(row, field), wording.size(getattr(row, field))
        )

    kinds = [
        ("allocated", "peak_allocated_bytes", "peak of torch's tensors"),
        ("reserved", "peak_reserved_bytes", "peak of torch's allocator"),
        ("device used", "device_used_bytes", "all that the device holds, other processes included"),
        ("device has", "device_total_bytes", ""),
        ("pinned", "pinned_bytes", "page-locked host memory"),
        ("rank, PSS", "rank_pss_bytes", "host memory of the rank, shared pages divided among their users"),
        ("workers, PSS", "workers_pss_bytes", "host memory of the rank's loader workers"),
        ("shm used", "shm_used_bytes", "shared memory: /dev/shm"),
    ]
    found = [kind for kind in kinds if any(getattr(row, kind[1]) is not None for row in analysis.memory)]
    spec: Spec[MemoryRow] = [
        (Column("cell"), lambda row: word(labels.get(row.cell, row.cell))),
        (number_column("rank"), lambda row: amount(row.rank, f"{row.rank}")),
        *(column(*kind) for kind in found),
    ]
    shown = analysis.memory[: 4 * MOST_ROWS]
    note = (
        ""
        if len(shown) == len(analysis.memory)
        else f"First {len(shown):,} of {len(analysis.memory):,} ranks."
    )
    return build("Largest over each rank's launches", shown, spec, note=note)


def cells(analysis: Analysis, labels: dict[str, str]) -> Table:
    """All cells, the ones without numbers too. Energy has a column where any device told of it."""
    energy: Spec[CellResult] = [
        (
            number_column(
                "energy a sample", "what all devices of the cell took in the window, over its samples"
            ),
            lambda c: amount(
                c.energy_per_sample_j, format_value("energy_per_sample_j", c.energy_per_sample_j)
            ),
        )
    ]
    spec: Spec[CellResult] = [
        (Column("cell"), lambda c: Entry(labels[c.cell], hint=clip(c.cell, 120))),
        (Column("status"), lambda c: Entry(clip(c.status, 20), tone=clip(c.status, 20).replace(" ", "-"))),
        (number_column("devices"), lambda c: amount(c.case.devices, f"{c.case.devices}")),
        (number_column("samples a step"), lambda c: amount(c.case.global_batch, f"{c.case.global_batch:,}")),
        (number_column("samples/s"), lambda c: amount(c.samples_per_s.value if c.samples_per_s else None)),
        (
            number_column("95 % interval", "half its width"),
            lambda c: limits(c.samples_per_s, wording.plus_minus),
        ),
        (number_column("efficiency"), lambda c: efficiency(c.efficiency)),
        (number_column("step, ms"), lambda c: amount(c.step_s, wording.milliseconds(c.step_s))),
        (number_column("p50"), lambda c: amount(c.p50_s, wording.milliseconds(c.p50_s))),
        (number_column("p95"), lambda c: amount(c.p95_s, wording.milliseconds(c.p95_s))),
        (number_column("p99"), lambda c: amount(c.p99_s, wording.milliseconds(c.p99_s))),
        (number_column("data wait", "part of the step"), lambda c: fraction(_wait(c))),
        (number_column("first step"), lambda c: amount(c.first_step_s, wording.duration(c.first_step_s))),
        (number_column("first batch"), lambda c: amount(c.first_batch_s, wording.duration(c.first_batch_s))),
        (
            number_column("memory", "fullest rank: device used, or PSS of rank and workers without a device"),
            lambda c: amount(c.memory_bytes, wording.size(c.memory_bytes)),
        ),
        *(energy if any(c.energy_per_sample_j is not None for c in analysis.cells) else ()),
        (number_column("launches"), lambda c: amount(c.launches, wording.launches(c))),
        (number_column("failed"), lambda c: amount(c.failed, f"{c.failed}")),
        (Column("marks, reason"), _remarks),
    ]
    table = build("All cells", analysis.cells, spec, "cells.csv")
    lines = [Line(line.entries, anchor=f"cell-{place}") for place, line in enumerate(table.lines)]
    return Table(table.caption, table.columns, lines, table.csv)


def _wait(cell: CellResult) -> float | None:
    wait = cell.phases_s.get("data_wait")
    return None if wait is None or not cell.step_s else wait / cell.step_s


def _remarks(cell: CellResult) -> Entry:
    return marks([*cell.marks, *([cell.reason] if cell.reason else [])])


def exclusions(analysis: Analysis, labels: dict[str, str]) -> Table:
    """Launches that are in the study and not in the numbers."""
    spec: Spec[Exclusion] = [
        (Column("launch"), lambda e: word(e.launch)),
        (Column("cell"), lambda e: word(labels.get(e.cell, e.cell))),
        (Column("status"), lambda e: Entry(clip(e.status, 20), tone=clip(e.status, 20).replace(" ", "-"))),
        (Column("cause"), lambda e: word(e.cause)),
        (Column("reason"), lambda e: word(e.reason, most=160)),
    ]
    shown = analysis.exclusions[:MOST_ROWS]
    rest = len(analysis.exclusions) - len(shown)
    note = f"{rest:,} more are in the CSV." if rest else ""
    return build(
        "Launches that are in no number, or in one without a vote", shown, spec, "exclusions.csv", note
    )
