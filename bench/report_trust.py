"""The report's section on trust: the same cell twice, where numbers vary, what drifts, what measuring costs."""

from collections.abc import Callable, Sequence

from bench import wording
from bench.answers import Analysis, CellResult, Drift, Interval, Spread, Twin
from bench.measures import format_change
from bench.plugins import Row, clip
from bench.tables import MOST_ROWS, Column, Entry, Spec, Table, amount, build, limits, number_column, word

CORRECTION = "Benjamini-Hochberg, q = 0.05"
HEADINGS = {
    "step": ("between steps", "of the steps of one launch"),
    "within": ("of a launch's mean", "what its own steps make a launch's mean vary, autocorrelation counted"),
    "launches": ("between launches", "beyond what their own steps explain; from 3 launches on"),
    "allocations": ("between allocations", "beyond what launches explain; from 2 studies on"),
}


def tables(analysis: Analysis, labels: dict[str, str]) -> list[Table]:
    """A/A pairs where there are any, and the spread of every cell that has numbers."""
    return [table for table in (_twins(analysis, labels), _spreads(analysis, labels)) if table.lines]


def facts(analysis: Analysis, labels: dict[str, str]) -> list[tuple[str, str]]:
    """Names and sentences: A/A, drift over the study, what the instrumentation costs, how verdicts are corrected."""
    return [
        ("The same cell twice", _twins_said(analysis.twins)),
        ("Drift over the study", _drift_said(analysis.drifts)),
        ("Cost of the instrumentation", _instrumentation_said(analysis.cells, labels)),
        ("Many comparisons", _family_said(analysis)),
    ]


def files(analysis: Analysis) -> dict[str, list[Row]]:
    """spread.csv has a row a cell, aa.csv a row an A/A pair, drift.csv a row a study."""
    return {
        "spread.csv": [_spread_row(cell, cell.spread) for cell in analysis.cells if cell.spread],
        "aa.csv": [_twin_row(pair) for pair in analysis.twins],
        "drift.csv": [_drift_row(drift) for drift in analysis.drifts],
    }


def _twins(analysis: Analysis, labels: dict[str, str]) -> Table:
    spec: Spec[Twin] = [
        (Column("cell"), lambda t: word(labels.get(t.cell, t.cell))),
        (number_column("second over first"), lambda t: amount(t.ratio.value, format_change(t.ratio.value))),
        (number_column("95 % interval, %"), lambda t: limits(t.ratio, wording.change_bounds)),
        (Column("verdict"), lambda t: Entry(t.verdict, tone=t.verdict.replace(" ", "-"))),
        (
            number_column("p", "adjusted by Holm's method"),
            lambda t: amount(t.p_adjusted, wording.p_value(t.p_adjusted)),
        ),
        (
            number_column("smallest visible", "the smallest change that this many launches could have shown"),
            lambda t: amount(t.smallest_visible, wording.share(t.smallest_visible, 1)),
        ),
        (number_column("n", "blocks that hold both"), lambda t: amount(t.ratio.n, f"{t.ratio.n}")),
        (Column("note"), lambda t: word(t.note) if t.note else Entry("")),
    ]
    return build("The same cell twice (A/A)", analysis.twins, spec, "aa.csv")


def _spreads(analysis: Analysis, labels: dict[str, str]) -> Table:
    def level(name: str) -> tuple[Column, Callable[[CellResult], Entry]]:
        return number_column(*HEADINGS[name]), lambda cell: _percent(getattr(cell.spread, name))

    def count(title: str, hint: str, field: str) -> tuple[Column, Callable[[CellResult], Entry]]:
        return number_column(title, hint), lambda cell: amount(
            getattr(cell.spread, field), f"{getattr(cell.spread, field)}"
        )

    spec: Spec[CellResult] = [
        (Column("cell"), lambda cell: word(labels.get(cell.cell, cell.cell))),
        *map(level, HEADINGS),
        count("launches", "", "launch_count"),
        count("allocations", "studies given together", "allocation_count"),
        (
            number_column(
                "instrumentation", "share of a step that its marks take, on the rank that pays most"
            ),
            lambda cell: _small(cell.instrumentation),
        ),
    ]
    found = [cell for cell in analysis.cells if cell.spread]
    note = "" if len(found) <= MOST_ROWS else f"First {MOST_ROWS} of {len(found):,} cells; the CSV has all."
    caption = "Where the numbers vary: standard deviations, of the value"
    return build(caption, found[:MOST_ROWS], spec, "spread.csv", note)


def _percent(value: float | None) -> Entry:
    return amount(value, wording.share(value, 2))


def _small(value: float | None) -> Entry:
    """A share that is hardly anything: two significant figures."""
    return amount(value, None if value is None else f"{value * 100:.2g}\u00a0%")


def _twins_said(pairs: Sequence[Twin]) -> str:
    if not pairs:
        return "No A/A pair was run (--aa): that equal cells give equal numbers here is assumed."
    words = [pair.verdict for pair in pairs]
    counted = ", ".join(f"{words.count(one)} {one}" for one in dict.fromkeys(words))
    return f"{wording.plural(len(pairs), 'A/A pair')}: {counted}."


def _drift_said(drifts: Sequence[Drift]) -> str:
    if not drifts:
        return "Not known: it takes 5 blocks that share a cell."
    said = []
    for drift in drifts:
        change = f"{format_change(drift.change.value)} {wording.change_bounds(drift.change)}"
        name = f"{clip(drift.study, 60)}: " if len(drifts) > 1 else ""
        said.append(f"{name}{change} from the first of {drift.blocks} blocks to the last")
    return "; ".join(said) + "."


def _instrumentation_said(cells: Sequence[CellResult], labels: dict[str, str]) -> str:
    """The cell that pays most, in per cent and in time."""
    known = [cell for cell in cells if cell.instrumentation is not None]
    if not known:
        return "Not known: these launches did not time their marks."
    most = max(known, key=lambda cell: cell.instrumentation or 0.0)
    share = most.instrumentation or 0.0
    cost = f", {wording.duration(share * most.step_s)}" if most.step_s else ""
    name = labels.get(most.cell, clip(most.cell, 60))
    return (
        f"The time stamps and phase marks of a step take at most {share * 100:.2g}\u00a0% of it{cost} ({name}). "
        "Each rank timed its own marks after its window."
    )


def _family_said(analysis: Analysis) -> str:
    size = max((one.family for one in analysis.comparisons), default=0)
    if not size:
        return "No comparison could be judged."
    return (
        f"{wording.plural(size, 'comparison')} judged as one family: words that claim a difference are "
        f"corrected ({CORRECTION}); A/A pairs by Holm's method."
    )


def _spread_row(cell: CellResult, spread: Spread) -> Row:
    return {
        "cell": cell.cell,
        **{f"{name}_sd": getattr(spread, name) for name in HEADINGS},
        "launches": spread.launch_count,
        "allocations": spread.allocation_count,
        "instrumentation_share": cell.instrumentation,
    }


def _twin_row(pair: Twin) -> Row:
    return {
        "cell": pair.cell,
        "twin": pair.twin,
        **_ratio(pair.ratio),
        "pairs": pair.ratio.n,
        "verdict": pair.verdict,
        "p_adjusted": pair.p_adjusted,
        "smallest_visible": pair.smallest_visible,
        "note": pair.note,
    }


def _drift_row(drift: Drift) -> Row:
    return {"study": drift.study, "blocks": drift.blocks, **_ratio(drift.change), "real": drift.real}


def _ratio(interval: Interval) -> Row:
    return {"ratio": interval.value, "low_ratio": interval.low, "high_ratio": interval.high}
