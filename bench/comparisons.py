"""What one setting does: pairs of cells that differ in nothing else, and a word for each."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from bench import stats
from bench.answers import Comparison, Verdict
from bench.case import DDP_OPTIONS, Case, canonical
from bench.curves import threads_differ
from bench.describe import describe, level
from bench.evidence import Cell, Evidence, other_times, relative, studies
from bench.link import parse as parse_link
from bench.measures import format_change

FACTORS = (
    *("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "non_blocking", "page_cache"),
    *("sync_bn", "strategy", "nodes", "link", "backend", "threads", "cpu_binding"),
    *("precision", "channels_last", "compile", "optimizer", "fused", "grad_accumulation", *DDP_OPTIONS),
)
ORDERS = {
    "strategy": ("single", "dp", "ddp", "zero1", "fsdp"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
}
NO_TRANSFER = "reference implementation on CPU: does not transfer to torch's own"
_DEFAULT = Case()


@dataclass(frozen=True)
class Pair:
    """Cells `a` (the reference level) and `b`, which differ in `factor` only."""

    factor: str
    a: Cell
    b: Cell
    estimate: stats.Estimate
    refusal: str | None


@dataclass(frozen=True)
class Family:
    """How a pair stands among the comparisons that are judged together."""

    size: int = 0
    adjusted: float | None = None  # its p-value, adjusted (Benjamini-Hochberg); None where it is not judged
    delta: float = stats.DELTA
    off: str | None = None  # why no verdict holds

    @property
    def significant(self) -> bool:
        """May a difference be claimed?"""
        return self.adjusted is not None and self.adjusted <= 1 - stats.LEVEL


def comparisons(
    evidence: Evidence, delta: float = stats.DELTA, off: str | None = None
) -> tuple[Comparison, ...]:
    """Every pair with its ratio and verdict; the study's pairs are one family (Benjamini-Hochberg, q = 0.05).

    With `off`, the reason why nothing can be believed (an A/A pair differs), every word is `inconclusive`.
    """
    pairs = list(_pairs(evidence))
    judged = [pair for pair in pairs if pair.refusal is None and pair.estimate.n >= stats.DECIDABLE]
    adjusted = stats.benjamini_hochberg_adjusted([pair.estimate.p_value or 0.0 for pair in judged])
    known = dict(zip(map(id, judged), adjusted.tolist(), strict=True))
    return tuple(
        _comparison(evidence, pair, Family(len(judged), known.get(id(pair)), delta, off)) for pair in pairs
    )


def _pairs(evidence: Evidence) -> Iterator[Pair]:
    for factor in FACTORS:
        groups: dict[bytes, dict[object, Cell]] = {}
        for cell in evidence.measured:
            levels = groups.setdefault(_rest(cell.case, factor), {})
            value = _value(cell.case, factor)
            if value not in levels or len(levels[value].shown) < len(cell.shown):
                levels[value] = cell
        for levels in groups.values():
            for a, b in _chosen(factor, levels):
                yield Pair(factor, a, b, relative(a, b), _refusal(evidence, factor, a, b))


def _chosen(factor: str, levels: dict[object, Cell]) -> Iterator[tuple[Cell, Cell]]:
    """The reference level against each other one; for num_workers also the best against the rest, and DDP against
    what splits its state over the ranks."""
    order = sorted(levels, key=lambda value: _rank(factor, value))
    reference = levels[order[0]]
    yield from ((reference, levels[value]) for value in order[1:])
    if factor == "strategy" and "ddp" in order[1:]:
        yield from ((levels["ddp"], levels[value]) for value in order[order.index("ddp") + 1 :])
    if factor == "num_workers" and len(order) > 2:
        best = max(order, key=lambda value: _log(levels[value]))
        yield from (
            (levels[best], levels[value]) for value in order[1:] if value != best and best != order[0]
        )


def plainest(factor: str, values: Iterable[object]) -> object:
    """The default where it is among the levels, else the one that the others are compared with."""
    levels, default = list(values), getattr(_DEFAULT, factor)
    return default if default in levels else min(levels, key=lambda value: _rank(factor, value))


def _rank(factor: str, value: object) -> tuple[int, str, float]:
    """None first, then off before on, small before large; strategies and precisions from plain to special."""
    if factor == "nodes":
        return 1, "", float(str(value).partition(" ")[0])
    if factor == "link" and value is not None:
        return 1, "", parse_link(str(value)).rate_bits_per_s
    order = ORDERS.get(factor, ())
    if order and value is not None:
        known = order.index(str(value)) if value in order else len(order)
        return 1 + known, str(value), 0.0
    if isinstance(value, int | float):
        return 1, "", float(value)
    return (0, "", 0.0) if value is None else (1, str(value), 0.0)


def _rest(case: Case, factor: str) -> bytes:
    """Equal for cells that differ in this factor only; the length of the run does not count."""
    neutral = {"steps": _DEFAULT.steps, "timeout_s": _DEFAULT.timeout_s, factor: getattr(_DEFAULT, factor)}
    if factor == "nodes":  # as many devices, packed on one node or spread over several
        neutral |= {"ranks": case.devices, "link": None}
    return canonical(msgspec.structs.replace(case, **neutral))


def _value(case: Case, factor: str) -> object:
    """A level of a factor; of `nodes` it is how the devices are spread over them."""
    if factor != "nodes":
        return getattr(case, factor)
    link = "" if case.link is None else f", link {case.link}"
    return f"{case.nodes} node{'s' * (case.nodes > 1)} of {case.ranks}{link}"


def _spread(case: Case) -> str:
    """The context of packed against spread: `ddp on 4 ranks in all, ...`."""
    whole = msgspec.structs.replace(case, ranks=case.devices, nodes=1, link=None)
    return describe(whole)


def _log(cell: Cell) -> float:
    return math.fsum(row.y for row in cell.shown) / len(cell.shown)


def _refusal(evidence: Evidence, factor: str, a: Cell, b: Cell) -> str | None:
    """Why the two sides cannot be compared, or None."""
    if factor == "pin_memory" and not any(evidence.said(b.id, "pinned")):
        cause = "no accelerator" if _on_cpu(evidence, b) else "no batch was pinned"
        return f"pin_memory has no effect: {cause}"
    for cell in (a, b):
        if cell.doubt:
            return f"{level(_value(cell.case, factor))}: {cell.doubt}"
    if a.reference != b.reference:
        return NO_TRANSFER
    threads = threads_differ(evidence, a, b)
    if factor != "threads" and threads:
        return threads
    prints = [{row.fingerprint for row in cell.shown} for cell in (a, b)]
    return None if prints[0] == prints[1] else "host or software differs between the two sides"


def _on_cpu(evidence: Evidence, cell: Cell) -> bool:
    return set(evidence.said(cell.id, "device")) <= {"cpu"}


def _comparison(evidence: Evidence, pair: Pair, family: Family) -> Comparison:
    a, b, estimate = pair.a, pair.b, pair.estimate
    word = _word(pair, family)
    undecided = word == "inconclusive" and family.off is None
    assert a.samples_per_s is not None
    assert b.samples_per_s is not None
    return Comparison(
        factor=pair.factor,
        a=level(_value(a.case, pair.factor)),
        b=level(_value(b.case, pair.factor)),
        a_cell=a.id,
        b_cell=b.id,
        context=describe(a.case, {pair.factor}) if pair.factor != "nodes" else _spread(a.case),
        a_samples_per_s=a.samples_per_s.value,
        b_samples_per_s=b.samples_per_s.value,
        ratio=estimate.interval(),
        verdict=word,
        smallest_visible=stats.smallest_visible(estimate),
        launches_to_decide=stats.still_to_decide(estimate, family.delta) if undecided else None,
        note="; ".join(_notes(evidence, pair, family)) or None,
        p_value=estimate.p_value,
        p_adjusted=family.adjusted,
        family=family.size,
    )


def _word(pair: Pair, family: Family) -> Verdict:
    if pair.refusal:
        return "not comparable"
    if family.off or _apart(pair):
        return "inconclusive"
    return stats.verdict(pair.estimate, family.delta, family.significant)


def _apart(pair: Pair) -> bool:
    """Do the two sides come from different studies? Then what differs between these is in the ratio."""
    return not studies(pair.a) & studies(pair.b)


def _notes(evidence: Evidence, pair: Pair, family: Family) -> Iterator[str]:
    estimate = pair.estimate
    if pair.refusal:
        yield pair.refusal
    elif family.off:
        yield family.off
    elif unpaired := other_times(pair.a, pair.b, estimate):
        yield unpaired
    elif estimate.n < stats.DECIDABLE:
        yield f"{ {1: 'one launch', 2: 'two launches'}[estimate.n] }: no verdict"
    elif _apart(pair):
        yield "from different studies: what differs between these is in the ratio"
    elif not family.significant and stats.verdict(estimate, family.delta) in stats.CLAIMS:
        yield f"not significant among {family.size} comparisons (Benjamini-Hochberg)"
    modes = [level(_value(cell.case, pair.factor)) for cell in (pair.a, pair.b) if cell.two_modes]
    if modes:
        yield f"doubtful: the launches of {' and of '.join(modes)} fall in two groups"
    hiccups = [level(_value(cell.case, pair.factor)) for cell in (pair.a, pair.b) if cell.hiccups]
    if hiccups:
        yield f"doubtful: few steps dominate the window of {' and of '.join(hiccups)}"
    if pair.a.reference and pair.b.reference:
        yield NO_TRANSFER
    if pair.factor == "sync_bn":
        layers = max(evidence.said(pair.b.id, "sync_bn_layers"), default=None)
        change = format_change(stats.exp(-estimate.mean))
        yield f"{change} step time" + ("" if layers is None else f", {layers:.0f} SyncBN layers")
