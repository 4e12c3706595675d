"""The verdict card: what a reader who reads nothing else should know, and what can't be said."""

import math
from dataclasses import dataclass

from bench import wording
from bench.answers import Analysis, Best, CellResult, Comparison, Curve, Point
from bench.measures import format_change
from bench.plugins import clip
from bench.wording import duration, number, plural, share

UNDER = {"single": "without a wrapper", "ddp": "under DDP", "dp": "under DataParallel"}
MOST_SETTINGS = 3


@dataclass(frozen=True)
class Tile:
    """One number of the card."""

    title: str
    value: str
    detail: str
    href: str = ""


@dataclass(frozen=True)
class Card:
    """A sentence, its numbers, the settings that matter, and what can't be said and why."""

    headline: str
    tiles: list[Tile]
    settings: list[Comparison]
    limits: list[str]


def card(analysis: Analysis) -> Card:
    """The card of a study, also of one in which nothing won."""
    best = analysis.best
    tiles = [*(_tiles(analysis, best) if best else []), _warnings(analysis)]
    headline = _headline(analysis, best) if best else "No configuration can be called best."
    return Card(headline, tiles, _settings(analysis), _limits(analysis))


def _headline(analysis: Analysis, best: Best) -> str:
    """One sentence for a newcomer; a second one for the main loss."""
    found = _place(analysis, best)
    rate = number(best.samples_per_s.value)
    case = next((cell.case for cell in analysis.cells if cell.cell == best.cell), None)
    if case is None:
        return f"{clip(best.label)} trains {rate} samples/s."
    who = plural(case.devices, analysis.device_kind)
    how = UNDER.get(case.strategy, f"under {clip(case.strategy, 40)}")
    text = f"{who} {how} {'trains' if case.devices == 1 else 'train'} {rate} samples/s"
    if found is None or best.efficiency is None:
        return f"{text}.{_loss(best, 'Its largest part that is not training')}"
    return f"{text}{_against(analysis, *found)}{_loss(best, 'Most of the loss')}"


def _against(analysis: Analysis, curve: Curve, point: Point) -> str:
    """What that is against the base, in words."""
    base = f"base: {clip(curve.base, 60)}, {number(curve.base_samples_per_s)} samples/s"
    if point.cell == curve.base_cell:
        return "."
    if point.devices == curve.base_devices:
        return f", {_efficiency(point)} of its base ({base})."
    one = analysis.device_kind.split()[-1] if analysis.device_kind else "device"
    alone = f"one {one}" if curve.base_devices == 1 else plural(curve.base_devices, one)
    return f", {point.speedup.value:.3g} times {alone}: {_efficiency(point)} of ideal ({base})."


def _efficiency(point: Point) -> str:
    interval = point.efficiency
    text = share(interval.value, wording.share_decimals(interval))
    return text if interval.low is None else f"{text} {wording.share_bounds(interval)}"


def _loss(best: Best, what: str) -> str:
    if best.loss is None:
        return ""
    amount = f"{duration(best.loss.seconds)}, {share(best.loss.share)} of the step"
    return f" {what}: {clip(best.loss.label, 120)} ({amount})."


def _place(analysis: Analysis, best: Best) -> tuple[Curve, Point] | None:
    """The best cell's point on its curve."""
    for curve in analysis.curves:
        for point in curve.points:
            if point.cell == best.cell:
                return curve, point
    return None


def _tiles(analysis: Analysis, best: Best) -> list[Tile]:
    rate = best.samples_per_s
    tiles = [Tile("Throughput", f"{number(rate.value)} samples/s", _certainty(best), "#cells")]
    found = _place(analysis, best)
    if best.efficiency and found:
        limits = wording.share_bounds(best.efficiency)
        value = share(best.efficiency.value, wording.share_decimals(best.efficiency))
        base = f"base: {clip(found[0].base, 60)}, {number(found[0].base_samples_per_s)} samples/s"
        tiles.append(Tile("Efficiency", value, f"{limits} · {base}", "#efficiency"))
    if best.loss:
        detail = f"{share(best.loss.share)} of a step: {clip(best.loss.label, 80)}"
        tiles.append(Tile("Main loss", duration(best.loss.seconds), detail, "#phases"))
    return tiles


def _certainty(best: Best) -> str:
    interval = best.samples_per_s
    launches = plural(interval.n, "launch", "launches")
    return launches if interval.half_width is None else f"{wording.plus_minus(interval)} over {launches}"


def _warnings(analysis: Analysis) -> Tile:
    levels = [finding.level for finding in analysis.findings]
    problems, warnings = levels.count("problem"), levels.count("warning")
    detail = (
        f"{plural(problems, 'problem')}, {plural(warnings, 'warning')}"
        if problems + warnings
        else "nothing found"
    )
    return Tile("Findings", str(problems + warnings), detail, "#findings")


def _settings(analysis: Analysis) -> list[Comparison]:
    """Of each factor the comparison with a verdict that changes most, the largest changes first."""
    decided = [one for one in analysis.comparisons if one.verdict in ("faster", "slower", "small change")]
    largest: dict[str, Comparison] = {}
    for one in sorted(decided, key=lambda one: -abs(math.log(one.ratio.value))):
        largest.setdefault(one.factor, one)
    return list(largest.values())[:MOST_SETTINGS]


def setting_text(one: Comparison) -> str:
    """`num_workers 0 → 2: +9.0 %`."""
    names = f"{one.factor} {one.a} → {one.b}"
    return f"{clip(names, 60)}: {format_change(one.ratio.value)}"


def _limits(analysis: Analysis) -> list[str]:
    """What can't be said, and why."""
    notes = (analysis.best_note or "").split("; ")
    said = [
        clip(f"this is the best {note}" if note.startswith("of the cells") else note, 200) for note in notes
    ]
    if analysis.quick and "one launch a cell" not in (analysis.best_note or ""):
        said.append("a quick study is one launch a cell: no interval, no verdict")
    measured = [cell for cell in analysis.cells if cell.samples_per_s]
    if not analysis.cells:
        said.append("The study has no cells.")
    elif not measured:
        said.append(_nothing_measured(analysis.cells))
    elif len({cell.case.devices for cell in measured}) == 1:
        count = plural(measured[0].case.devices, "device")
        said.append(f"Everything was measured on {count}, so nothing can be said about scaling.")
    return list(dict.fromkeys(text[0].upper() + text[1:].rstrip(".") + "." for text in said if text))


def _nothing_measured(cells: tuple[CellResult, ...]) -> str:
    reasons = list(dict.fromkeys(cell.reason for cell in cells if cell.reason))
    why = f": {clip('; '.join(reasons[:3]), 240)}" if reasons else ""
    return f"None of {plural(len(cells), 'cell')} gave a number{why}"
