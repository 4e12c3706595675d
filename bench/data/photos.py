"""Real JPEG files through a real decoder: the cost of input without a data set to download.

Files are cut once, seeded, out of the photograph that matplotlib ships, and kept in the user's cache.
"""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.case import Case
from bench.environment import cache_folder
from bench.errors import UsageError
from bench.options import option
from bench.plugins import Data

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from bench.workload import Sample

OPTIONS = {"files": 256, "length": 20_000, "seed": 0}


def make(case: Case, sample: "Sample") -> "Dataset[Any]":
    """`length` samples over `files` files, taken in turn; labels follow from the index."""
    from bench.data._images import ImageFiles, square

    size = square(sample, "photos")
    folder, count = prepare(case), option(case.data_args, OPTIONS, "files")
    files = [folder / f"{number:04d}.jpg" for number in range(count)]
    labels = [number % sample.classes for number in range(count)]
    return ImageFiles(files, labels, length(case), size, cold=case.page_cache == "cold")


def length(case: Case) -> int:
    """Samples an epoch."""
    return int(option(case.data_args, OPTIONS, "length"))


def prepare(case: Case) -> Path:
    """The folder of a case's files, cut now if it is not there."""
    return ensure_photos(*(option(case.data_args, OPTIONS, key) for key in ("files", "seed")))


def ensure_photos(files: int = OPTIONS["files"], seed: int = OPTIONS["seed"]) -> Path:
    """The folder of the files, cut now if it is not there (some seconds). Needs no torch.

    The folder appears whole or not at all: of two processes that cut at once, one wins, and both can read.
    Raises UsageError where the cache cannot be written or lacks files.
    """
    cache = cache_folder()
    folder = cache / f"photos-v1-{seed}-{files}"
    if not folder.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _cut_whole(folder, files, seed)
        except OSError as error:
            raise UsageError(
                f"data 'photos': cannot write {folder} ({error}): set XDG_CACHE_HOME to a folder that can be "
                "written"
            ) from error
    found = sum(1 for _ in folder.glob("*.jpg"))
    if found != files:
        raise UsageError(f"data 'photos': {folder} has {found} files of {files}: remove it, it is cut anew")
    return folder


def _cut_whole(folder: Path, files: int, seed: int) -> None:
    from bench.data._cut import cut

    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        cut(scratch, files, seed)
        scratch.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was first, and its files are the same
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


PLUGIN = Data(
    "JPEG files, decoded, cropped at random and flipped",
    make,
    options=OPTIONS,
    length=length,
    prepare=prepare,
    image=True,
    reads_files=True,
)
