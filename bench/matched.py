"""One cell on both sides: what of it may be compared, and the difference of its logarithms."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from bench import stats
from bench.compared import Allocation, Measured


@dataclass(frozen=True)
class Match:
    """One cell of both sides: the allocations that may be compared, and what came out."""

    cell: str
    base: list[Measured]
    new: list[Measured]
    doubt: str | None
    estimate: stats.Estimate | None
    paired: bool
    alone: int  # blocks that one side lacks
    left_out: tuple[str, ...] = ()  # allocations that do not count beside those that do, each with why


def match(base: Sequence[Allocation], new: Sequence[Allocation], cell: str, paired: bool) -> Match:
    """What may be compared of one cell. `paired`: block by block, and only what ran beside the other side."""
    ours, our_doubt = _usable(base, cell)
    theirs, their_doubt = _usable(new, cell)
    doubts = [f"base: {our_doubt}"] * bool(our_doubt) + [f"new: {their_doubt}"] * bool(their_doubt)
    alone = 0
    if paired and ours and theirs:
        common = ours[0].logs.keys() & theirs[0].logs.keys()
        alone = len(ours[0].logs.keys() | theirs[0].logs.keys()) - len(common)
        ours, theirs = [_only(ours[0], common)], [_only(theirs[0], common)]
    estimate = _estimate(ours, theirs, paired)
    left_out = (*_left_out("base", base, cell), *_left_out("new", new, cell))
    return Match(cell, ours, theirs, "; ".join(doubts) or None, estimate, paired, alone, left_out)


def _only(cell: Measured, blocks: Collection[int]) -> Measured:
    """What is compared of one side: what ran beside the other side."""
    return dataclasses.replace(cell, logs={block: cell.logs[block] for block in sorted(blocks)})


def _usable(side: Sequence[Allocation], cell: str) -> tuple[list[Measured], str | None]:
    """What may be compared of one side; where nothing may: what has numbers all the same, and why it may not."""
    given = [one.cells[cell] for one in side if cell in one.cells]
    good = [one for one in given if one.logs and one.doubt is None]
    return (good, None) if good else ([one for one in given if one.logs], given[0].doubt)


def _left_out(name: str, side: Sequence[Allocation], cell: str) -> Iterator[str]:
    """Allocations of a side that have good ones beside them and are none: a failure is said, and not passed over."""
    given = [(one.name, one.cells[cell]) for one in side if cell in one.cells]
    doubts = [(which, one.doubt or "no number") for which, one in given if one.doubt or not one.logs]
    if len(doubts) < len(given):
        yield from (f"{name}: {which} left out: {doubt}" for which, doubt in doubts)


def _estimate(base: Sequence[Measured], new: Sequence[Measured], paired: bool) -> stats.Estimate | None:
    """ln(new / base) over blocks that both sides have, or over the allocations' means; None without a number."""
    if not base or not new:
        return None
    if not paired:
        return stats.welch([one.mean for one in base], [one.mean for one in new])
    ours, theirs = base[0].logs, new[0].logs
    return stats.mean([theirs[block] - ours[block] for block in ours]) if ours else None
