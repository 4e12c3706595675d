"""Studies -> files of another format, all of them or none."""

import os
from collections.abc import Sequence
from pathlib import Path

from bench import plugins
from bench.errors import UsageError
from bench.plugins import Exporter, clip
from bench.store import Store

OTHERS = (".csv", ".parquet", ".json", ".html")  # what a folder is hardly meant to be called


def write(format_: str, stores: Sequence[Store], place: Path, steps: bool = False) -> list[Path]:
    """Write studies in a format by name, and return the files, new ones or in place of older ones.

    `place` is a folder, or a file where its name ends as the format's files do and there is just one.
    Raises UsageError for an unknown format, for studies that cannot be written in it, and for a place that
    does not fit or cannot be written.
    """
    plugins.check_name("exporters", format_, where="--format: ")
    exporter: Exporter = plugins.load("exporters", format_)
    if steps and not exporter.tables:
        raise UsageError(f"--steps: {format_} has no table of steps; csv and parquet have one")
    stores = list({store.root.resolve(): store for store in stores}.values())
    files = exporter.files(stores, steps)
    paths = _paths(format_, exporter.suffix, list(files), place)
    try:
        _put(dict(zip(paths, files.values(), strict=True)))
    except OSError as error:
        where, why = clip(str(place), 200), error.strerror or error
        raise UsageError(f"{where}: cannot be written: {why}; choose another place by -o") from None
    return paths


def _paths(format_: str, suffix: str, names: Sequence[str], place: Path) -> list[Path]:
    if place.is_dir() or place.suffix not in OTHERS:
        return [place / name for name in names]
    where = f"-o {clip(str(place))}"
    if place.suffix != suffix:
        raise UsageError(f"{where}: {format_} files end in {suffix}; give such a name, or a folder")
    if len(names) > 1:
        raise UsageError(f"{where}: these are {len(names)} files ({', '.join(names)}); give a folder")
    return [place]


def _put(files: dict[Path, bytes]) -> None:
    """Write each file under another name first; only when all are there do they get their own."""
    temporary = {path: path.with_name(f".{os.getpid()}-{number}") for number, path in enumerate(files)}
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(0, "a folder has this name", str(path))
            temporary[path].write_bytes(data)
        for path, written in temporary.items():
            os.replace(written, path)
    finally:
        for written in temporary.values():
            written.unlink(missing_ok=True)
