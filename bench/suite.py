"""A suite: TOML with [case], [base], [matrix] and [[exclude]], or a list of parts; expanded into cases.

`auto` stands for what fits the host: the model, its data, its batch, the rank counts, the worker counts.
"""

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import plugins, settings
from bench.case import FIELDS, OF_STRATEGY, Case
from bench.errors import UsageError
from bench.machine import Host, device_kind, slots
from bench.options import model_plugin

TABLES = ("case", "base", "matrix", "exclude", "title", "parts")
ARGS = ("model_args", "data_args")
MAX_CELLS = 10_000


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of cells, before the host is known. Levels of `matrix` are lists or "auto"."""

    name: str
    title: str = ""
    case: dict[str, Any] = {}
    base: dict[str, Any] | None = None
    matrix: dict[str, Any] = {}
    exclude: tuple[dict[str, Any], ...] = ()
    parts: tuple[str, ...] = ()


def load(name_or_path: str) -> Suite:
    """A built-in suite by name, or one from a TOML file. Raises UsageError for anything wrong in it."""
    path = Path(name_or_path)
    if name_or_path in plugins.names("suites"):
        path = Path(__file__).parent / "suites" / f"{name_or_path}.toml"
    elif path.suffix != ".toml":
        raise UsageError(plugins.unknown("suite", name_or_path, plugins.names("suites")) + "; or a file.toml")
    return _parse(path)


def _parse(path: Path) -> Suite:
    try:
        text = path.read_bytes().decode()
        raw = tomllib.loads(text)
    except OSError as error:
        raise UsageError(
            f"suite {path}: cannot be read ({error.strerror}); give a suite's name or a TOML file"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"suite {path}: not TOML: {plugins.clip(str(error), 200)}") from None
    for key in raw:
        if key not in TABLES:
            raise UsageError(plugins.unknown(f"suite {path}", key, TABLES))
    raw = {name: _dotted(table) if isinstance(table, dict) else table for name, table in raw.items()}
    try:
        suite = msgspec.convert({"name": path.stem, **raw}, Suite)
    except msgspec.ValidationError as error:
        raise UsageError(f"suite {path}: {error}") from None
    if suite.parts and (suite.case or suite.matrix or suite.base is not None):
        raise UsageError(
            f"suite {path}: parts stand instead of [case], [base] and [matrix]: use --set, or write the cells out"
        )
    if not (suite.parts or suite.case or suite.matrix or suite.base):
        raise UsageError(f"suite {path}: no [case], [matrix] or parts: nothing to run")
    for part in suite.parts:
        plugins.check_name("suites", part, where=f"suite {path}: parts: ")
    for where, table in _tables(suite):
        for field in table:
            _check_field(f"suite {path}: {where}", field)
    return suite


def _dotted(table: dict[str, Any]) -> dict[str, Any]:
    """`[matrix.model_args] width = ...` as the axis `model_args.width`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = value if key in ARGS and isinstance(value, dict) else None
        flat |= {f"{key}.{name}": one for name, one in inner.items()} if inner is not None else {key: value}
    return flat


def _tables(suite: Suite) -> list[tuple[str, dict[str, Any]]]:
    excludes = [("[[exclude]]", table) for table in suite.exclude]
    return [("[case]", suite.case), ("[base]", suite.base or {}), ("[matrix]", suite.matrix), *excludes]


def _check_field(where: str, field: str) -> None:
    head, dot, _ = field.partition(".")
    if (field not in FIELDS and not dot) or (dot and head not in ARGS):
        raise UsageError(plugins.unknown(where, field, FIELDS))


