"""Tidy tables for other programs: a row a launch, a rank or a step; every column of one stated type.

A column is named for what it holds and its unit, as in frame.py. Types come from the records' own fields and
not from the values, so that every study gives the same columns. What is nested becomes JSON text; what was
not measured is None, and so is what is no finite number.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import inspect

from bench import frame
from bench.case import Case
from bench.errors import UsageError
from bench.records import (
    PHASES,
    Cell,
    Cut,
    Effective,
    LaunchRecord,
    RankMemory,
    RankSummary,
    Samples,
    StudyHeader,
    Window,
)
from bench.store import Store, finite

Kind = Literal["int", "float", "bool", "text", "json"]


class Column(NamedTuple):
    """One column: its name, the type of its values, and the values, None where there is none."""

    name: str
    kind: Kind
    values: list[Any]


Table = list[Column]


def tables(stores: Sequence[Store], steps: bool = False) -> dict[str, Table]:
    """`launches` and `ranks` of some studies, and `steps` where they are asked for.

    A cell without a launch has a row in `launches` as well: its status is "skipped", with the reason, or
    "not run". Raises UsageError as frame.load does, and for a file of steps that cannot be read.
    """
    frames = frame.load(stores)
    found = {"launches": _launches(frames, stores), "ranks": _table(frames.ranks, _RANK_KINDS)}
    return found | ({"steps": _steps(stores)} if steps else {})


def _launches(frames: frame.Frames, stores: Sequence[Store]) -> Table:
    """The frame's columns without the case as one value, which its fields are already."""
    data = frames.launches.drop(columns="case").rename(columns={"y": "ln_samples_per_s"})
    table = _table(data, _LAUNCH_KINDS)
    ran = set(zip(frames.launches["study"], frames.launches["cell"], strict=True))
    for study, header in zip(frame.study_names(stores), frames.headers, strict=True):
        for row in _without_launch(study, header, ran):
            for name, kind, values in table:
                values.append(plain(row.get(name), kind))
    return table


def _without_launch(study: str, header: StudyHeader, ran: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for cell in header.cells:
        if (study, cell.id) not in ran:
            yield _case_columns(cell) | {
                "study": study,
                "cell": cell.id,
                "suite": cell.suite,
                "status": "skipped" if cell.skipped else "not run",
                "reason": cell.skipped,
                "reject": cell.skipped or "not run",
                "cause": "skipped" if cell.skipped else "not run",
                "comparable": False,
                "reference": False,
            }


def _case_columns(cell: Cell) -> dict[str, Any]:
    fields = {name: getattr(cell.case, name) for name in frame.CASE_FIELDS}
    return fields | {"devices": cell.case.devices, "global_batch": cell.case.global_batch}


def _steps(stores: Sequence[Store]) -> Table:
    """Every recorded step of every rank of every launch that kept them."""
    table = [Column(name, kind, []) for name, kind in _STEP_KINDS.items()]
    for study, store in zip(frame.study_names(stores), stores, strict=True):
        for record in store.records()[0]:
            try:
                found = frame.steps(store, record.launch)
            except (OSError, ValueError) as error:
                reason = str(error).splitlines()[0]
                raise UsageError(f"{store.steps_path(record.launch)}: cannot be read: {reason}") from None
            for name, kind, values in table:
                given = [study] * len(found) if name == "study" else found.get(name, ())
                values.extend(plain(value, kind) for value in given)
    return table


def _table(data: Any, kinds: dict[str, Kind]) -> Table:
    return [
        Column(name, kinds[name], [plain(value, kinds[name]) for value in data[name].tolist()])
        for name in data.columns
    ]


def plain(value: Any, kind: Kind) -> Any:
    """A value of a frame as one of its column's type, or None."""
    if value is None or (isinstance(value, float) and finite(value) is None):
        return None
    if kind == "json":
        return msgspec.json.encode(value, order="deterministic").decode()
    return {"int": int, "float": float, "bool": bool, "text": str}[kind](value)


def _kinds(structs: Iterable[Any], **stated: Kind) -> dict[str, Kind]:
    """The type of every field; of two fields of one name the later struct's counts."""
    found = {field.name: _kind(field.type) for struct in structs for field in _fields(struct)}
    return found | stated


def _fields(struct: Any) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def _kind(info: inspect.Type) -> Kind:
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    types = {type(part) for part in parts} - {inspect.NoneType}
    for kind, wanted in _PLAIN.items():
        if types and types <= wanted:
            return kind
    return "json"


_PLAIN: dict[Kind, set[type]] = {
    "int": {inspect.IntType},
    "float": {inspect.IntType, inspect.FloatType},
    "bool": {inspect.BoolType},
    "text": {inspect.StrType, inspect.LiteralType},
}
_PHASES: dict[str, Kind] = dict.fromkeys((f"{phase}_s" for phase in PHASES), "float")
_SAID: dict[str, Kind] = dict.fromkeys(("study", "suite", "steady", "reject", "cause"), "text")
_LAUNCH_KINDS = _kinds((Cut, Window, LaunchRecord, Case), window_steps="int", stand_ins="json", devices="int",
    global_batch="int", ln_samples_per_s="float", energy_per_sample_j="float", comparable="bool", reference="bool",
    **_SAID, **_PHASES,
)  # fmt: skip
_RANK_KINDS = _kinds((LaunchRecord, RankSummary, Samples, RankMemory, Effective), study="text", **_PHASES)
_STEP_KINDS: dict[str, Kind] = {
    "study": "text",
    "launch": "text",
    "rank": "int",
    "step": "int",
    "step_s": "float",
    **_PHASES,
    "samples": "int",
    "in_window": "bool",
}
