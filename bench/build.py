"""From a case to something that trains: model, wrapper, data, loader."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from bench import pagecache
from bench.case import Case
from bench.errors import UsageError
from bench.options import data_plugin
from bench.place import Place
from bench.plugins import Strategy
from bench.recipe import compiled
from bench.workload import Workload


@dataclass
class Source:
    """Where batches come from. `loader` is None for a batch that lies on the device already."""

    batches: Iterator[Any]
    loader: DataLoader[Any] | None
    sampler: DistributedSampler[Any] | None
    dataset_len: int | None
    epochs: list[int]
    files: tuple[str, ...] = ()  # what the data set reads, where that is known

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches this rank gets in an epoch, where the data set has a length."""
        return len(self.loader) if self.loader is not None and self.dataset_len is not None else None


def make_model(case: Case, workload: Workload, strategy: Strategy, place: Place) -> nn.Module:
    """The model under its strategy, in training mode, compiled where the case asks for it."""
    model = workload.model
    if case.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not strategy.compiles:
        model = compiled(case, model)
    wrapped: nn.Module = strategy.wrap(model, case, place)
    return wrapped.train()


def make_source(case: Case, workload: Workload, strategy: Strategy, place: Place) -> Source:
    """Batches for this rank, without end: an epoch after the other, each shuffled anew."""
    plugin, _ = data_plugin(case.data)
    dataset = _dataset(case, workload)
    batch = process_batch(case, strategy)
    if not plugin.loader:
        one = move(_first_batch(dataset, batch, workload), place.device, case)
        return Source(itertools.repeat(one), None, None, None, [1])
    prepare_cache(case, dataset, place)
    sampler = _sampler(dataset, case, place)
    loader = DataLoader(
        dataset,
        batch_size=batch,
        sampler=sampler,
        drop_last=True,
        collate_fn=workload.collate,
        num_workers=case.num_workers,
        pin_memory=case.pin_memory,
        generator=torch.Generator().manual_seed(case.seed * 1009 + place.rank),
        worker_init_fn=_end_with_parent,
        **_given(prefetch_factor=case.prefetch_factor, persistent_workers=case.persistent_workers),
    )
    length = len(dataset)  # type: ignore[arg-type]
    source = Source(iter(()), loader, sampler, length, [0], tuple(getattr(dataset, "files", ())))
    if source.steps_per_epoch == 0:
        raise UsageError(
            f"data set of {length} samples, {place.world_size} ranks, batch {batch}: no whole batch a rank;"
            " lower batch or ranks, or bring more data"
        )
    source.batches = endless(source)
    return source


def process_batch(case: Case, strategy: Strategy) -> int:
    """Samples of a micro-batch that one process loads: all of them where one process drives every device."""
    return case.micro_batch if strategy.single_process else case.device_batch


def move(batch: Any, device: torch.device, case: Case) -> Any:
    """The batch with every tensor in it on `device`, images in channels_last where asked; other values as they are."""
    if isinstance(batch, Tensor):
        layout = torch.channels_last if case.channels_last and batch.dim() == 4 else torch.preserve_format
        return batch.to(device, non_blocking=case.non_blocking, memory_format=layout)
    if isinstance(batch, dict):
        return {key: move(value, device, case) for key, value in batch.items()}
    if hasattr(batch, "to") and not isinstance(batch, list | tuple):
        return _to(batch, device, case.non_blocking)  # a batch class of a library: it knows its tensors
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device, case) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(value, device, case) for value in batch)
    return batch


def tensor_bytes(batch: Any) -> int:
    """Bytes of all tensors in a batch."""
    if isinstance(batch, Tensor):
        return batch.numel() * batch.element_size()
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return sum(tensor_bytes(part) for part in parts)


def _to(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    try:
        return batch.to(device, non_blocking=non_blocking)
    except TypeError:  # most such classes take the device only
        return batch.to(device)


def prepare_cache(case: Case, dataset: Any, place: Place) -> None:
    """Cold or warm files, before anything is loaded: one rank a node does it, the others wait for it."""
    if case.page_cache is None:
        return
    if place.local_rank == 0:
        for path in dataset.files:
            (pagecache.evict if case.page_cache == "cold" else pagecache.warm)(path)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def _dataset(case: Case, workload: Workload) -> Dataset[Any]:
    plugin, _ = data_plugin(case.data)
    own = workload.dataset
    if own is not None and (case.data == "own" or not plugin.loader):
        return own
    if case.data == "own":
        raise UsageError(
            f"model {case.model!r} brings no data set: return Workload(dataset=...) or set data=synthetic"
        )
    if workload.sample is None:
        raise UsageError(
            f"model {case.model!r} with data {case.data!r}: the shape of a sample is not known;"
            " return Workload(sample=Sample(shape, classes)) or set data=own"
        )
    return plugin.make(case, workload.sample)


def _first_batch(dataset: Dataset[Any], batch: int, workload: Workload) -> Any:
    """One collated batch of the first samples, repeated where there are fewer."""
    collate = workload.collate or default_collate
    return collate([dataset[index % len(dataset)] for index in range(batch)])  # type: ignore[arg-type]


def _sampler(dataset: Dataset[Any], case: Case, place: Place) -> DistributedSampler[Any]:
    """One sampler for every strategy, so that the base shuffles as the ranks do."""
    return DistributedSampler(dataset, place.world_size, place.rank, shuffle=True, seed=case.seed)


def endless(source: Source) -> Iterator[Any]:
    """Batches of the source's loader, an epoch after the other, each in an order of its own."""
    assert source.loader is not None
    for epoch in itertools.count():
        if source.sampler is not None:
            source.sampler.set_epoch(epoch)
        source.epochs[0] = epoch + 1
        yield from source.loader


def _end_with_parent(_: int) -> None:
    """A loader worker ends when its rank does, however that ends (Linux: PR_SET_PDEATHSIG)."""
    import ctypes
    import signal

    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(1, int(signal.SIGKILL))


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
