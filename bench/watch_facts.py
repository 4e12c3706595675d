"""What a rank can tell of a loop that is not the suite's own: its place, its settings, its loader, its batches."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from bench import plugins
from bench.build import Source
from bench.case import Case
from bench.place import Place
from bench.readback import Witness, effective
from bench.recipe import unwrapped
from bench.records import Effective, Samples
from bench.watch_checks import MODEL

WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "DataParallel": "dp",
    "FullyShardedDataParallel": "fsdp",
    "FSDPModule": "fsdp",
}
DEFAULT_BUCKET_BYTES = 25 << 20


def check_arguments(model: Any, steps: Any, samples: Any, output: Any) -> None:
    """Raise TypeError or ValueError for what nobody can mean by `watch(...)`."""
    wanted: tuple[tuple[str, Any, Any, str], ...] = (
        ("model", model, nn.Module, "the nn.Module that the loop calls"),
        ("steps", steps, Integral, "how many batches to measure"),
        ("samples", samples, Callable, "a function of a batch"),
        ("output", output, str | os.PathLike | None, "a folder"),
    )
    for name, value, kind, what in wanted:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"watch({name}=...) takes {what}, not {plugins.clip(repr(value))}")
    if steps < 1:
        raise ValueError(f"watch(steps={steps}): 1 or more; from 53 on the end of warm-up is found")


def own_rank() -> int:
    """The rank of this process: in its group, or as its launcher says."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    said = os.environ.get("RANK", "")
    return int(said) if said.isdigit() else 0


def find_place(model: nn.Module) -> Place:
    """Where this rank stands: by its process group, the launcher's variables and the model's device."""
    rank, world = own_rank(), 1
    if dist.is_available() and dist.is_initialized():
        world = dist.get_world_size()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    ids = getattr(unwrapped(model), "device_ids", None) or [device.index or 0]
    return Place(
        rank=rank,
        local_rank=int(os.environ.get("LOCAL_RANK") or rank),
        world_size=world,
        node=int(os.environ.get("GROUP_RANK", "0")),
        device=device,
        devices=tuple(ids) if device.type != "cpu" else (),
    )


def strategy_of(model: nn.Module, optimizer: Any, world: int) -> str:
    """The strategy by the wrapper's class; "own" where several ranks have a plain model."""
    names = {kind.__name__ for kind in type(unwrapped(model)).__mro__}
    found = next((strategy for name, strategy in WRAPPERS.items() if name in names), None)
    if found == "ddp" and type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return "zero1"
    return found or ("own" if world > 1 else "single")


def class_name(model: nn.Module) -> str:
    """The class of the model, without what torch.compile, DDP, DataParallel or FSDP make of it."""
    inner = unwrapped(model)
    kind = type(inner)
    if kind.__name__ in WRAPPERS:
        return class_name(inner.get_submodule("module"))
    sharded = any(base.__name__ == "FSDPModule" for base in kind.__bases__)  # made by fully_shard
    return (kind.__bases__[-1] if sharded else kind).__name__


def settings(
    model: nn.Module, optimizer: Any, loader: Any, batch: Any, witness: Witness, place: Place
) -> Effective:
    """The settings in effect. The hash is of a sample of the parameters: large ones are not copied."""
    strategy = strategy_of(model, optimizer, place.world_size)
    facts = effective(
        Case(model=model_name(model), data="own"),
        plugins.load("strategies", "single" if strategy == "own" else strategy),
        place,
        model,
        optimizer if optimizer is not None else torch.optim.SGD([torch.zeros(1)]),
        Source(iter(()), _torch_loader(loader), None, None, []),
        batch,
        weights=parameters_hash(model),
    )
    mixed = {"bfloat16": "bf16", "float16": "fp16"}.get(witness.dtype or "")
    return msgspec.structs.replace(
        facts,
        optimizer=facts.optimizer if optimizer is not None else "none",
        fused=facts.fused if optimizer is not None else None,
        compute_dtype=witness.dtype,
        precision=mixed if mixed and facts.precision.startswith(("fp32", "tf32")) else facts.precision,
    )


def requested(facts: Effective, model: nn.Module, optimizer: Any, loader: Any, steps: int) -> Case:
    """The case that asks for what is in effect."""
    strategy = strategy_of(model, optimizer, facts.world_size)
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if facts.world_size % nodes:
        nodes = 1
    single_process = strategy == "dp"
    workers = facts.num_workers or 0
    return Case(
        strategy=strategy,
        ranks=facts.devices_used if single_process else facts.world_size // nodes,
        nodes=nodes,
        scaling="strong" if single_process else "weak",
        batch=max(facts.batch, 1),
        model=model_name(model),
        data="own",
        num_workers=workers,
        pin_memory=bool(getattr(loader, "pin_memory", False)),
        prefetch_factor=facts.prefetch_factor if workers and facts.prefetch_factor != 2 else None,
        persistent_workers=True if facts.persistent_workers else None,
        sync_bn=facts.sync_bn_layers > 0,
        steps=steps,
        **_options(facts, model),
    )


