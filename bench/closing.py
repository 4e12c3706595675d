"""When a cell has had its launches, and why: one rule for the study that runs and for the reader of its records."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from bench.failures import HOPELESS
from bench.stats import mean_interval

MAX_FAILURES = 2  # of one cell, in a row

Closed = Literal["converged", "cap", "failing"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`target` is the wanted half-width of a cell's interval, relative; the fewest that it is made of, the most that are run."""

    min_launches: int
    max_launches: int
    target: float


def half_width(logs: Sequence[float]) -> float | None:
    """Relative half-width of the 95 % interval of what these are logarithms of; None below two."""
    return mean_interval(logs).half_width if logs else None


def why_closed(
    logs: Sequence[float], outcomes: Iterable[tuple[str, str | None]], limits: Limits
) -> Closed | None:
    """Why no further launch of a cell is run, or None while it is open. Never by a p-value.

    `logs` are ln(samples/s) of the launches that its interval is made of, `outcomes` are status and reason of every
    launch that counts, in order: no cell has more tries than `max_launches`.
    """
    told = list(outcomes)
    failed = [reason for status, reason in told[-MAX_FAILURES:] if status != "ok"]
    if len(failed) == MAX_FAILURES or any(reason in HOPELESS for reason in failed):
        return "failing"
    half = half_width(logs) if len(logs) >= limits.min_launches else None
    if half is not None and half <= limits.target:
        return "converged"
    return "cap" if len(told) >= limits.max_launches else None


def summed_up(why: Iterable[Closed | None], limits: Limits, unit: str) -> str:
    """Why the cells of a study stopped, in one line: each open one for want of time."""
    words: dict[Closed | None, str] = {
        "converged": f"converged (±{limits.target * 100:g} %)",
        "cap": f"at the cap of {limits.max_launches} {unit}",
        "failing": "failing",
        None: "still open",
    }
    counts = Counter(why)
    return "cells: " + ", ".join(f"{counts[key]} {text}" for key, text in words.items() if counts[key])
