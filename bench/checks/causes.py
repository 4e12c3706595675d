"""Why devices are slower than they should be, or faster than they can be.

No cause is named from a window that few steps dominate: `trust.hiccups` tells of those.
"""

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from bench import stats
from bench.answers import Curve
from bench.checks.seen import Known, Seen, worst
from bench.curves import threads_differ
from bench.describe import describe, needed_phases, slots
from bench.evidence import Cell, Evidence, relative
from bench.machine import suggest_workers
from bench.measures import format_value
from bench.watch_checks import remedy_of, waits_without_workers

LARGE = 0.10  # of a step: from here on a part of it is worth a finding
SUPERLINEAR = 1.05  # as printed: 105.0 %
AGREE = 0.8  # of the launches name the same late rank
ENOUGH_LAUNCHES = 3  # with fewer, each has to show it beyond the spread of its steps
ENOUGH_STEPS = 30


def superlinear(known: Known) -> Iterator[Seen]:
    """Efficiency above 105 %: what differs between the base and the run?"""
    for curve in known.curves:
        above = [point for point in curve.points if round(point.efficiency.value, 3) >= SUPERLINEAR]
        if above:
            point = max(above, key=lambda point: point.efficiency.value)
            base, cell = known.evidence.cells[curve.base_cell], known.evidence.cells[point.cell]
            share = format_value("efficiency", point.efficiency.value)
            differs = "; ".join(_differences(known.evidence, base, cell)) or "nothing that is recorded"
            low = point.efficiency.low
            chance = "; its interval includes 100 %: it may be chance" if low is not None and low <= 1 else ""
            chance = "; one launch: it may be chance" if low is None else chance
            text = f"super-linear: check baseline: efficiency {share} on {slots(cell.case)}{chance}; differs: {differs}"
            yield Seen(
                text, (base.id, *(point.cell for point in above)), {"base": curve.base, "differs": differs}
            )


def throughput_falls(known: Known) -> Iterator[Seen]:
    """Devices that take throughput away instead of adding it. The base counts too.

    Reference implementations decide nothing: their curves are left out.
    """
    for curve, best, lower in _falling(known, _falls):
        unit = "node" if _only_nodes_grow(known, curve) else "device"
        stop = best.case.nodes if unit == "node" else best.case.devices
        totals = _totals(best, lower[-1])
        text = f"adding {unit}s loses throughput: {totals}; stop at {stop} {unit}{'s' * (stop > 1)}"
        yield Seen(text, (*(cell.id for cell in lower), best.id), {"curve": curve.label})


def throughput_may_fall(known: Known) -> Iterator[Seen]:
    """The same in a study of one launch a cell, which decides nothing: told where the loss is large."""
    found = []
    for curve, best, lower in _falling(known, _may_fall):
        text = f"more devices are slower: {_totals(best, lower[-1])}; one launch: it may be chance"
        ratio = relative(best, lower[-1]).interval().value
        found.append(Seen(text, (*(c.id for c in lower), best.id), {"curve": curve.label}, -ratio))
    yield from worst(found)


def _falling(known: Known, falls: Callable[[Cell, Cell], bool]) -> Iterator[tuple[Curve, Cell, list[Cell]]]:
    """Curves, their fastest cell (the base counts), and the cells on more devices that are below it."""
    cells = known.evidence.cells
    for curve in known.curves:
        points = [cells[point.cell] for point in curve.points]
        best = max([cells[curve.base_cell], *points], key=_rate)
        lower = [cell for cell in points if cell.case.devices > best.case.devices and falls(best, cell)]
        if lower and not curve.reference:
            yield curve, best, lower


def _totals(best: Cell, lower: Cell) -> str:
    """`160 samples/s on 1 device and 80 samples/s on 4 ranks under ddp`."""
    totals = " and ".join(f"{_throughput(cell)} on {slots(cell.case)}" for cell in (best, lower))
    return f"{totals} under {lower.case.strategy}"


def input_bound(known: Known) -> Iterator[Seen]:
    """Waiting for batches on the rank that comes last; its peers' long backward is waiting for it."""
    found = []
    for cell in known.evidence.measured:
        phases = known.evidence.critical(cell.id)
        wait, step = phases["data_wait"], phases["step"]
        if not wait or not step or wait <= LARGE * step or cell.hiccups:
            continue
        culprit = _late_rank(known.evidence, cell, "data_wait")
        who = "" if culprit is None else f"rank {culprit}: "
        rest = "" if culprit is None else "; the other ranks wait for it in backward"
        parts = f"{format_value('data_wait_s', wait)} of {format_value('step_s', step)}"
        text = f"input-bound: {who}{parts} a step is waiting for the next batch ({describe(cell.case)}){rest}"
        evidence = {
            "data_wait": format_value("data_wait_s", wait),
            "share": format_value("efficiency", wait / step),
        }
        weight, remedy = wait / step + (culprit is not None), _workers_remedy(known.evidence, cell)
        found.append(Seen(text, (cell.id,), evidence, weight, remedy))
    yield from worst(found)


