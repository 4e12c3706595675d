"""Token ids out of a file: the input of a language model, without a text to download.

The file is written once, seeded, and kept in the user's cache. Its ids follow Zipf's law but not one another, so
there is nothing to learn beyond their frequencies.
"""

import os
import tempfile
from contextlib import suppress
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

OPTIONS = {"tokens": 8_000_000, "length": 20_000, "seed": 0}


def make(case: Case, sample: "Sample") -> "Dataset[Any]":
    """`length` samples, windows of one file, side by side. Raises UsageError for a model of anything else."""
    from bench.data._tokens import TokenWindows

    if not sample.tokens:
        raise UsageError(
            f"data 'tokens' gives token ids and the model takes {sample.shape}: "
            "choose a token model, or data 'synthetic' or 'device'"
        )
    cold = case.page_cache == "cold"
    return TokenWindows(prepare(case), length(case), sample.shape[0], sample.classes, cold)


def length(case: Case) -> int:
    """Samples an epoch."""
    return int(option(case.data_args, OPTIONS, "length"))


def prepare(case: Case) -> Path:
    """The file of a case, written now if it is not there."""
    return ensure_tokens(*(option(case.data_args, OPTIONS, key) for key in ("tokens", "seed")))


def ensure_tokens(tokens: int = OPTIONS["tokens"], seed: int = OPTIONS["seed"]) -> Path:
    """The file of 16-bit ids, written now if it is not there (a second). Needs no torch.

    It appears whole or not at all: of two processes that write at once, the last wins, and their files are the
    same. Raises UsageError where the cache cannot be written or the file has another size.
    """
    cache = cache_folder()
    file = cache / f"tokens-v1-{seed}-{tokens}.bin"
    if not file.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _write_whole(file, tokens, seed)
        except OSError as error:
            raise UsageError(
                f"data 'tokens': cannot write {file} ({error}): set XDG_CACHE_HOME to a folder that can be written"
            ) from error
    found = file.stat().st_size
    if found != 2 * tokens:
        raise UsageError(
            f"data 'tokens': {file} has {found} bytes of {2 * tokens}: remove it, it is written anew"
        )
    return file


def _write_whole(file: Path, tokens: int, seed: int) -> None:
    from bench.data._zipf import write_tokens

    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}-", delete=False) as scratch:
        try:
            write_tokens(scratch, tokens, seed)
            scratch.flush()
            os.fsync(scratch.fileno())  # what is not on the disk yet cannot be put out of the page cache
            Path(scratch.name).replace(file)
        finally:
            with suppress(FileNotFoundError):
                Path(scratch.name).unlink()


PLUGIN = Data(
    "windows of a file of token ids",
    make,
    options=OPTIONS,
    length=length,
    prepare=prepare,
    tokens=True,
    reads_files=True,
)
