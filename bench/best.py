"""The best configuration of a study: which it is, what it may not claim, and where its time goes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from bench import stats
from bench.answers import Best, Curve, Interval, Loss, Point
from bench.case import Case
from bench.comparisons import plainest
from bench.describe import describe, needed_phases
from bench.evidence import Cell, Evidence, relative
from bench.records import PHASES

LOSSES = {
    "data_wait": "waiting for input",
    "h2d": "copies to the device",
    "forward": "forward",
    "backward": "backward incl. gradient exchange",
    "optimizer": "optimizer step",
    "other": "the rest of the step",
}
SMALL = 0.01  # of a step: a smaller loss is not named
# What a cell is, not how it is set: no part of "which settings won".
NO_SETTINGS = {
    *("strategy", "ranks", "nodes", "scaling", "model", "model_args", "data", "data_args"),
    *("steps", "seed", "timeout_s"),
}


class Winner(NamedTuple):
    """The best, or None; why there is none or what it may not claim; the fastest on more devices than it."""

    best: Best | None
    note: str | None
    more: Best | None = None
    more_ratio: Interval | None = None


def best(evidence: Evidence, found: Sequence[Curve]) -> Winner:
    """The fastest configuration of the study's main workload, and what it may not claim.

    Reference implementations never win; stand-ins only where there is nothing else. Where cells on more devices
    were measured and are slower, the fastest of those is given too: that is what a study of scaling asks.
    """
    fair = [cell for cell in evidence.measured if cell.comparable and not cell.reference]
    real = [cell for cell in fair if not cell.stand_ins]
    if not fair:
        return Winner(None, _why_none(evidence))
    groups: dict[str, list[Cell]] = {}
    for cell in real or fair:
        groups.setdefault(_workload(cell), []).append(cell)
    name, cells = max(groups.items(), key=lambda item: (_weight(item[1]), item[0]))
    order = sorted(cells, key=_rate, reverse=True)
    first = order[0]
    notes = [] if real else ["only stand-ins were measured: a calibration, not a model's speed"]
    notes += [f"of the cells on {name}"] * (len(groups) > 1)
    notes += _against_next(order)
    more = next((cell for cell in order if cell.case.devices > first.case.devices), None)
    return Winner(
        _winner(evidence, found, first, cells),
        "; ".join(notes) or None,
        _winner(evidence, found, more, cells) if more else None,
        relative(first, more).interval() if more else None,
    )


def _workload(cell: Cell) -> str:
    """What is trained, on what: only these are ranked against each other."""
    case = cell.case
    given = [f"{name}={value}" for name, value in (case.model_args | case.data_args).items()]
    return " ".join([f"{case.model} on {case.data}", *given])


def _weight(cells: Sequence[Cell]) -> tuple[int, bool, int]:
    """The main workload is the one that most devices ran; then one with real loading; then most cells."""
    return max(cell.case.devices for cell in cells), cells[0].case.data != "device", len(cells)


def _against_next(order: Sequence[Cell]) -> list[str]:
    """Is the first really ahead of the second?"""
    if len(order) < 2:
        return []
    estimate = relative(order[1], order[0])
    if len(order[0].shown) < 2:
        return ["one launch a cell: no interval, no verdict"]
    if stats.verdict(estimate) in ("faster", "small change"):
        return []
    return [f"not told apart from {describe(order[1].case)}"]


def _winner(evidence: Evidence, found: Sequence[Curve], best: Cell, among: Sequence[Cell]) -> Best:
    places = [
        (curve, point)
        for curve in found
        for point in curve.points
        if point.cell == best.id and curve.base_cell != best.id
    ]
    curve, point = places[0] if places else (None, None)
    settings, plain = _settings(best, among)
    assert best.samples_per_s is not None
    return Best(
        cell=best.id,
        label=describe(best.case),
        samples_per_s=best.samples_per_s,
        efficiency=point.efficiency if point else None,
        base=curve.base if curve else None,
        loss=_loss(evidence, best, curve, point),
        settings=settings,
        over_plain=relative(plain, best).interval() if plain else None,
    )


def _settings(best: Cell, among: Sequence[Cell]) -> tuple[tuple[str, ...], Cell | None]:
    """The fields that vary among the cells and are not at their plainest level here, and the cell with all of them so.

    None in the place of that cell where there is no such field or it was not measured.
    """
    plain: dict[str, object] = {}
    for name in (field for field in Case.__struct_fields__ if field not in NO_SETTINGS):
        lowest = plainest(name, {getattr(cell.case, name) for cell in among})
        if getattr(best.case, name) != lowest:
            plain[name] = lowest
    wanted = msgspec.structs.replace(best.case, **plain)
    match = next((cell for cell in among if cell.case == wanted), None) if plain else None
    return tuple(plain), match


def _loss(evidence: Evidence, best: Cell, curve: Curve | None, point: Point | None) -> Loss | None:
    """The phase that grew most over the base; on one device, the part that is not training.

    Under strong scaling a phase should shrink with the devices: what is above that is the loss. None
    where a needed phase is missing on either side, or few steps dominate it: no cause is named from that.
    """
    ours = evidence.critical(best.id)
    base: Mapping[str, float | None] = dict.fromkeys(("data_wait", "h2d"), 0.0)
    shrink = 1.0
    if curve and point and point.devices > curve.base_devices:
        base = evidence.critical(curve.base_cell)
        shrink = curve.base_devices / point.devices if curve.scaling == "strong" else 1.0
    if best.hiccups or (curve and evidence.cells[curve.base_cell].hiccups):
        return None
    step = ours["step"]
    needed = needed_phases(best.case)
    if not step or any(ours[phase] is None or base.get(phase, 0.0) is None for phase in needed):
        return None
    grown = {
        phase: mine - theirs * shrink
        for phase in PHASES
        if (mine := ours[phase]) is not None
        and (theirs := base.get(phase)) is not None
        and (phase != "h2d" or _timed_on_device(best))
    }
    phase = max(grown, key=lambda name: grown[name], default=None)
    if phase is None or grown[phase] < SMALL * step:
        return None
    return Loss(label=LOSSES[phase], phase=phase, seconds=grown[phase], share=grown[phase] / step)


def _timed_on_device(cell: Cell) -> bool:
    """Copies to an accelerator are asynchronous: only its own clock can time them."""
    return all(row.clock == "events" for row in cell.shown)


def _why_none(evidence: Evidence) -> str:
    if not evidence.cells:
        return "the study has no cells"
    if not evidence.measured:
        return "no launch finished"
    if all(cell.reference for cell in evidence.measured):
        return "only reference implementations were measured: they win no verdict"
    return "no launch is comparable: each is unsteady, or ran other settings than were asked for"


def _rate(cell: Cell) -> float:
    return cell.samples_per_s.value if cell.samples_per_s else 0.0
