"""A/A pairs: the same cell twice in every block. Where such a pair differs, no other difference can be believed."""

from collections.abc import Iterable

from bench import stats
from bench.answers import Twin
from bench.describe import describe
from bench.evidence import Cell, Evidence, other_times, relative
from bench.measures import format_change


def twins(evidence: Evidence, delta: float = stats.DELTA) -> tuple[Twin, ...]:
    """Every A/A pair with its ratio and word. They are a gate: Holm over the pairs that can be judged."""
    pairs = [(first, again, relative(first, again)) for first, again in evidence.twins]
    judged = [estimate for first, again, estimate in pairs if _judged(first, again, estimate)]
    adjusted = stats.holm_adjusted([estimate.p_value or 0.0 for estimate in judged])
    known = dict(zip(map(id, judged), adjusted.tolist(), strict=True))
    return tuple(_twin(*pair, known.get(id(pair[2])), delta) for pair in pairs)


def _judged(first: Cell, again: Cell, estimate: stats.Estimate) -> bool:
    return not first.doubt and not again.doubt and estimate.n >= stats.DECIDABLE


def _twin(first: Cell, again: Cell, estimate: stats.Estimate, adjusted: float | None, delta: float) -> Twin:
    doubt = first.doubt or again.doubt
    significant = adjusted is not None and adjusted <= 1 - stats.LEVEL
    word = stats.verdict(estimate, delta, significant)
    few = f"{estimate.n} launches a side: not judged" if estimate.n < stats.DECIDABLE else None
    wide = "too wide to show that they are the same" if word == "inconclusive" else None
    return Twin(
        cell=first.id,
        twin=again.id,
        ratio=estimate.interval(),
        verdict="not comparable" if doubt else word,
        smallest_visible=stats.smallest_visible(estimate),
        p_adjusted=adjusted,
        note=doubt or other_times(first, again, estimate) or few or wide,
    )


def differs(evidence: Evidence, pairs: Iterable[Twin]) -> str | None:
    """Why verdicts are off: `A/A pair differs: ...`, for the pair that differs most; None where none does.

    A pair differs where its 95 % interval excludes 0 and is not inside ±delta. One that is merely wider than
    ±delta does not: at 1 % spread and five launches more than half of all healthy studies would lose their verdicts.
    """
    bad = [pair for pair in pairs if pair.verdict in stats.CLAIMS]
    if not bad:
        return None
    worst = max(bad, key=lambda pair: abs(pair.ratio.value - 1))
    limits = ", ".join(
        f"{(end - 1) * 100:+.1f}" for end in (worst.ratio.low, worst.ratio.high) if end is not None
    )
    name = describe(evidence.cells[worst.cell].case)
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return (
        f"A/A pair differs: the same cell twice, {name}, {format_change(worst.ratio.value)} [{limits}]{more}"
    )