def override(suite: Suite, sets: Sequence[str]) -> Suite:
    """The suite with `axis=v1,v2` applied: several values make or replace an axis, one value sets it."""
    case, matrix, base = dict(suite.case), dict(suite.matrix), dict(suite.base or {})
    for text in sets:
        field, equals, values = text.partition("=")
        field = field.strip()
        if not equals or not values.strip():
            raise UsageError(f"--set {plugins.clip(text)!r}: write axis=value or axis=v1,v2")
        _check_field("--set", field)
        levels = [_scalar(value.strip()) for value in values.split(",")]
        matrix.pop(field, None)
        if field not in OF_STRATEGY:
            base.pop(field, None)
        if len(levels) == 1:
            case[field] = levels[0]
        else:
            case.pop(field, None)
            matrix[field] = levels
    return msgspec.structs.replace(
        suite, case=case, matrix=matrix, base=base if suite.base is not None else None
    )


def _scalar(text: str) -> Any:
    """true, 12, 0.5, none or a word."""
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return settings.spelt(text)
    return value if isinstance(value, bool | int | float | str) else text


def expand(
    suite: Suite,
    host: Host,
    nproc: int | None = None,
    nodes: int = 1,
    link: str | None = None,
    spread: bool = True,
) -> list[Case]:
    """All cases of a suite on this host, base first, each once. Excluded combinations are gone.

    `nproc` is the largest rank count that `auto` goes up to (default: the device slots of the host). With
    `spread`, what can go over several runs on 1, 2, 4, ... of the `nodes` there are, in a suite that says nothing of
    them. `link` is that of cases of several nodes, where the suite names none.
    """
    limit = nproc or slots(host)
    matrix = suite.matrix
    spread = spread and nodes > 1 and not says(suite, "nodes")
    if spread:
        matrix = {"nodes": "auto", **matrix}
    axes = {
        field: _doubled(levels, nodes) if field == "nodes" else _levels(field, levels, host, limit)
        for field, levels in matrix.items()
    }
    count = 1
    for levels in axes.values():
        count *= max(len(levels), 1)
    if count > MAX_CELLS:
        raise UsageError(f"suite {suite.name}: {count} cells; at most {MAX_CELLS}: give fewer levels")
    cases = [_case(suite, suite.case | table, host, limit) for table in _crossed(axes)]
    if spread:
        cases = [case for case in cases if case.nodes == 1 or _collective(case)]
    if link is not None and not says(suite, "link"):
        cases = [msgspec.structs.replace(case, link=link) if case.nodes > 1 else case for case in cases]
    cases = [case for case in cases if not excluded(suite, case)]
    if suite.base is not None:
        shared = {k: v for k, v in suite.case.items() if k not in OF_STRATEGY} | suite.base
        free = {k: v for k, v in axes.items() if k not in suite.base and k not in OF_STRATEGY}
        cases = [_case(suite, shared | table, host, limit) for table in _crossed(free)] + cases
    return list({case.id: case for case in cases}.values())


def factors(suites: Sequence[Suite], cases: Sequence[Case]) -> dict[str, tuple[Any, ...]]:
    """The fields that differ between the cases, with their levels in order of appearance."""
    found: dict[str, tuple[Any, ...]] = {}
    for field in FIELDS:
        if field not in ARGS:
            levels = dict.fromkeys(getattr(case, field) for case in cases)
            if len(levels) > 1:
                found[field] = tuple(levels)
    return found


def chooses_data(suite: Suite) -> bool:
    """Whether a suite leaves it to `auto` where batches come from, of all cells or of some, and never says `own`."""
    asked = [suite.matrix.get("data", suite.case.get("data", "auto")), (suite.base or {}).get("data", [])]
    named = [name for names in asked for name in (names if isinstance(names, list) else [names])]
    return "auto" in named and "own" not in named


def doubling(limit: int) -> list[int]:
    """1, 2, 4, ... and the limit itself."""
    counts = [2**k for k in range(limit.bit_length()) if 2**k <= limit]
    return counts if counts[-1] == limit else [*counts, limit]


