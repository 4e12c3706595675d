"""Plain data as YAML that a person can edit: block style, strings quoted as in JSON wherever they might be read otherwise."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*", re.ASCII)
WORDS = (
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "null",
    "none",
    "y",
    "n",
)  # of YAML's own, in its versions


def document(data: Mapping[str, Any]) -> str:
    """One document. Values are mappings, sequences, strings, numbers, booleans, None; empty ones stand as in JSON.

    Keys are names: YAML reads none that takes more than 1,024 characters.
    """
    return "\n".join(_lines(data)) + "\n"


def _lines(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from _entry(f"{scalar(key)}:", value)
    elif isinstance(data, Sequence) and not isinstance(data, str) and data:
        for value in data:
            first, *rest = _lines(value)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield scalar(data)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence) or not value:
        yield f"{key} {scalar(value)}"
    else:
        yield key
        yield from (f"  {line}" for line in _lines(value))


def scalar(value: Any) -> str:
    """A value on one line. JSON is YAML; a word that means only itself needs no quotes."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return re.sub(r"[^ -~]", _escape, json.dumps(value, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    """A character as YAML writes it; JSON's own way, a surrogate pair, would be read as two."""
    code = ord(found[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
