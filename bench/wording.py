"""How the report writes numbers and names: one formatter for each thing, one text for what is missing."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from bench import measures
from bench.answers import CellResult, Interval
from bench.case import Case
from bench.describe import level
from bench.measures import MISSING
from bench.plugins import clip

STRATEGIES = {
    "single": "no wrapper",
    "ddp": "DDP",
    "dp": "DataParallel",
    "zero1": "ZeRO-1",
    "fsdp": "FSDP",
}
AGAIN = " · the same again"
NOT_SHOWN = {"strategy", "ranks", "nodes", "steps", "seed", "timeout_s"}


def number(value: float | None) -> str:
    """Three significant figures, an integer part in full."""
    return MISSING if value is None or not math.isfinite(value) else measures.number(value)


def tick(value: float) -> str:
    """A round number at an axis."""
    return f"{value:,.10g}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, without the unit."""
    return number(None if seconds is None else seconds * 1e3)


def duration(seconds: float | None) -> str:
    """A duration with the unit that suits it."""
    return MISSING if seconds is None else measures.duration(seconds)


def size(count: float | None) -> str:
    """Bytes as MiB or GiB."""
    return MISSING if count is None else measures.size(count)


def share(value: float | None, decimals: int = 0) -> str:
    """A fraction in per cent."""
    return MISSING if value is None else f"{value * 100:.{decimals}f}\u00a0%"


def p_value(value: float | None) -> str:
    """A probability to three decimals, a small one as a bound."""
    return MISSING if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def plus_minus(interval: Interval | None) -> str:
    """The half-width of an interval, relative to its value: ±1.8 %; its limits where that would reach below zero."""
    if interval is None:
        return MISSING
    half = interval.half_width
    if half is None:
        return _no_limits(interval)
    if half >= 1:
        return bounds(interval)
    return f"±{half * 100:.{0 if half >= 0.0995 else 1}f}\u00a0%"


def bounds(interval: Interval | None) -> str:
    """The limits of an interval as numbers: [40.1, 42.3]."""
    return _limits(interval, number)


def share_bounds(interval: Interval | None) -> str:
    """The limits of a fraction in per cent: [79, 83]."""
    return _limits(interval, lambda end: f"{end * 100:.{share_decimals(interval)}f}")


def change_bounds(interval: Interval | None) -> str:
    """The limits of a ratio as changes in per cent: [+1.2, +5.6]."""
    return _limits(interval, lambda end: f"{(end - 1) * 100:+.1f}")


def share_decimals(interval: Interval | None) -> int:
    """Decimals that a fraction deserves: one where its interval is at most 2 points wide."""
    if interval is None or interval.low is None or interval.high is None:
        return 0
    return 1 if 0 < interval.high - interval.low <= 0.02 else 0


def _limits(interval: Interval | None, show: Callable[[float], str]) -> str:
    if interval is None:
        return MISSING
    if interval.low is None or interval.high is None:
        return _no_limits(interval)
    return f"[{show(interval.low)}, {show(interval.high)}]"


def _no_limits(interval: Interval) -> str:
    return f"{MISSING} (n = {interval.n})"


def moment(text: str) -> str:
    """A time stamp to the minute, as people write it; what is no time stamp stays."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return clip(text, 40)
    return f"{when:%Y-%m-%d %H:%M}" + (" UTC" if when.utcoffset() == timedelta(0) else f" {when:%z}".rstrip())


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: 1 launch, 5 launches."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def launches(cell: CellResult) -> str:
    """`5`, `4 of 5` where one is not in the numbers, `5 (+1 replaced)` where another counts in a contaminated one's place."""
    used = cell.samples_per_s.n if cell.samples_per_s else cell.launches
    count = f"{cell.launches}" if used == cell.launches else f"{used} of {cell.launches}"
    return count + f" (+{cell.replaced} replaced)" * bool(cell.replaced)


def cell_labels(cells: Sequence[CellResult]) -> dict[str, str]:
    """A short name for every cell: strategy, devices, and whatever else differs within the study.

    Cells that would share a name get the end of their id as well; one that repeats another is "the same again".
    """
    varying = {field for field in Case.__struct_fields__ if _differs(cells, field)} - NOT_SHOWN
    names = {cell.cell: label(cell.case, varying) + AGAIN * bool(cell.twin_of) for cell in cells}
    seen = Counter(names.values())
    return {cell: name if seen[name] == 1 else f"{name} · {clip(cell[-6:])}" for cell, name in names.items()}


def label(case: Case, varying: Iterable[str]) -> str:
    """`DDP × 2 · photos · 4 workers`: the fields named in `varying` follow strategy and devices."""
    head = f"{STRATEGIES.get(case.strategy, case.strategy)} × {case.devices}"
    if case.nodes > 1:
        head += f" ({case.nodes} nodes)"
    tail = [
        _setting(field, getattr(case, field)) for field in Case.__struct_fields__ if field in set(varying)
    ]
    return clip(" · ".join([head, *filter(None, tail)]), 60)


def _differs(cells: Sequence[CellResult], field: str) -> bool:
    return len({repr(getattr(cell.case, field)) for cell in cells}) > 1


def setting(field: str, value: Any) -> str:
    """A setting in few words that are never empty: `bf16`, `fused`, `2 workers`, `persistent_workers off`."""
    return _setting(field, value) or f"{field} {level(value)}"


def _setting(field: str, value: Any) -> str:
    match field, value:
        case ("pin_memory", True):
            return "pinned"
        case ("sync_bn", True):
            return "SyncBN"
        case ("num_workers", _):
            return plural(value, "worker")
        case ("batch", _):
            return f"batch {value}"
        case ("threads", int()):
            return plural(value, "thread")
        case ("broadcast_buffers", _):
            return "" if value else "buffers not sent"
        case ("model" | "data" | "scaling", _) | ("precision", str()):
            return str(value)
        case (_, None | False):
            return ""
        case (_, dict()):
            return " ".join(f"{key}={part}" for key, part in value.items())
    return f"{field.replace('_', ' ')} {value}".removesuffix(" True")


def without_common(texts: Sequence[str]) -> tuple[list[str], str]:
    """Lists in words ("ddp, batch 16, photos"), each less what all of them say, and what that is.

    A single text, or equal ones, stay whole; one of which nothing is left is the "default" of the others.
    """
    parts = [text.split(", ") for text in texts]
    if len(set(texts)) < 2:
        return list(texts), ""
    common = [part for part in parts[0] if all(part in other for other in parts)]
    short = [", ".join(part for part in one if part not in common) or "default" for one in parts]
    return short, ", ".join(common)
