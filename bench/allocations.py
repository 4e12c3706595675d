"""Two sides judged cell by cell: is what is new slower?

The unit across studies is the allocation: machines and hours differ by more than launches of one allocation do, so
launches never stand for allocations. One allocation a side is shown and decides nothing; several a side are compared
by their means (Welch); both sides interleaved in one allocation are paired by block, which decides with the fewest
launches.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import compared, stats
from bench.answers import Interval, Verdict
from bench.compared import Allocation, Measured
from bench.differences import Difference, differences
from bench.errors import UsageError
from bench.matched import Match, match
from bench.outcome import Outcome, Row, exit_code


@dataclass(frozen=True)
class _Judging:
    """What a word is given by, besides the estimate."""

    refusal: str | None
    adjusted: float | None  # p-value, for the family; None where the cell is not judged
    delta: float
    family: int
    off: str | None

    @property
    def significant(self) -> bool:
        return self.adjusted is not None and self.adjusted <= 1 - stats.LEVEL


def decide(
    base: Sequence[Allocation],
    new: Sequence[Allocation],
    *,
    paired: bool,
    delta: float,
    gate: bool,
    allow: Collection[str] = (),
) -> Outcome:
    """Judge two sides. `paired`: one allocation a side, whose launches of one block ran side by side.

    `delta` is the margin (0.02), `gate` corrects for many cells by Holm, else by Benjamini-Hochberg, and
    `allow` names fields that may differ. Raises UsageError for an allocation that is on both sides, and for an
    unknown field.
    """
    _check_sides(base, new, paired)
    ours, theirs = _planned(base), _planned(new)
    common = [cell for cell in ours if cell in theirs and _due(base, new, cell)]
    found = differences(base, new, common, paired=paired, allow=allow)
    refusals = tuple(one for one in found if one.role == "refused")
    pairs = [match(base, new, cell, paired) for cell in common]
    refused = {pair.cell: _refusal(pair, refusals) for pair in pairs}
    judged = [pair for pair in pairs if refused[pair.cell] is None and _decidable(pair)]
    correct = stats.holm_adjusted if gate else stats.benjamini_hochberg_adjusted
    adjusted = correct([pair.estimate.p_value or 0.0 for pair in judged if pair.estimate]).tolist()
    known = dict(zip((pair.cell for pair in judged), adjusted, strict=True))
    off = next((f"{side.name}: {side.off}" for side in [*base, *new] if side.off), None)
    rows = tuple(
        _row(
            pair,
            ours[pair.cell].label,
            _Judging(refused[pair.cell], known.get(pair.cell), delta, len(judged), off),
        )
        for pair in pairs
    )
    return Outcome(
        method="blocks" if paired else "allocations",
        base=tuple(side.name for side in base),
        new=tuple(side.name for side in new),
        unit=base[0].unit,
        delta=delta,
        family="Holm" if gate else "Benjamini-Hochberg",
        rows=rows,
        only_base=_alone(ours, theirs),
        only_new=_alone(theirs, ours),
        refusals=refusals,
        differences=tuple(one for one in found if one.role != "refused"),
        exit_code=exit_code(rows),
        off=off,
        note=None if paired or min(len(base), len(new)) >= stats.DECIDABLE else _too_few(base, new),
        base_environment=base[0].environment,
        new_environment=new[0].environment,
        base_unreadable=sum(side.unreadable for side in base),
        new_unreadable=sum(side.unreadable for side in new),
    )


def _check_sides(base: Sequence[Allocation], new: Sequence[Allocation], paired: bool) -> None:
    places = [Path(side.name).resolve() for side in [*base, *new]]
    twice = [place for place in places if places.count(place) > 1]
    if twice:
        raise UsageError(f"{twice[0]}: stands there twice; an allocation counts once, on one side")
    for one, other in (pair for side in (base, new) for pair in itertools.combinations(side, 2)):
        if compared.same_launches(one, other):
            raise UsageError(
                f"{other.name}: holds launches of {one.name}, to the last digit; a copy is no allocation of its own"
            )
    if paired and (len(base), len(new)) != (1, 1):
        raise UsageError("pairs by block are made of one study a side; compare several without pairing")
    units = sorted({side.unit for side in [*base, *new]})
    if len(units) > 1:
        raise UsageError(
            f"the two sides measure different things ({' and '.join(units)}); compare like with like"
        )


def _planned(side: Sequence[Allocation]) -> dict[str, Measured]:
    """Every cell of a side, as the first allocation that has it knows it."""
    return {cell.cell: cell for one in reversed(side) for cell in one.cells.values()}


def _alone(side: Mapping[str, Measured], other: Mapping[str, Measured]) -> tuple[str, ...]:
    """The cells of one side that the other lacks, in words; with what differs from others that read the same."""
    by_label: dict[str, list[Measured]] = {}
    for one in {**side, **other}.values():
        by_label.setdefault(one.label, []).append(one)
    return tuple(_told(one, by_label[one.label]) for cell, one in side.items() if cell not in other)


def _told(one: Measured, namesakes: Sequence[Measured]) -> str:
    apart = (
        f"{name} {value}"
        for name, value in one.unsaid.items()
        if any(other.unsaid.get(name) != value for other in namesakes)
    )
    return ", ".join([one.label, *apart])


def _due(base: Sequence[Allocation], new: Sequence[Allocation], cell: str) -> bool:
    """Has a cell that both sides plan a row? Not where a side skips it and none has a number: nothing went wrong."""
    known = [[one.cells[cell] for one in side if cell in one.cells] for side in (base, new)]
    measured = any(one.logs for side in known for one in side)
    return measured or not any(all(one.skipped for one in side) for side in known)


def _decidable(pair: Match) -> bool:
    return pair.estimate is not None and pair.estimate.n >= stats.DECIDABLE


def _refusal(pair: Match, refusals: Sequence[Difference]) -> str | None:
    """Why this cell is not comparable, or None."""
    for one in refusals:
        if not one.cells or pair.cell in one.cells:
            return one.words
    return pair.doubt or (None if pair.estimate else "no block has both sides")


def _row(pair: Match, label: str, by: _Judging) -> Row:
    estimate, source = pair.estimate, compared.memory_source(pair.base, pair.new)
    told = None if by.refusal else estimate
    word = _word(estimate, by)
    return Row(
        cell=pair.cell,
        label=label,
        verdict=word,
        ratio=estimate.interval() if estimate else None,
        base_rate=_rate(pair.base),
        new_rate=_rate(pair.new),
        base_launches=sum(len(one.logs) for one in pair.base),
        new_launches=sum(len(one.logs) for one in pair.new),
        p_value=told.p_value if told else None,
        p_adjusted=by.adjusted,
        smallest_visible=stats.smallest_visible(told) if told else None,
        to_decide=stats.still_to_decide(told, by.delta)
        if told and word == "inconclusive" and not by.off
        else None,
        over_launches=_over_launches(pair),
        base_memory_bytes=compared.memory_bytes(pair.base, source),
        new_memory_bytes=compared.memory_bytes(pair.new, source),
        memory_source=source,
        base_marks=_marks(pair.base),
        new_marks=_marks(pair.new),
        note="; ".join(_notes(pair, by)) or None,
    )


def _word(estimate: stats.Estimate | None, by: _Judging) -> Verdict:
    if by.refusal or estimate is None:
        return "not comparable"
    return "inconclusive" if by.off else stats.verdict(estimate, by.delta, by.significant)


def _rate(side: Sequence[Measured]) -> float | None:
    """The geometric mean over allocations."""
    known = [one.mean for one in side if one.logs]
    return math.exp(math.fsum(known) / len(known)) if known else None


def _marks(side: Sequence[Measured]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(mark for one in side for mark in one.marks))


def _over_launches(pair: Match) -> Interval | None:
    """Of two allocations: the ratio with the interval that their launches alone would give."""
    if pair.paired or (len(pair.base), len(pair.new)) != (1, 1):
        return None
    return stats.welch(list(pair.base[0].logs.values()), list(pair.new[0].logs.values())).interval()


def _notes(pair: Match, by: _Judging) -> Iterator[str]:
    estimate = pair.estimate
    if by.refusal:
        yield by.refusal
    elif by.off:
        yield by.off
    elif estimate and estimate.n < stats.DECIDABLE:
        yield _few(estimate.n, pair.paired)
    elif estimate and not by.significant and stats.verdict(estimate, by.delta) in stats.CLAIMS:
        yield f"not significant among {by.family} cells"
    if pair.alone:
        yield f"{pair.alone} block{'s' * (pair.alone > 1)} left out: one side has no launch there"
    yield from pair.left_out
    yield from dict.fromkeys(note for one in [*pair.base, *pair.new] for note in one.notes)


def _few(n: int, paired: bool) -> str:
    thing = ("block" if paired else "allocation") + "s" * (n > 1)
    return f"{('one', 'two')[n - 1]} {thing}{'' if paired else ' a side'}: no verdict"


def _too_few(base: Sequence[Allocation], new: Sequence[Allocation]) -> str:
    fewest = "one allocation" if min(len(base), len(new)) == 1 else "two allocations"
    return (
        f"{fewest} on a side: what differs between allocations, machines and hours, is in every ratio, and nothing is"
        f" judged. What decides: {stats.DECIDABLE} or more allocations a side (compare A1,A2,A3 B1,B2,B3), or both sides"
        " in one allocation (scalemark ab)"
    )
