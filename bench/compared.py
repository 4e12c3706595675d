"""What a comparison works on: one allocation, its cells with their rates, and what must be equal on both sides.

An allocation is one set of machines for one stretch of time: a study, or a file of another program's. Rates are
logarithms, so that a difference is a ratio.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.describe import describe, level, unsaid
from bench.errors import UsageError
from bench.evidence import Cell, Evidence, gather
from bench.machine import comparable_facts
from bench.records import StudyHeader
from bench.store import Store, finite
from bench.twins import differs, twins

if TYPE_CHECKING:
    from pandas import DataFrame

Facts = Mapping[str, str]

# Read back in the ranks: what changes speed and is not asked for by the case, or not in so many words.
EFFECTIVE = (
    *("device_name", "threads", "interop_threads", "backend", "precision", "compute_dtype"),
    *("implementation", "stand_ins", "parameters"),
)
_USED = ("affinity", "peak_allocated_bytes", "rank_pss_bytes", "workers_pss_bytes")
# Which devices a rank was given, not how they run: their model and what joins them are compared on their own.
PLACES = ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
UNSET = "unset"
REFERENCE = "reference implementation on CPU: does not transfer to torch's own"


@dataclass(frozen=True)
class Measured:
    """One cell in one allocation; `logs` is ln(samples/s) by block, of the launches that may be compared."""

    cell: str
    label: str
    logs: Mapping[int, float]
    doubt: str | None = None  # why it enters no comparison
    skipped: bool = False  # its plan said that it cannot run here
    facts: Facts = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()  # of its launches: said beside its number
    unsaid: Facts = field(default_factory=dict)  # settings that the label leaves out
    memory_bytes: int | None = None  # of the fullest rank
    memory_source: str | None = None

    @property
    def mean(self) -> float:
        """The mean of logs: one value an allocation. Raises ZeroDivisionError where there is none."""
        return math.fsum(self.logs.values()) / len(self.logs)


@dataclass(frozen=True)
class Allocation:
    """One side's stretch of time: its name, its facts, its cells by id. `noted` facts may differ and are said.

    `environment` is the Python, the folder and the versions that it ran in, where a comparison of two knows them.
    """

    name: str
    facts: Facts
    cells: Mapping[str, Measured]
    noted: Facts = field(default_factory=dict)
    unit: str = "samples/s"
    off: str | None = None  # why no verdict on it holds: its A/A pair differs
    unreadable: int = 0  # lines of its launches that are no records
    environment: str | None = None


def read(store: Store, delta: float) -> Allocation:
    """A study as an allocation; its A/A pairs are judged by the margin `delta`, as its cells will be.

    Raises UsageError as Store does, and for a header that was edited.
    """
    evidence = gather([store])
    header = evidence.headers[0]
    ranks = {str(cell): _columns(rows) for cell, rows in evidence.ranks.groupby("cell", sort=False)}
    broken = len(evidence.frames.broken)
    try:
        facts, between = _study_facts(evidence, header), _nodes_facts(header)
    except (TypeError, KeyError, AttributeError, ValueError):
        raise UsageError(
            f"{store.header_path}: `$.host` is not as it was written; put the original file back"
        ) from None
    return Allocation(
        name=str(store.root),
        facts=facts,
        cells={
            cell.id: _measured(
                cell, ranks.get(cell.id, {}), between if cell.case.nodes > 1 else {}, bool(broken)
            )
            for cell in evidence.cells.values()
            if cell.twin_of is None
        },
        noted={"code": header.git or "unknown"},
        off=differs(evidence, twins(evidence, delta)),
        unreadable=broken,
    )


def same_launches(one: Allocation, other: Allocation) -> bool:
    """Whether two allocations share a launch: its cell, its block and its throughput to the last digit."""
    return any(
        mine.logs.items() & other.cells[cell].logs.items()
        for cell, mine in one.cells.items()
        if cell in other.cells
    )


def _columns(rows: "DataFrame") -> dict[str, list[Any]]:
    return {name: rows[name].tolist() for name in (*EFFECTIVE, *_USED)}


def _measured(cell: Cell, ranks: Mapping[str, list[Any]], between: Facts, broken: bool) -> Measured:
    memory, source = _memory(ranks)
    notes = [REFERENCE] * cell.reference + ["few steps dominate a window"] * bool(cell.hiccups)
    return Measured(
        cell=cell.id,
        label=describe(cell.case),
        logs={block: y for (_, block), y in cell.logs.items()},
        doubt=cell.doubt if cell.launches else cell.skipped or _no_launch(broken),
        skipped=cell.skipped is not None and not cell.launches,
        facts={**between, **dict(_cell_facts(cell, ranks))},
        notes=(*notes, *["launches fall in two groups"] * cell.two_modes),
        marks=cell.marks,
        unsaid=unsaid(cell.case),
        memory_bytes=memory,
        memory_source=source,
    )


def _no_launch(broken: bool) -> str:
    return "no launch that can be read" if broken else "not run"


def _study_facts(evidence: Evidence, header: StudyHeader) -> Facts:
    """What the host is, by name; of several nodes it is the first, on which every cell runs."""
    facts = _host_facts(header.host)
    prints = {row.fingerprint for cell in evidence.measured for row in cell.shown}
    if len(prints) > 1:  # the study went on elsewhere, or after an upgrade
        facts["fingerprint"] = ", ".join(sorted(prints))
    return facts | {"scalemark": header.version}


def _host_facts(host: Mapping[str, Any]) -> dict[str, str]:
    return {name: text(value) for name, value in (comparable_facts(host) | _more(host)).items()}


def _more(host: Mapping[str, Any]) -> dict[str, Any]:
    """Python 3.11.4 and 3.11.5 run as fast as each other; 3.12 does not."""
    python = ".".join(str(host.get("python") or "").split(" ")[0].split(".")[:2])
    return {"rocm": host.get("rocm"), "python": python or None}


def _nodes_facts(header: StudyHeader) -> dict[str, str]:
    """What concerns the cells that run on several nodes, and no other."""
    if not header.nodes:
        return {}
    speeds = dict.fromkeys(text(member.speed_mbit) for member in header.nodes)
    each = [_host_facts(member.host) for member in header.nodes]
    values = {name: list(dict.fromkeys(one[name] for one in each)) for name in each[0]}
    mixed = (f"{name} {' / '.join(found)}" for name, found in values.items() if len(found) > 1)
    return {
        "nodes_on_one_machine": text(header.box),
        "interface_speed_mbit": " / ".join(speeds),
        "mixed_nodes": ", ".join(mixed) or "none",
    }


def _cell_facts(cell: Cell, ranks: Mapping[str, list[Any]]) -> Iterator[tuple[str, str]]:
    for name in EFFECTIVE:
        values = {text(value) for value in ranks.get(name, ()) if _known(value)}
        if values:
            yield name, " / ".join(sorted(values))
    cpus = {len(affinity) for affinity in ranks.get("affinity", ()) if affinity is not None}
    if cpus:
        yield "cpus_a_rank", " / ".join(map(str, sorted(cpus)))
    variables: dict[str, dict[str, None]] = {}
    for row in cell.shown:
        for name, value in row.environment.items():
            variables.setdefault(name, {})[value] = None
    for name in sorted(variables.keys() - set(PLACES)):
        yield name, " / ".join(variables[name])


def _known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _memory(ranks: Mapping[str, list[Any]]) -> tuple[int | None, str | None]:
    """Of the fullest rank: what its allocator held at most, else the pages of the process and its workers."""
    peak = list(_finite(ranks.get("peak_allocated_bytes", ())))
    if peak:
        return int(max(peak)), "peak allocated"
    pairs = zip(ranks.get("rank_pss_bytes", ()), ranks.get("workers_pss_bytes", ()), strict=True)
    held = [rank + (finite(workers) or 0) for rank, workers in pairs if finite(rank) is not None]
    return (int(max(held)), "PSS of rank and workers") if held else (None, None)


def _finite(values: Iterable[float | None]) -> Iterator[float]:
    return (known for value in values if (known := finite(value)) is not None)


def memory_bytes(side: Iterable[Measured], source: str | None) -> int | None:
    """The most that one cell held on a side, as far as it says so in this way; None where it does not."""
    known = (one.memory_bytes for one in side if source is not None and one.memory_source == source)
    return max((count for count in known if count is not None), default=None)


def memory_source(base: Iterable[Measured], new: Iterable[Measured]) -> str | None:
    """What both sides say their memory by, or None."""
    ours, theirs = ({one.memory_source for one in side} for side in (base, new))
    return min(filter(None, ours & theirs), default=None)


def text(value: Any) -> str:
    """A fact in words: "8 × NVIDIA H100", "none", "on", "4"."""
    if isinstance(value, list | tuple):
        counted = Counter(map(str, value))
        each = (f"{count} × {name}" if count > 1 else name for name, count in counted.items())
        return ", ".join(each) or "none"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "none" if value is None else level(value)
