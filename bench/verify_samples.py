"""Do the ranks see the same data set, each its own share of it, in another order every epoch?"""

import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from bench.build import Source, endless
from bench.case import Case
from bench.verify_epochs import epochs, samples
from bench.verify_records import Check
from bench.verify_tensors import digest, everyone
from bench.workload import Workload

MOST = 5_000_000  # samples whose order is looked at
EPOCHS = 4  # whose orders are held against each other
SAMPLES = ("data", "samples", "epochs")


def sampled(case: Case, workload: Workload, source: Source) -> tuple[list[Check], bool]:
    """The checks of data and sampler, and whether the ranks' data sets have one length. All ranks call it together."""
    loader, sampler, length = source.loader, source.sampler, source.dataset_len
    assert loader is not None and sampler is not None and length is not None  # the case has a loader
    lengths = everyone(length)
    if len(set(lengths)) > 1:
        rank = next(r for r, one in enumerate(lengths) if one != lengths[0])
        told = f"the data set depends on the rank: {lengths[0]} samples on rank 0, {lengths[rank]} on rank {rank}"
        rest = [Check(name=name, outcome="cannot tell", detail=told) for name in SAMPLES[1:]]
        return [Check(name="data", outcome="fail", detail=told), *rest], False
    data = _same(case, workload, loader.dataset, length)
    if length > MOST:
        told = f"{length} samples: more than are looked at ({MOST})"
        return [data, *(Check(name=name, outcome="cannot tell", detail=told) for name in SAMPLES[1:])], True
    orders, (again,) = _orders(source, EPOCHS), _orders(source, 1)
    firsts = everyone(orders[0])
    return [
        data,
        samples(firsts, length, loader.batch_size or 1),
        epochs(orders, again),
    ], True


def _orders(source: Source, count: int) -> list[np.ndarray]:
    """This rank's indices of the first epochs: the measured loop's own epochs, of a loader that gives indices."""
    assert source.sampler is not None and source.dataset_len is not None
    indices: DataLoader[Any] = DataLoader(
        range(source.dataset_len),  # type: ignore[arg-type]
        batch_size=max(1, len(source.sampler)),  # an epoch is one batch
        sampler=source.sampler,
        collate_fn=np.array,
        generator=torch.Generator(),
    )
    return list(islice(endless(replace(source, loader=indices, epochs=[0])), count))


def _same(case: Case, workload: Workload, dataset: Any, length: int) -> Check:
    """Whether a few samples are the same on every rank, all random numbers being equal."""
    collate = workload.collate or default_collate
    probes = sorted({0, length // 2, length - 1})
    mine = [_digest(collate([_seeded(dataset, index, case.seed)])) for index in probes]
    again = [_digest(collate([_seeded(dataset, index, case.seed)])) for index in probes]
    torch.manual_seed(case.seed + 1)
    by_rank = everyone((mine, again))
    for own, repeated in by_rank:
        if None in own or own != repeated:
            why = "samples of a class of its own" if None in own else "samples are random beyond the seeds"
            return Check(name="data", outcome="cannot tell", detail=f"{why}: ranks cannot be compared")
    for rank, (own, _) in enumerate(by_rank):
        for index, one, first in zip(probes, own, by_rank[0][0], strict=True):
            if one != first:
                told = (
                    f"the data set depends on the rank: sample {index} of rank {rank} is not that of rank 0"
                )
                return Check(name="data", outcome="fail", detail=told)
    shown = ", ".join(map(str, probes))
    told = (
        f"samples {shown} are the same on every rank"
        if len(by_rank) > 1
        else f"samples {shown} can be had again"
    )
    return Check(name="data", outcome="pass", detail=told)


def _seeded(dataset: Any, index: int, seed: int) -> Any:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    return dataset[index]


def _digest(batch: Any) -> str | None:
    """A hash of all tensors and plain values of a batch; None where there is something else in it."""
    if isinstance(batch, Tensor):
        return digest(batch)
    if isinstance(batch, Mapping):
        batch = [part for key in batch for part in (str(key), batch[key])]
    if isinstance(batch, list | tuple):
        parts = [_digest(part) for part in batch]
        return None if None in parts else "(" + ",".join(filter(None, parts)) + ")"
    return repr(batch) if isinstance(batch, str | bytes | int | float | bool | None) else None