def _workers_remedy(evidence: Evidence, cell: Cell) -> str | None:
    """What a watched loop was told to do about waiting without workers; it knows its CPUs."""
    texts = (text for warnings in evidence.said(cell.id, "warnings") for text in warnings)
    return next((remedy_of(text)[1] for text in texts if waits_without_workers(text)), None)


def copy_bound(known: Known) -> Iterator[Seen]:
    """Copies to the device; only where the device's own clock timed them."""
    found = []
    for cell in known.evidence.measured:
        phases = known.evidence.critical(cell.id)
        copy, step = phases["h2d"], phases["step"]
        on_device = all(row.clock == "events" for row in cell.shown)
        if copy and step and on_device and copy > LARGE * step and not cell.hiccups:
            parts = f"{format_value('h2d_s', copy)} of {format_value('step_s', step)}"
            found.append(
                Seen(f"copy-bound: {parts} a step is copying to the device", (cell.id,), {}, copy / step)
            )
    yield from worst(found)


def slow_rank(known: Known) -> Iterator[Seen]:
    """A rank whose own work, other than input, makes the others wait in backward."""
    found = []
    for cell in known.evidence.measured:
        for phase in ("h2d", "forward", "optimizer", "other"):
            rank = _late_rank(known.evidence, cell, phase)
            if rank is not None:
                text = f"rank {rank} is late: its {phase} is longer than elsewhere; the others wait for it in backward"
                found.append(Seen(text, (cell.id,), {"rank": str(rank), "phase": phase}))
    yield from worst(found)


def straggler_unnamed(known: Known) -> Iterator[Seen]:
    """A long backward on every rank: communication or a slow rank; wall times cannot tell which."""
    found = []
    for cell in known.evidence.measured:
        by_rank = known.evidence.rank_means.get(cell.id, {})
        phases = known.evidence.critical(cell.id)
        backward, step = phases["backward"], phases["step"]
        if len(by_rank) < 2 or backward is None or not step or cell.hiccups:
            continue
        if cell.case.sync_bn or any("oversubscribed" in mark for mark in cell.marks):
            continue  # statistics, or the wait for a CPU, are in backward as well: wall times cannot tell
        excess = backward - _own_backward(known, cell, phases["forward"])
        if excess > LARGE * step:
            text = (
                f"backward of {describe(cell.case)} takes {format_value('backward_s', excess)} longer than its own "
                "work: gradient exchange; a straggler is possible, rank not identifiable from wall times"
            )
            found.append(Seen(text, (cell.id,), {"cell": describe(cell.case)}, excess / step))
    yield from worst(found)


def phases_missing(known: Known) -> Iterator[Seen]:
    """A phase that was not measured is not 0: no cause can be named without it."""
    for cell in known.evidence.measured:
        missing = [phase for phase in needed_phases(cell.case) if cell.average(f"{phase}_s") is None]
        if missing:
            text = f"insufficient data (missing: {', '.join(missing)}): no cause of loss is named"
            yield Seen(text, (cell.id,))


def dataparallel_overhead(known: Known) -> Iterator[Seen]:
    """DataParallel slower than DDP on the same devices with the same samples a step."""
    found = []
    for pair in known.comparisons:
        if (pair.factor, pair.a, pair.b, pair.verdict) == ("strategy", "dp", "ddp", "faster"):
            share = format_value("efficiency", 1 / pair.ratio.value)
            text = f"DataParallel overhead: it reaches {share} of DDP's throughput ({pair.context})"
            found.append(Seen(text, (pair.a_cell, pair.b_cell), {}, pair.ratio.value))
    yield from worst(found)


def enough_workers(known: Known) -> Iterator[Seen]:
    """The fewest loader workers within noise of the best, and no more than the CPUs allow."""
    groups: dict[str, dict[int, Cell]] = {}
    for pair in known.comparisons:
        if pair.factor == "num_workers" and pair.verdict != "not comparable":
            for cell in (known.evidence.cells[pair.a_cell], known.evidence.cells[pair.b_cell]):
                groups.setdefault(pair.context, {})[cell.case.num_workers] = cell
    usable = known.evidence.host.get("cpus_usable")
    for context, by_level in groups.items():
        if not all(_told(cell) for cell in by_level.values()):
            continue
        choice, text = _workers_choice(by_level, usable)
        seen = {str(level): _throughput(cell) for level, cell in sorted(by_level.items())}
        message = f"{text} ({context})"
        yield Seen(
            message, tuple(cell.id for cell in by_level.values()), seen, remedy=f"set num_workers={choice}"
        )