def _crossed(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of levels."""
    return [dict(zip(axes, levels, strict=True)) for levels in itertools.product(*axes.values())]


def says(suite: Suite, field: str) -> bool:
    """Whether a suite has a word on a field."""
    return field in suite.case or field in suite.matrix


def _collective(case: Case) -> bool:
    plugins.check_name("strategies", case.strategy)
    return bool(plugins.load("strategies", case.strategy).collective)


def _doubled(levels: Any, most: int) -> list[Any]:
    """Node counts: those of the suite, or 1, 2, 4, ... for `auto`."""
    if levels == "auto":
        return doubling(most)
    return _listed("nodes", levels)


def _levels(field: str, levels: Any, host: Host, limit: int) -> list[Any]:
    if levels == "auto" and field == "ranks":
        return doubling(limit)
    if levels == "auto" and field == "num_workers":
        return [n for n in (0, 1, 2, 4, 8, 16) if n <= host.cpus_usable]
    return _listed(field, levels)


def _listed(field: str, levels: Any) -> list[Any]:
    """The levels that an axis names, each once. Raises UsageError for what is no list of values."""
    if not isinstance(levels, list):
        levels = [levels]
    if not levels:
        raise UsageError(f"[matrix] {field}: an empty list; give at least one level")
    for level in levels:
        if not isinstance(level, bool | int | float | str | None):
            raise UsageError(
                f"[matrix] {field}: {plugins.clip(repr(level))} is a {type(level).__name__}; give a list of values"
            )
    return list(dict.fromkeys(levels))


def excluded(suite: Suite, case: Case) -> bool:
    """Whether one of a suite's excludes matches the case."""
    return any(_matches(case, pattern) for pattern in suite.exclude)


def _matches(case: Case, pattern: Mapping[str, Any]) -> bool:
    """Whether every field of an exclude has its value in the case, defaults and `auto` filled in."""
    for key, value in pattern.items():
        head, dot, tail = key.partition(".")
        found = getattr(case, head).get(tail) if dot else getattr(case, head)
        plain = settings.spelt(value) if isinstance(value, str) else value
        if found != plain and found != value:
            return False
    return bool(pattern)


def _case(suite: Suite, table: dict[str, Any], host: Host, limit: int) -> Case:
    """One case with `auto` filled in. Raises UsageError where a value has the wrong type or range."""
    table = _nested(table)
    gpu = device_kind(host) != "cpu"
    if table.get("model", "auto") == "auto":
        table["model"] = "resnet50" if gpu else "resnet-small"
    if table.get("batch", "auto") == "auto":
        strong = 4 if table.get("scaling") == "strong" else 1  # enough for each of four ranks
        table["batch"] = strong * (64 if gpu else 8)
    if table.get("data", "auto") == "auto":
        table["data"] = _data_for(table["model"])
    if table.get("ranks") == "auto":
        table["ranks"] = limit
    case = settings.read(table, f"suite {suite.name}")
    if case.compile is not False and "timeout_s" not in table:
        case = msgspec.structs.replace(case, timeout_s=600.0)  # compiling takes minutes, and counts
    return case


def _nested(table: dict[str, Any]) -> dict[str, Any]:
    """`model_args.width = 8` as part of the table `model_args`."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        head, dot, tail = key.partition(".")
        if dot:
            given = out.get(head, table.get(head, {}))
            if not isinstance(given, dict):
                raise UsageError(
                    f"{head}: {plugins.clip(repr(given))} is no table; set {head}.{tail} and the like"
                )
            out[head] = {**given, tail: value}
        else:
            out.setdefault(key, value)
    return out


def _data_for(model: str) -> str:
    """Photographs for image models, tokens for token models; `own` where the model has to be built to know."""
    found = model_plugin(model)
    if found is None:
        return "own"
    plugin, _ = found
    if plugin.named and not (plugin.image or plugin.tokens):
        return "own"
    return "photos" if plugin.image else "tokens" if plugin.tokens else "synthetic"
