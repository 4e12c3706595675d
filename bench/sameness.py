"""What must be equal on every node of a study before anything is measured: the suite, torch, the user's code."""

import hashlib
import importlib.machinery
import platform
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import msgspec

from bench import __version__
from bench.case import Case
from bench.options import model_plugin
from bench.records import SCHEMA

REMEDY = "install the same on every node"


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """What a node runs. `source` is a digest of the suite's own files: two checkouts may share a version."""

    scalemark: str
    source: str
    schema: int
    python: str
    torch: str | None
    code: dict[str, str] = {}  # of the user's models, by name: a digest of the files around it


def mine(cases: Iterable[Case] = ()) -> Versions:
    """Those of this node; `cases` name the user's models."""
    models = sorted({case.model for case in cases if model_plugin(case.model) is None})
    return Versions(
        scalemark=__version__,
        source=_source(),
        schema=SCHEMA,
        python=".".join(platform.python_version_tuple()[:2]),
        torch=_torch(),
        code={model: code(model) for model in models},
    )


def differences(ours: Versions, theirs: Versions) -> list[str]:
    """Where a node differs from the leader, in words: `torch 2.12.0, the leader has 2.13.0`."""
    found = [
        f"{name} {getattr(theirs, name)}, the leader has {getattr(ours, name)}"
        for name in ("schema", "scalemark", "python", "torch")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if ours.source != theirs.source and not any(text.startswith("scalemark") for text in found):
        found.append(
            f"other source files of scalemark {theirs.scalemark} ({theirs.source}), the leader has {ours.source}"
        )
    for model in ours.code.keys() & theirs.code.keys():
        if ours.code[model] != theirs.code[model]:
            found.append(f"other code of {model} ({theirs.code[model]}), the leader has {ours.code[model]}")
    return found


def code(model: str) -> str:
    """A digest of the files of a user's model: its module, or its whole top-level package; nothing is imported."""
    top = model.partition(":")[0].partition(".")[0]
    spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, str(Path.cwd())])
    if spec is None:
        return "not found"
    if spec.submodule_search_locations:
        return _digest(Path(next(iter(spec.submodule_search_locations))))
    return _digest(Path(spec.origin)) if spec.origin else "not found"


@cache
def _source() -> str:
    return _digest(Path(__file__).parent)


def _digest(path: Path) -> str:
    """Ten hex digits of a file, or of all Python files and suites below a folder."""
    digest = hashlib.sha256()
    kinds = (".py", ".toml")
    files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix in kinds)
    for file in files:
        digest.update(str(file.relative_to(path) if path.is_dir() else file.name).encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:10]


def _torch() -> str | None:
    """As installed, without importing it: torch.__version__ has the same text."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None