def compiled(model: nn.Module) -> bool:
    """Whether torch.compile has any part of the model, by its function or by the module's own method."""
    parts = model.modules()
    return any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None for m in parts)


def model_name(model: nn.Module) -> str:
    """watch:Net, for a model of the class Net."""
    return f"{MODEL}{class_name(model)}"


def _options(facts: Effective, model: nn.Module) -> dict[str, Any]:
    """Settings that are at other than their defaults."""
    cap = facts.bucket_cap_bytes
    found: dict[str, Any] = {
        "precision": facts.precision if facts.precision in ("bf16", "fp16") else None,
        "compile": compiled(model),
        "channels_last": bool(facts.channels_last),
        "fused": bool(facts.fused),
        "bucket_cap_mb": cap / 2**20 if cap and cap != DEFAULT_BUCKET_BYTES else None,
    }
    for name in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters", "broadcast_buffers"):
        if getattr(facts, name) is not None:
            found[name] = getattr(facts, name)
    return found


def counts(loader: Any, place: Place, samples: Sequence[int], passes: int) -> Samples:
    """What the data set holds and what an epoch gives a rank, as far as the loader says."""
    dataset, sampler = getattr(loader, "dataset", None), sampler_of(loader)
    length, per_epoch, padded, dropped = _length(dataset), None, None, None
    known = isinstance(sampler, DistributedSampler) or place.world_size == 1
    if known and length is not None and getattr(loader, "batch_size", None):
        sampled = len(sampler) if sampler is not None else length
        batch = loader.batch_size
        per_epoch = sampled - sampled % batch if loader.drop_last else sampled
        spread = sampled * place.world_size
        padded, dropped = max(spread - length, 0), max(length - spread, 0)
        dropped += (sampled - per_epoch) * place.world_size
    return Samples(
        dataset_len=length,
        per_epoch=per_epoch,
        padded=padded,
        dropped=dropped,
        seen=sum(samples),
        in_window=sum(samples),
        epochs=passes,
    )


def sampler_of(loader: Any) -> Any:
    """The sampler that decides which samples a rank reads."""
    batches = getattr(loader, "batch_sampler", None)
    inner = getattr(batches, "sampler", None)
    return inner if inner is not None else batches or getattr(loader, "sampler", None)


def epoch_of(loader: Any) -> int | None:
    """The epoch of a sampler that shuffles by it; None without such a sampler."""
    sampler = sampler_of(loader)
    if not hasattr(sampler, "set_epoch") or not getattr(sampler, "shuffle", True):
        return None
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) else None


def unshared_sampler(loader: Any) -> str | None:
    """The class of a sampler that gives every rank the whole data set; None where that cannot be told."""
    batches, sampler = getattr(loader, "batch_sampler", None), sampler_of(loader)
    plain = type(batches) is BatchSampler and type(sampler) in (RandomSampler, SequentialSampler)
    if not plain or isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    return type(sampler).__name__


def parameters_hash(model: nn.Module) -> str:
    """A hash of the first values of up to 32 parameters; of none that is sharded."""
    digest = hashlib.blake2b(digest_size=8)
    parameters = [p for p in model.parameters() if not hasattr(p, "full_tensor")]
    for parameter in parameters[:: max(len(parameters) // 32, 1)]:
        values = parameter.detach().reshape(-1)[:256].float().cpu()
        digest.update(values.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def differentiable(output: Any) -> Tensor | None:
    """The first tensor of a forward's output through which gradients come back."""
    if isinstance(output, Tensor):
        return output if output.requires_grad else None
    if dataclasses.is_dataclass(output):
        output = vars(output)
    parts = (
        output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    )
    return next((found for part in parts if (found := differentiable(part)) is not None), None)


def _torch_loader(loader: Any) -> Any:
    """The loader, where it is torch's and batches by itself."""
    named = ("batch_size", "drop_last", "num_workers", "prefetch_factor", "persistent_workers")
    return loader if all(hasattr(loader, name) for name in named) else None


def _length(dataset: Any) -> int | None:
    try:
        return None if isinstance(dataset, IterableDataset) else len(dataset)
    except TypeError:
        return None
