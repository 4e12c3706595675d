"""Analysis -> one HTML file that needs nothing else, and a CSV for each of its pictures and tables."""

import csv
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench import (
    plugins,
    report_checkpoints,
    report_facts,
    report_network,
    report_tables,
    report_trust,
    report_verify,
)
from bench.answers import Analysis
from bench.errors import UsageError
from bench.plugins import Figure, Row, clip
from bench.records import PHASES
from bench.report_card import card, setting_text
from bench.tables import Table, data
from bench.wording import cell_labels, moment

TEMPLATES = Path(__file__).parent / "templates"
MOST_CURVES = 6  # tables of curves that stand open


@dataclass(frozen=True)
class Picture:
    """One figure of the page: its SVG, or a sentence that says why there is none."""

    name: str
    figure: Figure
    svg: str
    nothing: str
    note: str
    table: Table | None


def render(analysis: Analysis, folder: str | None = None) -> str:
    """The page. Its links look for the CSVs in `folder` beside it (default: the study's name)."""
    return _page(analysis, _files(analysis), folder or clip(analysis.study))


def write(analysis: Analysis, path: Path) -> list[Path]:
    """Write `path` and the CSVs in the folder of the same name beside it; each file whole or not at all.

    Returns the paths written, the page first. CSVs of an earlier report that have no rows now are removed.
    Raises UsageError where the path is no HTML file or the place cannot be written.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {clip(str(path))}: a report is an HTML file; give a name that ends in .html")
    files = _files(analysis)
    folder = path.with_suffix("")
    page = _page(analysis, files, folder.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [put(folder / name, csv_text(rows)) for name, rows in files.items() if rows]
        for name in (name for name, rows in files.items() if not rows):
            (folder / name).unlink(missing_ok=True)
        return [put(path, page), *written]
    except OSError as error:
        where, why = clip(str(path), 200), error.strerror or error
        raise UsageError(
            f"{where}: the report cannot be written here: {why}; choose another place by -o"
        ) from None


def _figures() -> dict[str, Figure]:
    found: dict[str, Figure] = {name: plugins.load("figures", name) for name in plugins.names("figures")}
    return dict(sorted(found.items(), key=lambda item: (item[1].order, item[0])))


def _files(analysis: Analysis) -> dict[str, list[Row]]:
    """Rows by the name of their CSV."""
    files = {f"{name}.csv": figure.frame(analysis) for name, figure in _figures().items()}
    files["scaling.csv"] = report_facts.scaling_rows(analysis.curves)
    files["cells.csv"] = report_facts.cell_rows(analysis.cells, PHASES)
    files["exclusions.csv"] = report_facts.exclusion_rows(analysis)
    return (
        files | report_trust.files(analysis) | report_verify.files(analysis) | report_network.files(analysis)
    )


def _pictures(analysis: Analysis, files: dict[str, list[Row]], labels: dict[str, str]) -> list[Picture]:
    """All figures, drawn. Where a table says more than the picture's own rows, it stands in their place."""
    from bench.figures._canvas import svg

    special = {
        "settings": report_tables.comparisons(analysis),
        "memory": report_tables.memory(analysis, labels),
    }
    return [
        Picture(
            name=name,
            figure=figure,
            svg=svg(figure, rows, name) if rows else "",
            nothing="" if rows else figure.nothing(analysis),
            note=(figure.note(rows) or "") if rows else "",
            table=special.get(name) or (data(rows) if rows else None),
        )
        for name, figure in _figures().items()
        for rows in (files[f"{name}.csv"],)
        if rows or not (figure.optional or _only_saved(analysis))
    ]


def _only_saved(analysis: Analysis) -> bool:
    """Whether checkpoints are all that there is."""
    return bool(analysis.checkpoints) and not analysis.cells


def _page(analysis: Analysis, files: dict[str, list[Row]], folder: str) -> str:
    values = _values(analysis, files) | {"csv_href": lambda name: f"{quote(folder, safe='')}/{name}"}
    return page("report.html.j2", values)


def page(template: str, values: dict[str, Any]) -> str:
    """A template with its values, everything escaped; style and script are in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"clip": clip, "moment": moment}
    own = {
        "style": (TEMPLATES / "report.css").read_text("utf-8"),
        "script": (TEMPLATES / "report.js").read_text("utf-8"),
    }
    return pages.get_template(template).render(values | own).lstrip()


def _values(analysis: Analysis, files: dict[str, list[Row]]) -> dict[str, Any]:
    labels = cell_labels(analysis.cells)
    found = [
        (finding, report_facts.links(finding.cells, analysis, labels))
        for finding in report_facts.findings(analysis)
    ]
    wide = [
        curve
        for curve in analysis.curves
        if len({p.devices for p in curve.points} | {curve.base_devices}) > 1
    ]
    first = (wide or list(analysis.curves))[:MOST_CURVES]
    rest = [curve for curve in analysis.curves if curve not in first]
    return {
        "analysis": analysis,
        "card": card(analysis),
        "setting_text": setting_text,
        "findings": [one for one in found if one[0].level != "info"],
        "notes": [one for one in found if one[0].level == "info"],
        "pictures": _pictures(analysis, files, labels),
        "curves": [report_tables.scaling(curve) for curve in first],
        "more_curves": [report_tables.scaling(curve) for curve in rest],
        "cells": report_tables.cells(analysis, labels),
        "exclusions": report_tables.exclusions(analysis, labels),
        "network": report_network.tables(analysis, labels),
        "checkpoints": report_checkpoints.tables(analysis.checkpoints),
        "trust": [*report_verify.tables(analysis), *report_trust.tables(analysis, labels)],
        "trust_facts": [report_verify.fact(analysis), *report_trust.facts(analysis, labels)],
        "facts": report_facts.facts(analysis.host),
        "only_saved": _only_saved(analysis),
        "counted": report_facts.counted(analysis.cells),
        "launches": sum(cell.launches + cell.replaced for cell in analysis.cells),
    }


def csv_text(rows: list[Row]) -> str:
    """Rows as CSV text: a heading, missing values empty. Needs at least one row."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(rows[0])
    lines.writerows([_field(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _field(value: Any) -> Any:
    """A value as it stands in a CSV: missing is empty, and no text is taken for a formula."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, str):
        text = clip(value, 1000)
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return value


def put(path: Path, text: str) -> Path:
    """Write a file whole: under another name first, then renamed."""
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
