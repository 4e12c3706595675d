"""Windows of a file of token ids."""

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench.data._zipf import DTYPE
from bench.errors import UsageError
from bench.pagecache import evict


class TokenWindows(Dataset[tuple[Tensor, Tensor]]):
    """`length` samples of a file of 16-bit ids: item i is window i, modulo as many as lie in it side by side.

    Items are (int64 ids of shape (sequence,); the ids that follow, of the same shape). Ids of the file beyond the
    vocabulary are taken modulo its size. The file is opened and one range of it is read for each item, as for
    image files, so nothing is held between items and a copy in a loader worker is as good as the first. `cold`:
    the file is put out of the page cache after each read, so that every read goes to the disk.
    """

    def __init__(self, file: Path, length: int, sequence: int, vocabulary: int, cold: bool = False) -> None:
        self.files = [str(file)]
        self.length = length
        self.sequence = sequence
        self.vocabulary = vocabulary
        self.cold = cold
        tokens = file.stat().st_size // DTYPE.itemsize
        self.windows = (tokens - 1) // sequence  # the last one needs one more id, its last target
        if self.windows < 1:
            raise UsageError(
                f"data 'tokens': {tokens} tokens do not hold a sequence of {sequence} and its targets: "
                "raise data_args.tokens or lower the sequence"
            )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        ids = torch.from_numpy(self._read(index % self.windows).astype(np.int64) % self.vocabulary)
        return ids[:-1], ids[1:]

    def _read(self, window: int) -> np.ndarray:
        """The ids of a window and the one behind it. Raises UsageError where the file has become shorter."""
        wanted = (self.sequence + 1) * DTYPE.itemsize
        descriptor = os.open(self.files[0], os.O_RDONLY | os.O_CLOEXEC)
        try:
            read = os.pread(descriptor, wanted, window * self.sequence * DTYPE.itemsize)
        finally:
            os.close(descriptor)
        if self.cold:
            evict(self.files[0])
        if len(read) != wanted:
            raise UsageError(f"data 'tokens': {self.files[0]} was cut short: remove it, it is written anew")
        return np.frombuffer(read, DTYPE)
