"""The user's own images, `imagefolder:PATH`: one folder a class, as torchvision's ImageFolder reads them."""

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.case import Case
from bench.errors import UsageError
from bench.options import data_plugin, option
from bench.plugins import Data

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from bench.workload import Sample

OPTIONS = {"path": ""}
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def make(case: Case, sample: "Sample") -> "Dataset[Any]":
    """All images, each once an epoch. Raises UsageError where the model has fewer classes than the folder."""
    from bench.data._images import ImageFiles, square

    size = square(sample, case.data)
    folder = path(case)
    files = images(folder)
    classes = sorted({class_of(file, folder) for file in files})
    if len(classes) > sample.classes:
        raise UsageError(
            f"data {case.data!r}: {len(classes)} class folders and a model of {sample.classes} classes: "
            f"set model_args.classes = {len(classes)}"
        )
    label = {name: number for number, name in enumerate(classes)}
    labels = [label[class_of(file, folder)] for file in files]
    return ImageFiles(files, labels, len(files), size, cold=case.page_cache == "cold")


def length(case: Case) -> int:
    """Images in the folder."""
    return len(images(path(case)))


def path(case: Case) -> Path:
    """The folder a case names, after the ':' or as the option `path`. Raises UsageError without one."""
    _, argument = data_plugin(case.data)
    given = argument or option(case.data_args, OPTIONS, "path")
    if not given:
        raise UsageError(f"data {case.data!r}: no folder given; write imagefolder:PATH")
    return Path(given).expanduser()


@cache
def images(folder: Path) -> tuple[Path, ...]:
    """Image files below the class folders, sorted. Raises UsageError where there are none."""
    if not folder.is_dir():
        raise UsageError(
            f"data 'imagefolder:{folder}': no such folder (working directory {os.getcwd()}); "
            "write imagefolder:PATH, with one folder a class in PATH"
        )
    found = [Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names]
    files = [file for file in found if file.suffix.lower() in EXTENSIONS and file.parent != folder]
    if not files:
        raise UsageError(
            f"data 'imagefolder:{folder}': no images in its subfolders; images lie in PATH/CLASS/ and end in "
            + ", ".join(EXTENSIONS)
        )
    return tuple(sorted(files))


def class_of(file: Path, folder: Path) -> str:
    """The name of the class folder a file lies in, directly or deeper."""
    return file.relative_to(folder).parts[0]


PLUGIN = Data(
    "your own images, one folder a class", make, options=OPTIONS, length=length, image=True, reads_files=True
)
