"""How far the numbers can be trusted: width of intervals, drift, several modes."""

from collections.abc import Iterator

from bench import stats
from bench.checks.seen import Known, Seen
from bench.describe import describe
from bench.measures import format_value
from bench.summary import BUSY
from bench.watch_checks import SUITE


def not_converged(known: Known) -> Iterator[Seen]:
    """Cells whose interval is wider than asked."""
    wide = [cell for cell in known.evidence.measured if cell.converged is False]
    if not wide:
        return
    widths = {cell.id: (cell.samples_per_s.half_width or 0.0) if cell.samples_per_s else 0.0 for cell in wide}
    most = max(wide, key=lambda cell: widths[cell.id])
    text = (
        f"not converged: {len(wide)} of {len(known.evidence.measured)} cells; the widest is "
        f"±{widths[most.id] * 100:.2f} % after {len(most.shown)} launches, the target ±{most.target * 100:g} %"
    )
    yield Seen(text, tuple(cell.id for cell in wide))


def unsteady(known: Known) -> Iterator[Seen]:
    """Launches that still drifted when they ended."""
    cells = {
        cell.id: sum(row.steady == "unsteady" for row in cell.launches)
        for cell in known.evidence.cells.values()
    }
    drifting = [cell for cell, count in cells.items() if count]
    if drifting:
        yield Seen(f"unsteady: {sum(cells.values())} launches still drifted when they ended", tuple(drifting))


def steady_assumed(known: Known) -> Iterator[Seen]:
    """Too few steps to see where warm-up ends."""
    cells = tuple(
        cell.id for cell in known.evidence.measured if any(row.steady == "assumed" for row in cell.shown)
    )
    if cells:
        yield Seen("steady state assumed: too few steps to see where warm-up ends", cells)


def two_modes(known: Known) -> Iterator[Seen]:
    """Launches of one cell that fall in two groups."""
    for cell in known.evidence.measured:
        if stats.bimodal([row.y for row in cell.shown]):
            ends = [format_value("samples_per_s", value) for value in (min(cell.rates), max(cell.rates))]
            text = f"launches fall in two groups, {ends[0]} to {ends[1]}: its interval is too narrow"
            yield Seen(f"{describe(cell.case)}: {text}", (cell.id,))


def busy_host(known: Known) -> Iterator[Seen]:
    """Launches beside which other processes took CPUs."""
    found = [
        (cell.id, mark) for cell in known.evidence.measured for mark in cell.marks if mark.startswith(BUSY)
    ]
    if found:
        yield Seen(
            f"{found[0][1]} (and {len(found) - 1} more)" if len(found) > 1 else found[0][1],
            tuple({c for c, _ in found}),
        )


def quick_study(known: Known) -> Iterator[Seen]:
    """One launch a cell decides nothing."""
    watched = [header.suites == (SUITE,) for header in known.evidence.headers if header.quick]
    if watched and all(watched):
        text = "watched, not run: one launch, so no interval and no verdict"
        yield Seen(text, remedy="for intervals, a base and settings side by side, move the loop to a factory")
    elif watched:
        yield Seen("quick study: one launch a cell, so no intervals and no verdicts")
