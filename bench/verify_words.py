"""What `verify` found, in words: for the end of a check, for findings and for the report."""

from bench.verify_records import CHECKS, Check, Outcome, Verification, Way

GOOD = ("pass", "known", "not applicable")


def worst_check(way: Way, outcome: Outcome) -> Check | None:
    """The first of a way's checks with this outcome, in the order in which they are shown."""
    found = [check for check in way.checks if check.outcome == outcome]
    return min(found, key=lambda check: CHECKS.index(check.name), default=None)


def summed_up(found: Verification) -> list[str]:
    """A line in all for the ways that are good, and one for each way that failed or cannot be told."""
    good = [way for way in found.ways if way.outcome in GOOD]
    lines = [_line(way) for way in found.ways if way not in good]
    if not good:
        return lines
    before = sorted({way.before for way in good if way.before})
    when = f"; checked before, {before[0]}" if before and all(way.before for way in good) else ""
    verb = "computes" if len(good) == 1 else "compute"
    text = f"verified: {len(good)} way{'s' * (len(good) > 1)} of training {verb} what one process does"
    return [f"{text} ({found.steps} steps, float64, precision and torch.compile aside{when})", *lines]


def _line(way: Way) -> str:
    """A way that is not good: its first failure, or why nothing can be told."""
    failed = worst_check(way, "fail")
    if failed is not None:
        count = len(way.failures) - 1
        more = f", and {count} more check{'s' * (count > 1)}" if count else ""
        return f"NOT THE SAME: {way.name}: {failed.name}: {failed.detail}{more}; its cells are not compared"
    untold = worst_check(way, "cannot tell")
    return f"cannot tell: {way.name}: {way.reason or (untold.detail if untold else '')}"
