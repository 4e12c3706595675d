"""`scalemark scaling STUDY`: every curve as a table, under its named base."""

import json as jsonlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench.measures import MISSING, format_bounds, format_value

if TYPE_CHECKING:
    from bench.answers import Analysis, Curve, Point

COLUMNS = ("devices", "batch", "throughput", "per device", "speed-up", "efficiency", "95 % interval", "marks")
WIDE = 200  # columns where the output is no terminal: lines are not folded


def scaling(study: str, json: bool = False) -> None:
    """Show throughput, speed-up and efficiency against devices, and what they are relative to."""
    from bench.analysis import analyse
    from bench.store import open_store

    analysis = analyse([open_store(study)])
    if json:
        print(as_json(analysis))
    else:
        _show(analysis)


def as_json(analysis: "Analysis") -> str:
    """One JSON object: the study, its curves, and the findings that concern them."""
    import msgspec

    concern = [finding for finding in analysis.findings if set(finding.cells) & _cells(analysis.curves)]
    answer = {
        "study": analysis.study,
        "device_kind": analysis.device_kind,
        "quick": analysis.quick,
        "curves": analysis.curves,
        "findings": concern,
        "note": None if analysis.curves else _none(analysis),
    }
    return jsonlib.dumps(msgspec.to_builtins(answer, str_keys=True), indent=2, allow_nan=False)


def _show(analysis: "Analysis") -> None:
    from rich.console import Console
    from rich.markup import escape

    plain = not sys.stdout.isatty()
    console = Console(width=WIDE if plain else None, highlight=False)
    if not analysis.curves:
        console.print(escape(_none(analysis)))
    for curve in analysis.curves:
        console.print(_table(curve, plain))
        console.print(*(escape(line) for line in _below(curve)), sep="\n", end="\n\n")


def _table(curve: "Curve", plain: bool) -> object:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(curve.label), title_justify="left", box=None if plain else box.SIMPLE)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "marks" else "right", overflow="fold")
    for point in curve.points:
        table.add_row(*(escape(text) for text in _row(point)))
    return table


def _row(point: "Point") -> tuple[str, ...]:
    efficiency = point.efficiency
    marks = point.marks + (("not converged",) if point.converged is False else ())
    return (
        str(point.devices),
        f"{point.batch} ({point.global_batch} in all)",
        format_value("samples_per_s", point.samples_per_s.value),
        format_value("per_device", point.per_device),
        format_value("speedup", point.speedup.value),
        format_value("efficiency", efficiency.value),
        format_bounds("efficiency", efficiency.low, efficiency.high, efficiency.n),
        ", ".join(marks),
    )


def _below(curve: "Curve") -> Iterator[str]:
    base = format_value("samples_per_s", curve.base_samples_per_s)
    yield f"baseline: {curve.base}, {base} on {curve.base_devices} device{'s' * (curve.base_devices > 1)}"
    serial = {devices: part for devices, part in curve.serial_fraction.items() if part is not None}
    if serial:
        law = "Karp-Flatt" if curve.scaling == "strong" else "Gustafson"
        parts = ", ".join(f"{format_value('serial_fraction', part)} at {n}" for n, part in serial.items())
        yield f"serial fraction ({law}): {parts}"
    if curve.note:
        yield curve.note


def _none(analysis: "Analysis") -> str:
    return f"{analysis.study or MISSING}: no curve: {analysis.best_note or 'no cell has a usable launch'}"


def _cells(curves: "tuple[Curve, ...]") -> set[str]:
    return {curve.base_cell for curve in curves} | {point.cell for curve in curves for point in curve.points}


PLUGIN = scaling
