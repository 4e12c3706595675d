"""How far the numbers can be trusted: width of intervals, drift, several modes."""

from collections.abc import Iterator
from typing import Any

from bench import frame
from bench.checks.seen import Known, Seen, count, worst
from bench.contamination import BUSY, told
from bench.describe import describe
from bench.evidence import Cell, Evidence
from bench.measures import format_bounds, format_change, format_value
from bench.spread import instrumentation
from bench.stats import CLAIMS
from bench.watch_checks import SUITE

MUCH_INSTRUMENTATION = 0.01  # of a step

TOLD_ELSEWHERE = ("busy host", "foreign process", "throttled")  # causes with a finding of their own


def not_converged(known: Known) -> Iterator[Seen]:
    """Cells whose interval is wider than asked, and those that have too few launches for it to be told."""
    measured = known.evidence.measured
    few = [cell for cell in measured if len(cell.shown) < cell.min_launches]
    if few:
        least = min(few, key=lambda cell: len(cell.shown))
        text = (
            f"too few launches: {len(few)} of {len(measured)} cells; the fewest are {len(least.shown)}, where"
            f" {least.min_launches} were asked for"
        )
        yield Seen(text, tuple(cell.id for cell in few))
    wide = [cell for cell in measured if cell.converged is False and len(cell.shown) >= cell.min_launches]
    if not wide:
        return
    widths = {cell.id: (cell.samples_per_s.half_width or 0.0) if cell.samples_per_s else 0.0 for cell in wide}
    most = max(wide, key=lambda cell: widths[cell.id])
    text = (
        f"not converged: {len(wide)} of {len(measured)} cells; the widest is "
        f"{_width(most)} after {len(most.shown)} launches, the target ±{most.target * 100:g} %"
    )
    yield Seen(text, tuple(sorted(widths, key=lambda cell: -widths[cell])))


def _width(cell: Cell) -> str:
    """±1.23 %; the interval itself where that would reach below zero."""
    interval = cell.samples_per_s
    half = interval.half_width if interval else None
    if interval is None or half is None or half < 1:
        return f"±{(half or 0.0) * 100:.2f} %"
    return format_bounds("samples_per_s", interval.low, interval.high, interval.n)


def hiccups(known: Known) -> Iterator[Seen]:
    """Windows whose mean is that of few long steps: no step is dropped, but the mean describes none of them."""
    found = []
    for cell in known.evidence.measured:
        for row in cell.hiccups:
            mean, middle = (format_value("step_s", value) for value in (row.step_s, row.p50_s))
            text = (
                f"hiccups: {_long_steps(known.evidence, row)}; the mean step is {mean}, the median {middle}"
            )
            found.append(Seen(f"{text} ({describe(cell.case)})", (cell.id,), {}, row.step_s / row.p50_s))
    yield from worst(found)


def _long_steps(evidence: Evidence, row: Any) -> str:
    """`4 steps of up to 877 ms make 63.0 % of a window of 60`, from the steps where they were kept."""
    store = evidence.stores.get(row.study)
    steps = frame.steps(store, row.launch) if store else None
    if steps is None or steps.empty:
        return f"1 % of the steps take {format_value('p99_s', row.p99_s)} or more"
    slowest = steps[steps["in_window"]].groupby("step")["step_s"].max()
    long = slowest[slowest > 2 * row.p50_s]
    share = format_value("efficiency", long.sum() / slowest.sum())
    verb = "makes" if len(long) == 1 else "make"
    most = format_value("step_s", float(long.max()))
    return f"{count(len(long), 'step')} of up to {most} {verb} {share} of a window of {len(slowest)} steps"


def unsteady(known: Known) -> Iterator[Seen]:
    """Launches that still drifted when they ended."""
    cells = {
        cell.id: sum(row.steady == "unsteady" for row in cell.launches)
        for cell in known.evidence.cells.values()
    }
    drifting = [cell for cell, number in cells.items() if number]
    if drifting:
        launches = count(sum(cells.values()), "launch", "launches")
        yield Seen(f"unsteady: {launches} still drifted at the end", tuple(drifting))


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
        if cell.two_modes:
            ends = [format_value("samples_per_s", value) for value in (min(cell.rates), max(cell.rates))]
            text = f"launches fall in two groups, {ends[0]} to {ends[1]}: its interval is too narrow"
            yield Seen(f"{describe(cell.case)}: {text}", (cell.id,))


def aa_differs(known: Known) -> Iterator[Seen]:
    """The same cell twice, and a difference was found: something else than the cells decides here."""
    if known.off:
        cells = tuple(
            cell for pair in known.twins if pair.verdict in CLAIMS for cell in (pair.cell, pair.twin)
        )
        yield Seen(f"{known.off}: verdicts are off", cells)


def study_drifts(known: Known) -> Iterator[Seen]:
    """Throughput that rose or fell from the first block to the last, by more than its interval explains."""
    for drift in known.drifts:
        if drift.real:
            limits = (
                f"[{(drift.change.low or 0) * 100 - 100:+.1f}, {(drift.change.high or 0) * 100 - 100:+.1f}]"
            )
            change = f"{format_change(drift.change.value)} {limits}"
            where = f"{drift.study}: " if len(known.drifts) > 1 else ""
            yield Seen(
                f"{where}throughput changed by {change} from the first of {drift.blocks} blocks to the last"
            )


def instrumentation_cost(known: Known) -> Iterator[Seen]:
    """Cells whose steps are so short that the marks of their phases are seen in them."""
    shares = {
        cell: share for cell, share in instrumentation(known.evidence).items() if share > MUCH_INSTRUMENTATION
    }
    if shares:
        most = max(shares, key=lambda cell: shares[cell])
        name = describe(known.evidence.cells[most].case)
        yield Seen(
            f"instrumentation takes {shares[most] * 100:.1f} % of a step ({name})",
            tuple(sorted(shares, key=lambda cell: -shares[cell])),
        )


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


def contaminated(known: Known) -> Iterator[Seen]:
    """Launches beside which something went on that has no finding of its own."""
    rows = [(cell.id, row) for cell in known.evidence.measured for row in cell.shown if row.contaminated]
    for name, words in told(row.contaminated for _, row in rows).items():
        if name not in TOLD_ELSEWHERE:
            cells = (
                cell for cell, row in rows if any(text.startswith(f"{name}:") for text in row.contaminated)
            )
            yield Seen(words, tuple(dict.fromkeys(cells)))


def quick_study(known: Known) -> Iterator[Seen]:
    """One launch a cell decides nothing."""
    watched = [header.suites == (SUITE,) for header in known.evidence.headers if header.quick]
    if watched and all(watched):
        text = "watched, not run: one launch, so no interval and no verdict"
        yield Seen(text, remedy="for intervals, a base and settings side by side, move the loop to a factory")
    elif watched:
        yield Seen("quick study: one launch a cell, so no intervals and no verdicts")