def _told(cell: Cell) -> bool:
    """Whether a cell's throughput is known well enough to advise on: an interval of ±10 % at most."""
    half = cell.samples_per_s.half_width if cell.samples_per_s else None
    return half is not None and half <= LARGE


def _workers_choice(by_level: dict[int, Cell], usable: int | None) -> tuple[int, str]:
    """The number to recommend, and why: 0 is a legal answer."""
    levels = sorted(by_level)
    ranks = by_level[levels[0]].case.ranks
    limit = levels[-1] if usable is None else max(suggest_workers(usable, ranks), levels[0])
    allowed = [level for level in levels if level <= limit]
    widths = [by_level[level].samples_per_s for level in levels]
    noise = max([stats.DELTA, *(width.half_width or 0.0 for width in widths if width)])
    knee = stats.knee(levels, [_rate(by_level[level]) for level in levels], noise)
    choice = stats.knee(allowed, [_rate(by_level[level]) for level in allowed], noise)
    text = f"num_workers {choice} gives {_throughput(by_level[choice])}"
    if knee <= limit:
        return choice, f"{text}; more workers give no more"
    more = f"{knee} give {_throughput(by_level[knee])}"
    return choice, f"{text}; {more}, but more than {limit} would crowd {usable} CPUs"


def _differences(evidence: Evidence, base: Cell, cell: Cell) -> Iterator[str]:
    """What a reader should check between a base and a run: fields of the case, threads, warm-up."""
    for name in base.case.__struct_fields__:
        ours, theirs = getattr(cell.case, name), getattr(base.case, name)
        if name not in ("ranks", "nodes") and ours != theirs:
            yield f"{name} {theirs} vs {ours}"
    threads = threads_differ(evidence, base, cell)
    if threads:
        yield threads
    states = [sorted({row.steady for row in one.shown}) for one in (base, cell)]
    if states[0] != states[1]:
        yield f"warm-up {'/'.join(states[0])} vs {'/'.join(states[1])}"


def _rate(cell: Cell) -> float:
    return cell.samples_per_s.value if cell.samples_per_s else 0.0


def _throughput(cell: Cell) -> str:
    return format_value("samples_per_s", _rate(cell))


def _falls(best: Cell, cell: Cell) -> bool:
    ratio = relative(best, cell).interval()
    return ratio.high is not None and ratio.high < 1  # one launch decides nothing


def _may_fall(best: Cell, cell: Cell) -> bool:
    ratio = relative(best, cell).interval()
    return ratio.high is None and ratio.value < 1 - LARGE


def _only_nodes_grow(known: Known, curve: Curve) -> bool:
    cells = [known.evidence.cells[point.cell] for point in curve.points]
    return len({cell.case.ranks for cell in cells}) == 1 and len({cell.case.nodes for cell in cells}) > 1


def _late_rank(evidence: Evidence, cell: Cell, phase: str) -> int | None:
    """The rank whose `phase` exceeds that of its peers by a large part of the step, or None.

    On a busy host some rank is late in most launches. So most launches have to name the same one; where there
    are only one or two, each has to show it in enough steps, and beyond the spread of these.
    """
    few = len(cell.shown) < ENOUGH_LAUNCHES
    late = [_late_in(evidence, row, phase, few) for row in cell.shown]
    rank = max(set(late), key=lambda one: (one is not None, late.count(one)), default=None)
    agree = late.count(rank) >= (1.0 if few else AGREE) * len(late)
    return rank if agree and not cell.hiccups else None


def _late_in(evidence: Evidence, row: Any, phase: str, alone: bool) -> int | None:
    """The late rank of one launch; `alone` where no other launch can confirm it."""
    by_rank = evidence.by_launch.get((row.study, row.launch), {})
    known = {rank: value for rank, row in by_rank.items() if (value := row[phase]) is not None}
    step = max((row["step"] or 0.0 for row in by_rank.values()), default=0.0)
    if len(known) < 2 or len(known) < len(by_rank):
        return None
    rank = max(known, key=lambda rank: known[rank])
    others = median(value for other, value in known.items() if other != rank)
    margin = known[rank] - others
    beyond = row.window_steps >= ENOUGH_STEPS and margin > 2 * (row.p95_s - row.p50_s)
    if alone and not beyond:
        return None
    return rank if margin > LARGE * step else None


def _own_backward(known: Known, cell: Cell, forward: float | None) -> float:
    """Backward without exchange: that of the curve's base on one device, else at most 3 times forward."""
    for curve in known.curves:
        if curve.base_devices == 1 and curve.scaling == "weak" and cell.id in {p.cell for p in curve.points}:
            backward = known.evidence.critical(curve.base_cell)["backward"]
            if backward is not None:
                return backward
    return 3 * (forward or 0.0)
