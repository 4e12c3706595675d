"""Samples that cost nothing to make: what is left is the loader's own work, or a stated sleep."""

import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench.workload import Sample

STRIDE, STARTS = 17, 4096


class RandomSamples(Dataset[tuple[Tensor, Any]]):
    """`length` samples: item i is a view of one seeded pool of random numbers, at a place set by i.

    Items are the same for the same index: (float32 tensor of `sample.shape`, normal numbers; label i modulo the
    classes). For tokens they are (int64 ids of shape (T,), each as frequent; the ids that follow).
    """

    def __init__(self, sample: Sample, length: int, seed: int = 0) -> None:
        self.sample = sample
        self.length = length
        self.numel = math.prod(sample.shape)
        generator = torch.Generator().manual_seed(seed)
        if sample.tokens:
            self.pool = torch.randint(sample.classes, (self.numel + 1 + STARTS,), generator=generator)
        else:
            self.pool = torch.randn(self.numel + STARTS, generator=generator)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        start = index * STRIDE % STARTS
        inputs = self.pool[start : start + self.numel]
        if self.sample.tokens:
            return inputs, self.pool[start + 1 : start + 1 + self.numel]
        return inputs.view(self.sample.shape), index % self.sample.classes


class PacedSamples(RandomSamples):
    """Random samples that take `item_s` each: a batch of n arrives n x `item_s` after it was asked for."""

    def __init__(self, sample: Sample, length: int, item_s: float) -> None:
        super().__init__(sample, length)
        self.item_s = item_s

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        item: tuple[Tensor, Any] = self.__getitems__([index])[0]
        return item

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The items of a batch, as DataLoader asks for them; one deadline, so nothing adds up."""
        deadline_s = time.perf_counter() + len(indices) * self.item_s
        items = [super(PacedSamples, self).__getitem__(index) for index in indices]
        time.sleep(max(0.0, deadline_s - time.perf_counter()))
        return items
