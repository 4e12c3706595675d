"""The verdict card: what a reader who reads nothing else should know, and what can't be said."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench import report_checkpoints, wording
from bench.answers import Analysis, Best, CellResult, Comparison, Curve, Interval, Point
from bench.case import Case
from bench.checkpoint_records import CheckpointRow
from bench.measures import format_change
from bench.plugins import clip
from bench.wording import duration, number, plural, share

UNDER = {"single": "without a wrapper"} | {
    name: f"under {title}" for name, title in wording.STRATEGIES.items() if name != "single"
}
MOST_SETTINGS = 3
GAIN = 0.02  # from here on a ratio of one launch is called a loss


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
    off: str = ""  # why no verdict holds


def card(analysis: Analysis) -> Card:
    """The card of a study, also of one in which nothing won."""
    best, rows = analysis.best, analysis.checkpoints
    tiles = [*(_tiles(analysis, best) if best else []), _warnings(analysis)]
    if rows and not analysis.cells:
        return Card(report_checkpoints.headline(rows), [*tiles, *_saving(rows)], [], [])
    headline = _headline(analysis, best) if best else "No configuration can be called best."
    return Card(headline, tiles, _settings(analysis), _limits(analysis), clip(analysis.off or "", 300))


def _saving(rows: Sequence[CheckpointRow]) -> Iterator[Tile]:
    """How long the training stands still for a checkpoint, at best and at worst."""
    known = sorted(
        (row.seconds, report_checkpoints.name(row)) for row in rows if row.kind == "save" and row.seconds
    )
    ends = [*known[:1], *known[1:][-1:]]
    for title, (seconds, name) in zip(("Shortest save", "Longest save"), ends, strict=False):
        yield Tile(title, duration(seconds), clip(name, 100), "#checkpoints")


def _headline(analysis: Analysis, best: Best) -> str:
    """A sentence for a newcomer, a second one for the main loss; where more devices are slower, that comes first."""
    if analysis.more is not None and analysis.more_ratio is not None:
        opening = _not_faster(analysis, best, analysis.more_ratio)
        rest = _trains(analysis, analysis.more, "The best on more devices: ")
        return f"{opening}: {_trains(analysis, best, loss=False)} {rest}"
    return _trains(analysis, best)


def _not_faster(analysis: Analysis, best: Best, ratio: Interval) -> str:
    """`More devices are slower than one`, or that they are not told apart."""
    case = _case(analysis, best)
    subject = "More devices" if case is None or case.devices == 1 else f"More than {case.devices} devices"
    slower = ratio.value < 1 - GAIN if ratio.high is None else ratio.high < 1
    than = "one" if case is None or case.devices == 1 else str(case.devices)
    launches = " (one launch: no interval)" if ratio.high is None else ""
    return f"{subject} {'are slower than' if slower else 'gain nothing over'} {than}{launches}"


def _trains(analysis: Analysis, best: Best, opening: str = "", loss: bool = True) -> str:
    """Who trains how much under which settings, against what, and where the loss is."""
    found, case = _place(analysis, best), _case(analysis, best)
    rate = number(best.samples_per_s.value)
    if case is None:
        return f"{opening}{clip(best.label)} trains {rate} samples/s."
    who = plural(case.devices, analysis.device_kind) + (f" on {case.nodes} nodes" if case.nodes > 1 else "")
    how = UNDER.get(case.strategy, f"under {clip(case.strategy, 40)}")
    chosen = _chosen(case, best)
    how += f" with {_listed(chosen)}" if chosen else ""
    text = f"{opening}{who} {how} {'trains' if case.devices == 1 else 'train'} {rate} samples/s"
    if found is None or best.efficiency is None:
        said = _loss(best, "Its largest part that is not training")
        return f"{text}.{_over_plain(best)}{said if loss else ''}"
    said = _loss(best, "Most of the loss")
    return f"{text}{_against(analysis, *found, _shared(analysis, found[0], case, best))}{_over_plain(best)}{said if loss else ''}"


def _case(analysis: Analysis, best: Best) -> Case | None:
    return next((cell.case for cell in analysis.cells if cell.cell == best.cell), None)


def _chosen(case: Case, best: Best) -> list[str]:
    """The settings that vary in the study and are not at their defaults here, in words."""
    values = [(name, getattr(case, name)) for name in best.settings]
    return [clip(wording.setting(name, value), 40) for name, value in values]


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _over_plain(best: Best) -> str:
    """How far that is from the default settings, where these were measured."""
    ratio = best.over_plain
    if ratio is None:
        return ""
    sure = "(one launch)" if ratio.low is None else wording.change_bounds(ratio)
    return f" These settings give {format_change(ratio.value)} {sure} over the default ones."


def _shared(analysis: Analysis, curve: Curve, case: Case, best: Best) -> bool:
    """Has the base all the settings that are named? (A hook or SyncBN it cannot have.)"""
    base = next((cell.case for cell in analysis.cells if cell.cell == curve.base_cell), None)
    named = bool(best.settings) and base is not None
    return named and all(getattr(base, name) == getattr(case, name) for name in best.settings)


def _against(analysis: Analysis, curve: Curve, point: Point, same: bool) -> str:
    """What that is against the base, in words; `same`: settings were named that the base has too."""
    base = f"base: {clip(curve.base, 60)}, {number(curve.base_samples_per_s)} samples/s"
    if point.cell == curve.base_cell:
        return "."
    if point.devices == curve.base_devices:
        return f", {_efficiency(point)} of its base ({base})."
    alone = _alone(analysis, curve) + (" with the same" if same else "")
    return f", {point.speedup.value:.3g} times {alone}: {_efficiency(point)} of ideal ({base})."


def _alone(analysis: Analysis, curve: Curve) -> str:
    """`one rank`; and of which strategy, where the best of all is another one of as many devices."""
    one = analysis.device_kind.split()[-1] if analysis.device_kind else "device"
    text = f"one {one}" if curve.base_devices == 1 else plural(curve.base_devices, one)
    best = _case(analysis, analysis.best) if analysis.best else None
    base = next((cell.case for cell in analysis.cells if cell.cell == curve.base_cell), None)
    if base is None or best is None or best.devices != base.devices or best.strategy == base.strategy:
        return text
    return f"{text} {UNDER.get(base.strategy, f'under {clip(base.strategy, 40)}')}"


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
    scaled = analysis.more or best
    case = _case(analysis, scaled)
    of = f" on {plural(case.devices, 'device')}" if analysis.more and case else ""
    found = _place(analysis, scaled)
    if scaled.efficiency and found:
        limits = wording.share_bounds(scaled.efficiency)
        value = share(scaled.efficiency.value, wording.share_decimals(scaled.efficiency))
        base = f"base: {clip(found[0].base, 60)}, {number(found[0].base_samples_per_s)} samples/s"
        tiles.append(Tile(f"Efficiency{of}", value, f"{limits} · {base}", "#efficiency"))
    if scaled.loss:
        detail = f"{share(scaled.loss.share)} of a step: {clip(scaled.loss.label, 80)}"
        tiles.append(Tile(f"Main loss{of}", duration(scaled.loss.seconds), detail, "#phases"))
    return tiles + _settings_tile(analysis, best)


def _settings_tile(analysis: Analysis, best: Best) -> list[Tile]:
    """The settings that won, and what they give over the default ones."""
    case = _case(analysis, best)
    chosen = _chosen(case, best) if case else []
    if not chosen:
        return []
    if best.over_plain is None:
        return [Tile("Settings", _listed(chosen), "the default ones were not measured with it", "#settings")]
    sure = "one launch" if best.over_plain.low is None else f"{wording.change_bounds(best.over_plain)} %"
    detail = f"{_listed(chosen)}, over the default settings; {sure}"
    return [Tile("Settings", format_change(best.over_plain.value), detail, "#settings")]


def _certainty(best: Best) -> str:
    interval = best.samples_per_s
    launches = "one launch: no interval" if interval.n == 1 else plural(interval.n, "launch", "launches")
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
