"""`scalemark scaling STUDY...`: every curve as a table, under its named base."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from bench.measures import format_bounds, format_value
from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.answers import Analysis, Curve, Point

COLUMNS = (
    "devices",
    "batch",
    "in all",
    "throughput",
    "a device",
    "speed-up",
    "efficiency",
    "95 % interval",
    "marks",
)

Studies = Annotated[list[str], typer.Argument(help="Studies by name or path; several are analysed together.")]


def scaling(studies: Studies, json: o.Json = False) -> None:
    """Show throughput, speed-up and efficiency against devices, and what they are relative to."""
    from bench.analysis import analyse
    from bench.store import open_store

    stores = [open_store(name) for name in studies]
    analysis = analyse(stores)
    typer.echo(as_json(analysis) if json else as_text(analysis))
    if not json:
        o.say_unreadable(stores)


def as_json(analysis: "Analysis") -> str:
    """One JSON object: the study, its curves, and the findings that concern them."""
    import msgspec

    shown = {curve.base_cell for curve in analysis.curves}
    shown |= {point.cell for curve in analysis.curves for point in curve.points}
    answer = {
        "study": analysis.study,
        "device_kind": analysis.device_kind,
        "quick": analysis.quick,
        "curves": analysis.curves,
        "findings": [finding for finding in analysis.findings if shown & set(finding.cells)],
        "note": None if analysis.curves else _no_curve(analysis),
    }
    return msgspec.json.format(msgspec.json.encode(answer)).decode()


def as_text(analysis: "Analysis") -> str:
    """A table a curve, with its base below it; or why there is none."""
    if not analysis.curves:
        return _no_curve(analysis)
    return "\n\n".join("\n".join(_curve(curve)) for curve in analysis.curves)


def _curve(curve: "Curve") -> Iterator[str]:
    from bench.console import table

    yield curve.label
    yield table(COLUMNS, [_row(point) for point in curve.points])
    base = format_value("samples_per_s", curve.base_samples_per_s)
    yield f"baseline: {curve.base}, {base} on {curve.base_devices} device{'s' * (curve.base_devices > 1)}"
    parts = [text for point in curve.points if (text := _serial_part(curve, point))]
    if parts:
        law = "Karp-Flatt" if curve.scaling == "strong" else "Gustafson"
        yield f"serial fraction ({law}): {', '.join(parts)}"
    if curve.note:
        yield curve.note


def _serial_part(curve: "Curve", point: "Point") -> str:
    """`20.0 % at 2`; why there is none where the point is slower than the base; "" on the base's own count."""
    if point.devices == curve.base_devices:
        return ""
    text = f"{format_value('serial_fraction', curve.serial_fraction.get(point.devices))} at {point.devices}"
    slower = f" (slower than {'one device' if curve.base_devices == 1 else 'the base'})"
    return text + slower * (point.speedup.value < 1)


def _row(point: "Point") -> list[str]:
    efficiency = point.efficiency
    return [
        str(point.devices),
        str(point.batch),
        str(point.global_batch),
        format_value("samples_per_s", point.samples_per_s.value),
        format_value("per_device", point.per_device),
        format_value("speedup", point.speedup.value),
        format_value("efficiency", efficiency.value),
        format_bounds("efficiency", efficiency.low, efficiency.high, efficiency.n),
        ", ".join(point.marks),
    ]


def _no_curve(analysis: "Analysis") -> str:
    return f"{analysis.study}: no curve: {analysis.best_note or 'no cell has a usable launch'}"


PLUGIN = scaling
