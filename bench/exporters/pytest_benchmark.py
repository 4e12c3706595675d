"""JSON as `pytest --benchmark-json` writes it: a benchmark a cell, a round a launch.

A round's value is the seconds a sample took in that launch's window, so "OPS" is samples/s and cells of any
number of devices stand beside each other. The launch is the unit, never the step: pooled steps would make
equal cells look different. Only launches that may stand in a curve are rounds; what is left out is said.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bench.answers import Interval
from bench.curves import curves
from bench.describe import level, settings
from bench.errors import UsageError
from bench.evidence import Cell, Evidence, gather
from bench.exporters._rounds import summary
from bench.plugins import Exporter
from bench.records import StudyHeader
from bench.store import Store

LIKE = "5.3.1"  # the version of pytest-benchmark whose structure this is
UNIT = "seconds a sample, one round a launch"


def files(stores: Sequence[Store], steps: bool) -> dict[str, bytes]:
    """One JSON file a study: `pytest-benchmark compare` takes a file for a run."""
    found: dict[str, bytes] = {}
    for number, store in enumerate(stores, start=1):
        name = f"{store.name}.json" if f"{store.name}.json" not in found else f"{store.name}-{number}.json"
        found[name] = msgspec.json.format(msgspec.json.encode(run(store))) + b"\n"
    return found


def run(store: Store) -> dict[str, Any]:
    """A study as one run of pytest-benchmark. Raises UsageError where no cell has a usable launch."""
    evidence = gather([store])
    header = evidence.headers[0]
    efficiency = {point.cell: point.efficiency for curve in curves(evidence) for point in curve.points}
    usable = [cell for cell in evidence.cells.values() if cell.usable]
    if not usable:
        raise UsageError(f"{store.root}: no cell has a usable launch: no benchmark; csv has every launch")
    return {
        "machine_info": _machine(header.host),
        "commit_info": _commit(header.git),
        "benchmarks": [_benchmark(evidence, header, cell, efficiency.get(cell.id)) for cell in usable],
        "datetime": header.created_at,
        "version": LIKE,
        "scalemark": {"version": header.version, "study": header.study, "left_out": _left_out(evidence)},
    }


def _benchmark(
    evidence: Evidence, header: StudyHeader, cell: Cell, efficiency: Interval | None
) -> dict[str, Any]:
    params = {
        name: getattr(cell.case, name) for name in dict.fromkeys(("strategy", "ranks", *header.factors))
    }
    rounds = [1 / row.samples_per_s for row in sorted(cell.shown, key=lambda row: row.block)]
    return {
        "group": f"{cell.case.model} on {cell.case.data}, {cell.case.scaling} scaling",
        "name": cell.id,
        "fullname": f"scalemark::{cell.id}",
        "params": params,
        "param": "-".join(map(level, params.values())),
        "extra_info": {
            "unit": UNIT,
            "study": header.study,
            "suite": cell.suite,
            "devices": cell.case.devices,
            "global_batch": cell.case.global_batch,
            **_interval("samples_per_s", cell.samples_per_s),
            **_interval("efficiency", efficiency),
            "step_s": cell.average("step_s"),
            "settings": settings(cell.case),
            "marks": cell.marks,
            "failed_launches": len(cell.failures),
        },
        "options": _options(header),
        "stats": summary(rounds),
    }


def _interval(name: str, interval: Interval | None) -> dict[str, float | None]:
    parts = (interval.value, interval.low, interval.high) if interval else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), parts, strict=True))


def _options(header: StudyHeader) -> dict[str, Any]:
    return {
        "disable_gc": False,
        "timer": "monotonic" if not header.host.get("accelerator") else "device events",
        "min_rounds": header.min_launches,
        "max_time": header.budget_s,
        "min_time": None,
        "precision": header.target,
        "confidence": 0.95,
        "warmup": True,
    }


def _machine(host: dict[str, Any]) -> dict[str, Any]:
    """The host of the study; what a study does not record is null."""
    version = str(host.get("python") or "").split(" ")[0] or None
    return {
        "node": host.get("hostname"),
        "processor": host.get("cpu_model"),
        "machine": None,
        "python_compiler": None,
        "python_implementation": None,
        "python_implementation_version": version,
        "python_version": version,
        "python_build": None,
        "release": host.get("kernel"),
        "system": "Linux",
        "cpu": {"brand_raw": host.get("cpu_model"), "count": host.get("cpus_counted")},
        "torch": host.get("torch"),
        "devices": [device["name"] for device in host.get("devices", ())],
    }


def _commit(git: str | None) -> dict[str, Any]:
    """The commit that the study's folder was at; pytest-benchmark's own words where there was none."""
    return {
        "id": (git or "unversioned").split(" ")[0],
        "time": None,
        "author_time": None,
        "dirty": bool(git and git.endswith("with changes")),
        "project": None,
        "branch": "(unknown)",
    }


def _left_out(evidence: Evidence) -> dict[str, str]:
    """Cells that are no benchmark, and why."""
    return {
        cell.id: cell.skipped or (cell.doubt if cell.launches else None) or "not run"
        for cell in evidence.cells.values()
        if not cell.usable
    }


PLUGIN = Exporter("JSON for pytest-benchmark compare: a benchmark a cell", ".json", files, tables=False)
