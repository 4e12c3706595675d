"""JSON of `pytest --benchmark-json`: a file is an allocation, a benchmark a cell, named by its full name.

Rounds of a file ran in one process: together they are one value, ln(1 / mean), and never stand for launches.
What `scalemark export --format pytest-benchmark` wrote is known by its unit: there a round is a launch.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.compared import Allocation, Measured, text
from bench.errors import UsageError
from bench.exporters.pytest_benchmark import UNIT
from bench.plugins import Importer, clip

OWN = "threads, variables and driver are not in this file: compare the studies to have them checked"
REMEDY = "write it by pytest --benchmark-json=FILE"


class _Stats(msgspec.Struct):
    mean: float
    data: list[float] = []


class _Benchmark(msgspec.Struct):
    fullname: str
    stats: _Stats
    extra_info: dict[str, Any] = {}
    options: dict[str, Any] = {}


class _Run(msgspec.Struct):
    benchmarks: list[_Benchmark]
    machine_info: dict[str, Any] = {}


def read(path: Path) -> Allocation:
    """One file. Raises UsageError for one that cannot be read or is nothing of the kind."""
    try:
        run = msgspec.json.decode(path.read_bytes(), type=_Run)
    except OSError as error:
        raise UsageError(
            f"{clip(str(path), 200)}: {error.strerror or error}; name a file that can be read"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(path, f"not JSON of pytest-benchmark: {error}") from None
    own = bool(run.benchmarks) and all(one.extra_info.get("unit") == UNIT for one in run.benchmarks)
    cells: dict[str, Measured] = {}
    for benchmark in run.benchmarks:
        if benchmark.fullname in cells:
            raise _refused(path, f"{clip(benchmark.fullname)!r} stands there twice")
        cells[benchmark.fullname] = _measured(path, benchmark, own)
    facts = dict(_facts(run.machine_info))
    return Allocation(str(path), facts, cells, unit="samples/s" if own else "calls/s")


def _measured(path: Path, benchmark: _Benchmark, own: bool) -> Measured:
    times = benchmark.stats.data if own and benchmark.stats.data else [benchmark.stats.mean]
    if not all(0 < time < math.inf and 1 / time < math.inf for time in times):
        raise _refused(path, f"{clip(benchmark.fullname)!r} took no time, or no finite one")
    name = benchmark.fullname
    return Measured(
        cell=name,
        label=name.removeprefix("scalemark::") if own else name,
        logs={block: -math.log(time) for block, time in enumerate(times)},
        facts={
            key: text(benchmark.options[key]) for key in ("timer", "disable_gc") if key in benchmark.options
        },
        notes=(OWN,) if own else (),
    )


def _facts(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The machine and its Python; the names are those of a study's facts where there are such."""
    cpu = machine.get("cpu") if isinstance(machine.get("cpu"), dict) else {}
    python = ".".join(str(machine.get("python_version") or "").split(".")[:2])
    yield "cpu_model", text(cpu.get("brand_raw") if cpu else None)
    yield "cpus_counted", text(cpu.get("count") if cpu else None)
    yield "machine", text(machine.get("machine"))
    yield "system", text(machine.get("system"))
    yield "python", text(python or None)
    yield "python_implementation", text(machine.get("python_implementation"))
    for name in ("torch", "devices"):
        if name in machine:
            yield name, text(machine[name])


def _refused(path: Path, problem: str) -> UsageError:
    return UsageError(f"{clip(str(path), 200)}: {problem}; {REMEDY}")


PLUGIN = Importer("JSON of pytest-benchmark: a file is one allocation, a benchmark a cell", ".json", read)
