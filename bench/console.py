"""Tables and results as plain text: the same on a terminal, in a pipe and in a log."""

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.answers import Analysis, CellResult, Comparison, Finding, Interval, Twin
from bench.case import Case
from bench.describe import describe
from bench.measures import MISSING, format_change, format_value
from bench.plugins import clip
from bench.wording import cell_labels, change_bounds, launches, without_common

MOST_VERDICTS = 30
MOST_MARKS = 80  # characters: the report has all


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; those that hold numbers in every row stand to the right."""
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [
        bool(rows) and all(cell[:1].isdigit() or cell == MISSING for cell in column[1:]) for column in columns
    ]
    lines = [
        "  ".join(
            f"{cell:>{w}}" if r else f"{cell:<{w}}" for cell, w, r in zip(row, widths, right, strict=True)
        )
        for row in [headers, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def results(analysis: Analysis) -> str:
    """Every cell's result, then the findings with their remedies."""
    shown = [cell for cell in analysis.cells if cell.status != "skipped"]
    names = cell_labels(shown)
    heading, last = _last_column(analysis, shown)
    headers = ["cell", "status", "launches", "throughput", "interval", "step", heading]
    rows = [_row(names[cell.cell], cell, last[cell.cell]) for cell in shown]
    if any(cell.marks for cell in shown):
        headers.append("marks")
        rows = [
            [*row, clip(", ".join(cell.marks), MOST_MARKS)] for row, cell in zip(rows, shown, strict=True)
        ]
    cases = {cell.cell: cell.case for cell in analysis.cells}
    findings = [
        f"{f.level}: {f.message}{_where(f, cases, names)}\n    {f.remedy}{_log(f)}" for f in analysis.findings
    ]
    return "\n".join(["", table(headers, rows), "", *verdicts(analysis), *findings])


def verdicts(analysis: Analysis) -> list[str]:
    """The comparisons as a table, with what each could have shown; none of a quick study, which decides nothing."""
    if analysis.quick or not (analysis.comparisons or analysis.twins):
        return []
    headers = ["setting", "change", "95 % interval", "verdict", "n", "smallest visible", "launches to decide"]
    rows = [*_twin_rows(analysis), *_comparison_rows(analysis)]
    rest = len(rows) - MOST_VERDICTS
    more = [f"{rest} more are in the report"] if rest > 0 else []
    doubts = [f"verdicts are off: {analysis.off}"] if analysis.off else []
    return [table(headers, rows[:MOST_VERDICTS]), *more, *doubts, ""]


def _twin_rows(analysis: Analysis) -> list[list[str]]:
    cases = {cell.cell: cell.case for cell in analysis.cells}
    return [_verdict(f"same again, {describe(cases[pair.cell])}", pair, None) for pair in analysis.twins]


def _comparison_rows(analysis: Analysis) -> list[list[str]]:
    contexts, _ = without_common([one.context for one in analysis.comparisons])
    names = [
        f"{one.factor} {one.a} -> {one.b}" + f", {context}" * (context != "default")
        for one, context in zip(analysis.comparisons, contexts, strict=True)
    ]
    return [
        _verdict(name, one, one.launches_to_decide)
        for name, one in zip(names, analysis.comparisons, strict=True)
    ]


def _verdict(name: str, one: Comparison | Twin, to_decide: int | None) -> list[str]:
    ratio = one.ratio
    known = ratio.low is not None and ratio.high is not None
    limits = change_bounds(ratio).replace("\u00a0", " ") if known else f"{MISSING} (n = {ratio.n})"
    visible = MISSING if one.smallest_visible is None else f"{one.smallest_visible:.1%}"
    decide = MISSING if to_decide is None else str(to_decide)
    return [clip(name, 70), format_change(ratio.value), limits, one.verdict, str(ratio.n), visible, decide]


def _log(finding: Finding) -> str:
    """A line with the log to look at, for a finding that has one."""
    return f"\n    log: {finding.evidence['log']}" if "log" in finding.evidence else ""


def _where(finding: Finding, cases: Mapping[str, Case], names: Mapping[str, str]) -> str:
    """The first cell of a finding whose message names none of its cells, by its name in the table: ` [DDP × 2]`."""
    known = [cell for cell in finding.cells if cell in names]
    if not known or any(describe(cases[cell]) in finding.message for cell in known):
        return ""
    more = f" and {len(known) - 1} more" if len(known) > 1 and " more cell" not in finding.message else ""
    return f" [{names[known[0]]}{more}]"


def _last_column(analysis: Analysis, shown: Sequence[CellResult]) -> tuple[str, dict[str, str]]:
    """Efficiency; where every cell is a base of its own, the change from the default of the main setting."""
    bases = {curve.base_cell for curve in analysis.curves}
    measured = [cell for cell in shown if cell.samples_per_s]
    main = Counter(one.factor for one in analysis.comparisons).most_common(1)
    if main and all(cell.cell in bases for cell in measured):
        return f"{main[0][0]} vs default", _changes(analysis, shown, main[0][0])
    return "efficiency", {cell.cell: "base" if cell.cell in bases else _efficiency(cell) for cell in shown}


def _changes(analysis: Analysis, shown: Sequence[CellResult], factor: str) -> dict[str, str]:
    """Cell -> change of throughput from the cell that differs in this factor only; "default" for that one."""
    pairs = {one.b_cell: one for one in reversed(analysis.comparisons) if one.factor == factor}
    first = {one.a_cell for one in pairs.values()} - pairs.keys()
    return {cell.cell: "default" if cell.cell in first else _change(pairs.get(cell.cell)) for cell in shown}


def _change(pair: Comparison | None) -> str:
    if pair is None or pair.verdict == "not comparable":
        return MISSING if pair is None else pair.verdict
    return format_change(pair.ratio.value)


def _row(name: str, cell: CellResult, last: str) -> list[str]:
    speed = cell.samples_per_s
    return [
        name,
        cell.status,
        launches(cell),
        format_value("samples_per_s", speed.value if speed else None),
        _half_width(speed),
        format_value("step_s", cell.step_s),
        last,
    ]


def _efficiency(cell: CellResult) -> str:
    return format_value("efficiency", cell.efficiency.value if cell.efficiency else None)


def _half_width(interval: Interval | None) -> str:
    if interval is None:
        return MISSING
    half = interval.half_width
    if half is None:
        return f"n/a (n = {interval.n})"
    return f"+-{half:.1%}" if half < 1 else f"[{interval.low:.3g}, {interval.high:.3g}]"
