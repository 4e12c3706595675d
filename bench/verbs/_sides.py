"""What BASE and NEW mean: studies, files of other programs, or one folder that holds both sides."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.errors import UsageError

if TYPE_CHECKING:
    from bench.ab_file import AbHeader
    from bench.compared import Allocation


class Sides(NamedTuple):
    """Both sides, whether blocks pair them, and the margin that they are judged by."""

    base: "list[Allocation]"
    new: "list[Allocation]"
    paired: bool
    delta: float


def find(base: str, new: str | None, asked: float | None, usual: float) -> Sides:
    """Read both sides. Each is one name, or several with commas between; without NEW a folder of `scalemark ab`.

    The margin is the one that is `asked` for, else the one that such a folder was run with, else the `usual` one.
    Raises UsageError for what is neither a study nor a file that can be imported, and where a side is missing.
    """
    both = None if new else _interleaved(base, asked)
    if both is not None:
        return both
    if new is None:
        raise UsageError(
            f"compare {base}: against what? name two sides (compare BASE NEW), or a folder that scalemark ab has written"
        )
    delta = asked or usual
    return Sides(_side(base, delta), _side(new, delta), False, delta)


def _interleaved(name: str, asked: float | None) -> Sides | None:
    from bench import ab_file

    root = _both(name)
    if root is None:
        return None
    header = ab_file.read(root)
    return interleaved(root, header, asked or header.margin)


def interleaved(root: Path, header: "AbHeader", delta: float) -> Sides:
    """Both sides of a folder of `scalemark ab`, each with the environment that it ran in. Raises UsageError as Store does."""
    import dataclasses

    from bench import compared

    base, new = (
        dataclasses.replace(compared.read(store, delta), environment=side.name)
        for store, side in zip(header.stores(root), (header.base, header.new), strict=True)
    )
    return Sides([base], [new], True, delta)


def _both(name: str) -> Path | None:
    """The folder of that name that scalemark ab has written, or None."""
    from bench.ab_file import FILE
    from bench.store import resolve

    return next((root for root in (Path(name), resolve(name)) if (root / FILE).is_file()), None)


def _side(names: str, delta: float) -> "list[Allocation]":
    """One side. A name that has a comma in it is taken whole where there is something of that name."""
    parts = [names] if Path(names).exists() else [part for part in names.split(",") if part.strip()]
    if not parts:
        raise UsageError(
            f"compare: a side is empty ({names!r}); name a study, or several with commas between"
        )
    return [_allocation(part.strip(), delta) for part in parts]


def _allocation(name: str, delta: float) -> "Allocation":
    from bench import compared
    from bench.store import HEADER, LAUNCHES, open_store

    both = _both(name)
    if both is not None:
        raise UsageError(
            f"{both}: holds both sides; compare it alone, or one of its studies ({both / 'base'})"
        )
    path = Path(name)
    if path.is_file() and path.name not in (HEADER, LAUNCHES):
        return _imported(path)
    return compared.read(open_store(name), delta)


def _imported(path: Path) -> "Allocation":
    from bench import plugins

    importers: Sequence[plugins.Importer] = [
        plugins.load("importers", name) for name in plugins.names("importers")
    ]
    for importer in importers:
        if path.suffix == importer.suffix:
            return importer.read(path)
    suffixes = " or ".join(sorted({importer.suffix for importer in importers}))
    raise UsageError(
        f"{plugins.clip(str(path), 200)}: neither a study nor a file ending in {suffixes}; scalemark list importers has"
        " what can be read"
    )
