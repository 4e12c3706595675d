"""From a case to something that trains: model, wrapper, data, loader; and what really came of it."""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from bench.case import Case
from bench.environment import device_uuid
from bench.errors import UsageError
from bench.options import data_plugin
from bench.place import Place
from bench.plugins import Strategy
from bench.records import Effective
from bench.workload import Workload


@dataclass
class Source:
    """Where batches come from. `loader` is None for a batch that lies on the device already."""

    batches: Iterator[Any]
    loader: DataLoader[Any] | None
    sampler: DistributedSampler[Any] | None
    dataset_len: int | None
    epochs: list[int]

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches this rank gets in an epoch, where the data set has a length."""
        return len(self.loader) if self.loader is not None and self.dataset_len is not None else None


def make_model(case: Case, workload: Workload, strategy: Strategy, place: Place) -> nn.Module:
    """The model under its strategy, in training mode."""
    wrapped: nn.Module = strategy.wrap(workload.model, case, place)
    return wrapped.train()


def make_source(case: Case, workload: Workload, strategy: Strategy, place: Place) -> Source:
    """Batches for this rank, without end: an epoch after the other, each shuffled anew."""
    plugin, _ = data_plugin(case.data)
    dataset = _dataset(case, workload)
    batch = process_batch(case, strategy)
    if not plugin.loader:
        one = move(_first_batch(dataset, batch, workload), place.device, False)
        return Source(itertools.repeat(one), None, None, None, [1])
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
    source = Source(iter(()), loader, sampler, length, [0])
    if source.steps_per_epoch == 0:
        raise UsageError(
            f"data set of {length} samples, {place.world_size} ranks, batch {batch}: no whole batch a rank;"
            " lower batch or ranks, or bring more data"
        )
    source.batches = _epochs(source)
    return source


def process_batch(case: Case, strategy: Strategy) -> int:
    """Samples a step that one process loads: all of them where one process drives every device."""
    return case.global_batch if strategy.single_process else case.device_batch


def move(batch: Any, device: torch.device, non_blocking: bool) -> Any:
    """The batch with every tensor in it on `device`; other values as they are."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, dict):
        return {key: move(value, device, non_blocking) for key, value in batch.items()}
    if hasattr(batch, "to") and not isinstance(batch, list | tuple):
        return _to(batch, device, non_blocking)  # a batch class of a library: it knows its tensors
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device, non_blocking) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(value, device, non_blocking) for value in batch)
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


def effective(
    case: Case,
    strategy: Strategy,
    place: Place,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    first_batch: Any,
) -> Effective:
    """What runs, read back from the objects that run it."""
    loader = source.loader
    norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    synced = [layer for layer in norms if "Sync" in type(layer).__name__]
    parameters = list(model.parameters())
    distributed = torch.distributed.is_initialized()
    stand_ins = _stand_ins(case, model, synced)
    return Effective(
        wrapper=type(model).__name__,
        implementation="reference" if any("reference" in name for name in stand_ins) else "torch",
        stand_ins=stand_ins,
        world_size=torch.distributed.get_world_size() if distributed else 1,
        backend=torch.distributed.get_backend() if distributed else None,
        device=str(place.device),
        device_name=place.module.get_device_name(place.device) if place.accelerated else None,
        device_uuids=_uuids(place),
        devices_used=_devices_used(case, strategy, model, place),
        chunks=getattr(model, "chunks", None) or None,
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        affinity=tuple(sorted(os.sched_getaffinity(0))),
        batch_norm_layers=len(norms),
        sync_bn_layers=len(synced),
        sync_bn=type(synced[0]).__name__ if synced else None,
        num_workers=loader.num_workers if loader else None,
        pinned=_pinned(first_batch) if loader else None,
        prefetch_factor=loader.prefetch_factor if loader else None,
        persistent_workers=loader.persistent_workers if loader else None,
        batch=loader.batch_size if loader and loader.batch_size else process_batch(case, strategy),
        batch_bytes=tensor_bytes(first_batch),
        parameters=sum(p.numel() for p in parameters),
        gradient_bytes=sum(p.numel() * p.element_size() for p in parameters if p.requires_grad),
        optimizer=type(optimizer).__name__,
        precision=str(parameters[0].dtype).removeprefix("torch.") if parameters else "none",
        weights_hash=weights_hash(model),
    )


def weights_hash(model: nn.Module) -> str:
    """A hash of all parameters and buffers: equal weights, equal hash, whatever the wrapper."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, Tensor):
            continue  # extra state of a library's layers
        digest.update(name.removeprefix("module.").encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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


def _epochs(source: Source) -> Iterator[Any]:
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


def _stand_ins(case: Case, model: nn.Module, synced: list[Any]) -> tuple[str, ...]:
    """Names of everything that replaces the real thing, for rows and report."""
    from bench import plugins

    found = []
    if type(model).__name__.startswith("Reference"):
        found.append("reference DataParallel on CPU")
    if synced and type(synced[0]).__name__.startswith("Reference"):
        found.append("reference SyncBN on CPU")
    if ":" not in case.model and plugins.load("models", case.model).stand_in:
        found.append(f"{case.model} model")
    if data_plugin(case.data)[0].stand_in:
        found.append(f"{case.data} data")
    return tuple(found)


def _devices_used(case: Case, strategy: Strategy, model: nn.Module, place: Place) -> int:
    if not strategy.single_process:
        return 1
    if not place.accelerated:
        return getattr(model, "replicas", 1)
    ids = getattr(model, "device_ids", None)
    return len(ids) if ids else 1


def _uuids(place: Place) -> tuple[str, ...]:
    if place.device.type != "cuda":
        return ()
    found = (device_uuid("cuda", torch.cuda.get_device_properties(d).uuid) for d in place.devices)
    return tuple(uuid for uuid in found if uuid)


def _pinned(batch: Any) -> bool | None:
    """Whether the batch's first tensor is in page-locked memory; None without a tensor."""
    if isinstance(batch, Tensor):
        return batch.is_pinned() if torch.accelerator.is_available() else False
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((found for value in batch if (found := _pinned(value)) is not None), None)
    return None
