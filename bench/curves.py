"""Throughput against devices: which cells make a curve, and what its efficiency is relative to.

A curve holds one strategy, one set of settings and one scaling mode. Its base is chosen once:
the single cell with equal settings, else the strategy itself on one device, else its smallest count.
Over several nodes, ranks grow on one node in one curve, and nodes of as many ranks each in another.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from bench import stats
from bench.answers import Curve, Point
from bench.case import OF_STRATEGY, Case, canonical
from bench.describe import describe, settings, slots
from bench.evidence import Cell, Evidence, relative, scaled

_DEFAULT = Case()
_NOTES = {1: "one device count: no curve", 2: "two device counts: efficiency, no fit"}


def curves(evidence: Evidence) -> tuple[Curve, ...]:
    """Every curve of the studies. Cells without a usable launch are in none.

    A curve of one device count is given only where no curve has more; `single` alone only where there
    is no other strategy.
    """
    cells = [cell for cell in evidence.cells.values() if cell.usable]
    groups = _grouped(cells, _curve_key)
    spread = [group for group in groups.values() if group[0].case.strategy != "single"]
    singles = _grouped([cell for cell in cells if cell.case.strategy == "single"], _bare_key)
    alone = _grouped([cell for cell in cells if cell.case.devices == 1], _work_key)
    found = []
    for group in (part for whole in spread or groups.values() for part in _growing(whole)):
        group.sort(key=_size)
        first = group[0].case
        candidates = singles.get(_bare_key(first)) or alone.get(_work_key(first)) or group[:1]
        found.append(_curve(evidence, group, _preferred(candidates, first.scaling)))
    return tuple([curve for curve in found if _counts(curve) > 1] or found)


def threads_differ(evidence: Evidence, base: Cell, cell: Cell) -> str | None:
    """ "threads 2 vs 1" where the base ran with other threads a rank, or None."""
    ours, theirs = (sorted(evidence.said(one.id, "threads")) for one in (cell, base))
    if not ours or not theirs or ours == theirs:
        return None
    return f"threads {theirs[-1]:g} vs {ours[-1]:g}"


def _curve(evidence: Evidence, group: Sequence[Cell], base: Cell) -> Curve:
    first = group[-1].case
    points = tuple(_point(evidence, base, cell) for cell in group)
    counts = {cell.case.devices for cell in (base, *group)}
    assert base.samples_per_s is not None
    return Curve(
        label=_label(group),
        strategy=first.strategy,
        scaling=first.scaling,
        settings=settings(first),
        base=_base_words(base.case, first),
        base_cell=base.id,
        base_devices=base.case.devices,
        base_samples_per_s=base.samples_per_s.value,
        points=points,
        serial_fraction={point.devices: _serial(point, first.scaling, base) for point in points},
        note=_NOTES.get(len(counts)),
        reference=any(cell.reference for cell in group),
    )


def _point(evidence: Evidence, base: Cell, cell: Cell) -> Point:
    estimate = relative(base, cell).interval()
    devices = cell.case.devices
    throughput = cell.samples_per_s
    threads = threads_differ(evidence, base, cell)
    assert throughput is not None
    return Point(
        cell=cell.id,
        devices=devices,
        batch=cell.case.device_batch,
        global_batch=cell.case.global_batch,
        samples_per_s=throughput,
        per_device=throughput.value / devices,
        speedup=estimate,
        efficiency=scaled(estimate, base.case.devices / devices),
        step_s=cell.average("step_s") or cell.case.global_batch / throughput.value,
        launches=cell.rates,
        marks=cell.width_marks + cell.marks + ((f"baseline not comparable: {threads}",) if threads else ()),
        converged=cell.converged,
    )


def _preferred(candidates: Sequence[Cell], scaling: str) -> Cell:
    """Of cells that do the same work: the one of the curve's own scaling mode, with the most launches."""
    return max(candidates, key=lambda cell: (cell.case.scaling == scaling, len(cell.shown)))


def _grouped(cells: Iterable[Cell], key: Callable[[Case], bytes]) -> dict[bytes, list[Cell]]:
    groups: dict[bytes, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell.case), []).append(cell)
    return groups


def _growing(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells with equal settings as curves: what grows is the ranks of one node, or the nodes behind one link."""
    alone = [cell for cell in cells if cell.case.nodes == 1]
    beyond = [cell for cell in cells if cell.case.nodes > 1]
    if not beyond:
        return [alone]
    kinds = dict.fromkeys((cell.case.ranks, cell.case.link) for cell in sorted(beyond, key=_size))
    over = [
        [cell for cell in alone if cell.case.ranks == ranks]
        + [cell for cell in beyond if (cell.case.ranks, cell.case.link) == (ranks, link)]
        for ranks, link in kinds
    ]
    return ([alone] if len({cell.case.ranks for cell in alone}) > 1 else []) + over


def _curve_key(case: Case) -> bytes:
    """Equal for cells whose settings are: everything but devices, the link between them and the length of the run."""
    return canonical(_plain(case))


def _work_key(case: Case) -> bytes:
    """Equal where one device does the same work: on one device weak and strong scaling are the same."""
    return canonical(_plain(_weak(case)))


def _bare_key(case: Case) -> bytes:
    """The work of one device without a wrapper, plain BN and no process group."""
    bare = {name: getattr(_DEFAULT, name) for name in OF_STRATEGY}
    return canonical(msgspec.structs.replace(_plain(_weak(case)), **bare))


def _weak(case: Case) -> Case:
    """The weak case that does the same work on one device: its batch is that of a micro-batch."""
    return (
        msgspec.structs.replace(case, scaling="weak", batch=case.micro_batch)
        if case.scaling == "strong"
        else case
    )


def _plain(case: Case) -> Case:
    return msgspec.structs.replace(
        case, ranks=1, nodes=1, link=None, steps=_DEFAULT.steps, timeout_s=_DEFAULT.timeout_s
    )


def _size(cell: Cell) -> tuple[int, int]:
    return cell.case.devices, cell.case.nodes


def _base_words(base: Case, case: Case) -> str:
    plain_bn = ", plain BN" if case.sync_bn and not base.sync_bn else ""
    if base.strategy == "single" and base.devices == 1:
        return f"single, no wrapper{plain_bn}"
    if base.devices == 1:
        return f"{base.strategy} on {slots(base)}{plain_bn}"
    return f"relative to {base.devices} devices"


def _label(group: Sequence[Cell]) -> str:
    case = group[-1].case
    text = describe(msgspec.structs.replace(case, ranks=1, nodes=1))
    word = "rank" if case.ranks == 1 else "ranks"
    grows = f"nodes of {case.ranks} {word}, " if case.nodes > 1 else ""
    return f"{case.strategy}, {case.scaling}, {grows}{text.split(', ', 1)[1]}"


def _serial(point: Point, scaling: str, base: Cell) -> float | None:
    """Karp-Flatt under strong scaling, Gustafson under weak; devices count in units of the base.

    None where the point is slower than the base: a share above 100 % is no share.
    """
    if point.speedup.value < 1:
        return None
    times = point.devices / base.case.devices
    if scaling == "strong":
        return stats.karp_flatt(point.speedup.value, times)
    return stats.gustafson(point.efficiency.value, times)


def _counts(curve: Curve) -> int:
    return len({point.devices for point in curve.points} | {curve.base_devices})
