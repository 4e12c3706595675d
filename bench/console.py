"""Tables and results as plain text: the same on a terminal, in a pipe and in a log."""

from collections.abc import Sequence, Set

from bench.answers import Analysis, CellResult, Interval
from bench.measures import MISSING, format_value
from bench.wording import cell_labels


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
    headers = ["cell", "status", "launches", "throughput", "interval", "step", "efficiency"]
    bases = {curve.base_cell for curve in analysis.curves}
    shown = [cell for cell in analysis.cells if cell.status != "skipped"]
    names = cell_labels(shown)
    rows = [_row(names[cell.cell], cell, bases) for cell in shown]
    findings = [f"{f.level}: {f.message}\n    {f.remedy}" for f in analysis.findings]
    return "\n".join(["", table(headers, rows), "", *findings])


def _row(name: str, cell: CellResult, bases: Set[str]) -> list[str]:
    speed = cell.samples_per_s
    return [
        name,
        cell.status + (" (not converged)" if cell.converged is False else ""),
        str(cell.launches),
        format_value("samples_per_s", speed.value if speed else None),
        _half_width(speed),
        format_value("step_s", cell.step_s),
        "base" if cell.cell in bases else _efficiency(cell),
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
