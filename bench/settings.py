"""What each setting of a case may be, in words, and a table of settings as a Case."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from bench import plugins
from bench.case import Case
from bench.errors import UsageError

SPELT = {"true": True, "false": False, "none": None, "null": None}
KIND = {True: "boolean", False: "boolean", None: "null"}  # of schema, for what is spelt


def words(field: str) -> list[str]:
    """What a setting may be: its words, `true` and `false`, `none`, or a kind and its least value."""
    return [str(word).lower() for part in parts(field) for word in _said(part)]


@cache
def parts(field: str) -> list[dict[str, Any]]:
    """The alternatives of a setting in JSON Schema."""
    schema = _properties()[field]
    return schema.get("anyOf") or [schema]


@cache
def default(field: str) -> Any:
    """A setting's default."""
    return _properties()[field]["default"]


def read(table: Mapping[str, Any], where: str) -> Case:
    """A table of settings as a Case; `none`, `true` and `false` may be words in any spelling.

    Raises UsageError for a wrong type, a word that a setting does not know, and numbers that are not finite.
    """
    spelt = {field: _plain(field, value) for field, value in table.items()}
    try:
        case = msgspec.convert(spelt, Case)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_told(error, spelt)}") from None
    numbers = {name: getattr(case, name) for name in Case.__struct_fields__}
    for name, value in {**numbers, **case.model_args, **case.data_args}.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{where}: {name}: {value} is not a finite number")
    return case


def spelt(text: str) -> Any:
    """True, False or None for their words in any spelling; any other text as it is."""
    return SPELT.get(text.lower(), text)


def _plain(field: str, value: Any) -> Any:
    """The value that a word spells, where the setting can have it: `none` is a name where it cannot."""
    if not isinstance(value, str) or field not in _properties():
        return value
    plain = spelt(value)
    if isinstance(plain, str) or any(part.get("type") == KIND[plain] for part in parts(field)):
        return plain
    return value


def _told(error: msgspec.ValidationError, table: Mapping[str, Any]) -> str:
    """msgspec's words, or the known ones of a setting that has a few."""
    text, _, path = str(error).partition(" - at `$.")
    field = path.rstrip("`")
    if field in _properties() and any(
        "enum" in part or part.get("type") == "boolean" for part in parts(field)
    ):
        value = table[field]
        return plugins.unknown(field, value if isinstance(value, str) else repr(value), words(field))
    return f"{field}: {text}" if path else text


@cache
def _properties() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.schema(Case)["$defs"]["Case"]["properties"]
    return found


def _said(part: Mapping[str, Any]) -> list[Any]:
    """The words of one alternative of a setting's schema."""
    if "enum" in part:
        return list(part["enum"])
    plain = {"null": ["none"], "boolean": ["true", "false"], "object": ["a table"], "string": ["text"]}
    least = part.get("minimum", part.get("exclusiveMinimum"))
    return plain.get(part["type"], [part["type"] + (f" from {least}" if least is not None else "")])
