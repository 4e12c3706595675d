"""The report's small print as values: the host, the findings' links, the files of numbers."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench import wording
from bench.answers import Analysis, CellResult, Curve, Finding, Interval
from bench.case import Case
from bench.plugins import Row, clip

LEVELS = ("problem", "warning", "info")
MOST_LINKS = 6
MOST_FACTS = 80


class Fact(NamedTuple):
    """A name and what it is."""

    name: str
    value: str


class Link(NamedTuple):
    """A text and the anchor that it leads to, "" for none."""

    text: str
    href: str


def counted(cells: Sequence[CellResult]) -> str:
    """`24 cells, 8 skipped`: those that could not run here are counted apart."""
    skipped = sum(cell.status == "skipped" for cell in cells)
    text = wording.plural(len(cells) - skipped, "cell")
    return f"{text}, {skipped:,} skipped" if skipped else text


def findings(analysis: Analysis) -> list[Finding]:
    """Findings, problems first."""
    return sorted(analysis.findings, key=lambda finding: LEVELS.index(finding.level))


def links(names: Sequence[str], analysis: Analysis, labels: dict[str, str]) -> list[Link]:
    """Links from a finding to rows of the table of all cells."""
    anchors = {cell.cell: f"#cell-{place}" for place, cell in enumerate(analysis.cells)}
    shown = [Link(labels.get(name, clip(name, 60)), anchors.get(name, "")) for name in names[:MOST_LINKS]]
    rest = len(names) - len(shown)
    return [*shown, Link(f"and {rest} more", "#cells")] if rest else shown


def facts(values: dict[str, Any]) -> list[Fact]:
    """A host's facts, one a line, sizes in MiB or GiB; what is empty or unknown is left out."""
    return list(_flat(values, ""))[:MOST_FACTS]


def _flat(values: dict[str, Any], prefix: str) -> Iterator[Fact]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            texts = [_inline(one) for one in value]
            yield from (Fact(clip(name.replace("_", " "), 60), clip(text, 300)) for text in texts[:16])
        elif value is not None and value != "":
            yield Fact(clip(_title(key, prefix), 60), clip(_scalar(key, value), 300))


def _title(key: str, prefix: str) -> str:
    return f"{prefix}{key.removesuffix('_bytes')}".replace("_", " ")


def _scalar(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return wording.size(value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _inline(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    known = {key: one for key, one in value.items() if one is not None and one != ""}
    return ", ".join(f"{_title(key, '')} {_scalar(key, one)}" for key, one in known.items())


def cell_rows(cells: Sequence[CellResult], phases: Sequence[str]) -> list[Row]:
    """One row a cell, every field of its case among them: cells.csv."""
    return [
        {
            "cell": cell.cell,
            "suite": cell.suite,
            "status": cell.status,
            "reason": cell.reason,
            **{field: _plain(getattr(cell.case, field)) for field in Case.__struct_fields__},
            "devices": cell.case.devices,
            "global_batch": cell.case.global_batch,
            "launches": cell.launches,
            "failed": cell.failed,
            "replaced": cell.replaced,
            **_interval("samples_per_s", cell.samples_per_s),
            **{name: getattr(cell, name) for name in ("step_s", "p50_s", "p95_s", "p99_s")},
            **{f"{phase}_s": cell.phases_s.get(phase) for phase in phases},
            "first_step_s": cell.first_step_s,
            "first_batch_s": cell.first_batch_s,
            **_interval("efficiency", cell.efficiency),
            "memory_bytes": cell.memory_bytes,
            "memory_source": cell.memory_source,
            "energy_per_sample_j": cell.energy_per_sample_j,
            "twin_of": cell.twin_of,
            "launches_sd": cell.spread.launches if cell.spread else None,
            "instrumentation_share": cell.instrumentation,
            "marks": "; ".join(cell.marks),
            "converged": cell.converged,
            "stopped": cell.stopped,
        }
        for cell in cells
    ]


def scaling_rows(curves: Sequence[Curve]) -> list[Row]:
    """One row a point of a curve: scaling.csv."""
    return [
        {
            "curve": curve.label,
            "strategy": curve.strategy,
            "scaling": curve.scaling,
            "reference": curve.reference,
            "base": curve.base,
            "base_cell": curve.base_cell,
            "base_devices": curve.base_devices,
            "base_samples_per_s": curve.base_samples_per_s,
            "cell": point.cell,
            "devices": point.devices,
            "batch": point.batch,
            "global_batch": point.global_batch,
            **_interval("samples_per_s", point.samples_per_s),
            "samples_per_s_per_device": point.per_device,
            **_interval("speedup", point.speedup),
            **_interval("efficiency", point.efficiency),
            "serial_fraction": curve.serial_fraction.get(point.devices),
            "step_s": point.step_s,
            "launches": len(point.launches),
            "marks": "; ".join(point.marks),
            "converged": point.converged,
        }
        for curve in curves
        for point in curve.points
    ]


def exclusion_rows(analysis: Analysis) -> list[Row]:
    """One row a launch that is in no number: exclusions.csv."""
    return [
        {
            "study": one.study,
            "launch": one.launch,
            "cell": one.cell,
            "status": one.status,
            "cause": one.cause,
            "reason": one.reason,
        }
        for one in analysis.exclusions
    ]


def _interval(name: str, interval: Interval | None) -> Row:
    return {
        name: interval.value if interval else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
    }


def _plain(value: Any) -> Any:
    return "; ".join(f"{key}={one}" for key, one in value.items()) if isinstance(value, dict) else value
