"""What really runs, read off the objects that run it: settings before the window, what only steps show after it."""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules.batchnorm import _BatchNorm

from bench import binding, pagecache
from bench.build import Source, process_batch, tensor_bytes
from bench.case import Case
from bench.environment import device_uuid
from bench.loop import Training
from bench.options import data_plugin, model_plugin
from bench.place import Place
from bench.plugins import Strategy
from bench.recipe import unwrapped
from bench.records import Effective

HOOKS = {
    "fp16_compress_hook": "fp16",
    "bf16_compress_hook": "bf16",
    "powerSGD_hook": "powersgd",
    "powerSGD_hook_serial": "powersgd",
}
WITH_WEIGHTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # what autocast computes in its own type


class Witness:
    """Sees the type in which the first layer with weights computes, in the first forward pass; then it is gone.

    Of a compiled module only the output can be seen, outside its graph: float32 there says nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self.dtype: str | None = None
        compiled = next((m for m in model.modules() if isinstance(m, OptimizedModule)), None)
        self._whole = compiled is not None
        layer = compiled or next((m for m in model.modules() if isinstance(m, WITH_WEIGHTS)), None)
        self._hook = layer.register_forward_hook(self._see) if layer is not None else None

    def _see(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not (self._whole and output.dtype == torch.float32):
            self.dtype = str(output.dtype).removeprefix("torch.")
        if self._hook is not None:
            self._hook.remove()


def effective(
    case: Case,
    strategy: Strategy,
    place: Place,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Source,
    first_batch: Any,
    weights: str | None = None,
) -> Effective:
    """What is known before the first step. `weights`: a hash of them, where they are not to be gathered for it."""
    loader, inner = source.loader, unwrapped(model)
    norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    synced = [layer for layer in norms if "Sync" in type(layer).__name__]
    parameters = list(model.parameters())
    distributed = torch.distributed.is_initialized()
    stand_ins = _stand_ins(case, inner, synced)
    affinity = tuple(sorted(os.sched_getaffinity(0)))
    return Effective(
        wrapper=wrapper_name(inner),
        implementation="reference" if any("reference" in name for name in stand_ins) else "torch",
        stand_ins=stand_ins,
        world_size=torch.distributed.get_world_size() if distributed else 1,
        backend=torch.distributed.get_backend() if distributed else None,
        device=str(place.device),
        device_name=place.module.get_device_name(place.device) if place.accelerated else None,
        device_uuids=_uuids(place),
        devices_used=_devices_used(strategy, inner, place),
        chunks=getattr(inner, "chunks", None) or None,
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        affinity=affinity,
        worker_affinity=_worker_affinity(),
        numa_nodes=binding.nodes_of(affinity),
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
        channels_last=_channels_last(parameters),
        optimizer=optimizer_name(optimizer),
        fused=bool(optimizer.defaults.get("fused")),
        precision=_parameter_precision(parameters, place),
        weights_hash=weights if weights is not None else weights_hash(model),
        **_ddp_options(inner),
    )


def after_window(
    facts: Effective,
    case: Case,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    training: Training,
    source: Source,
    witness: Witness,
) -> Effective:
    """The same, with what could only be seen once steps had been taken."""
    inner = unwrapped(model)
    found: dict[str, Any] = {
        "micro_batches": training.micro_batches,
        "compute_dtype": witness.dtype,
        "loss_scale": training.scaler.get_scale() if training.scaler is not None else None,
        "parameter_bytes": sum(_local_bytes(p) for p in model.parameters()),
        "optimizer_state_bytes": _state_bytes(optimizer),
        "page_cache_share": pagecache.resident_share(source.files) if source.files else None,
        **_buckets(inner),
    }
    if witness.dtype is not None and facts.precision in ("fp32", "tf32", "tf32 convolutions"):
        found["precision"] = {"bfloat16": "bf16", "float16": "fp16"}.get(witness.dtype, facts.precision)
    if chunks := tuple(getattr(inner, "chunks", ()) or ()):  # known only once a batch has been scattered
        found["chunks"] = chunks
    if case.compile is not False:
        found |= _compile_counts()
    return msgspec.structs.replace(facts, **found)


def wrapper_name(model: nn.Module) -> str:
    """The class that was trained; fully_shard makes one for every model, of which only the kind is said."""
    from torch.distributed.fsdp import FSDPModule

    return "FSDPModule" if isinstance(model, FSDPModule) else type(model).__name__


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """SGD, or ZeroRedundancyOptimizer(SGD)."""
    inner = getattr(optimizer, "optim", None)
    name = type(optimizer).__name__
    return f"{name}({type(inner).__name__})" if isinstance(inner, torch.optim.Optimizer) else name


def weights_hash(model: nn.Module) -> str:
    """A hash of all parameters and buffers: equal weights, equal hash, whatever the wrapper."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, Tensor):
            continue  # extra state of a library's layers
        digest.update(name.removeprefix("module.").replace("_orig_mod.", "").encode())
        digest.update(_whole(tensor).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _whole(tensor: Tensor) -> Tensor:
    """The tensor, gathered from all ranks where it is sharded (every rank does this, in the same order)."""
    gather = getattr(tensor, "full_tensor", None)
    return (gather() if gather is not None else tensor).detach()


def _local_bytes(tensor: Tensor) -> int:
    """Bytes of the part of a tensor that this rank holds."""
    local = getattr(tensor, "to_local", None)
    part = local() if local is not None else tensor
    return part.numel() * part.element_size()


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What the optimizer keeps on this rank: momenta and the like."""
    own = getattr(optimizer, "optim", optimizer)
    states = (value for state in own.state.values() for value in state.values())
    return sum(_local_bytes(value) for value in states if isinstance(value, Tensor))


def _stand_ins(case: Case, model: nn.Module, synced: list[Any]) -> tuple[str, ...]:
    """Names of everything that replaces the real thing, for rows and report."""
    found = []
    if type(model).__name__.startswith("Reference"):
        found.append("reference DataParallel on CPU")
    if synced and type(synced[0]).__name__.startswith("Reference"):
        found.append("reference SyncBN on CPU")
    named = model_plugin(case.model)
    if named is not None and named[0].stand_in:
        found.append(f"{case.model} model")
    if case.comm_hook == "powersgd" and torch.distributed.get_backend() == "gloo":
        found.append("PowerSGD over gloo, a bucket at a time")
    if data_plugin(case.data)[0].stand_in:
        found.append(f"{case.data} data")
    return tuple(found)


def _devices_used(strategy: Strategy, model: nn.Module, place: Place) -> int:
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


def _worker_affinity() -> tuple[int, ...] | None:
    """CPUs of the first loader worker: it inherits its rank's, unless the user's code changed that."""
    pids: Iterator[int] = (child.pid for child in multiprocessing.active_children() if child.pid)
    return next((found for pid in pids if (found := binding.affinity_of(pid)) is not None), None)


def _pinned(batch: Any) -> bool | None:
    """Whether the batch's first tensor is in page-locked memory; None without a tensor."""
    if isinstance(batch, Tensor):
        return batch.is_pinned() if torch.accelerator.is_available() else False
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return next((found for value in batch if (found := _pinned(value)) is not None), None)
    return None


def _channels_last(parameters: list[nn.Parameter]) -> bool | None:
    """Whether the weights of convolutions lie channels last; None without such, or where they lie both ways (1 x 1)."""
    shaped = [p for p in parameters if p.dim() == 4 and p.shape[1] > 1 and p.shape[2] * p.shape[3] > 1]
    return shaped[0].is_contiguous(memory_format=torch.channels_last) if shaped else None


def _parameter_precision(parameters: list[nn.Parameter], place: Place) -> str:
    """fp32, tf32, or "tf32 convolutions" (torch's own way on CUDA); for other parameters the name of their type."""
    dtype = parameters[0].dtype if parameters else torch.float32
    if dtype != torch.float32:
        return str(dtype).removeprefix("torch.")
    if place.device.type != "cuda":
        return "fp32"
    # not the older getters: they raise once anybody has used the newer interface
    if torch.backends.cuda.matmul.fp32_precision == "tf32":
        return "tf32"
    convolutions: Any = torch.backends.cudnn
    return "tf32 convolutions" if convolutions.conv.fp32_precision == "tf32" else "fp32"


def _ddp_options(model: nn.Module) -> dict[str, Any]:
    """What DistributedDataParallel was told; nothing without it."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return {}
    return {
        "bucket_cap_bytes": int(model.bucket_bytes_cap),
        "gradient_as_bucket_view": bool(model.gradient_as_bucket_view),
        "static_graph": bool(model.static_graph),
        "find_unused_parameters": bool(model.find_unused_parameters),
        "broadcast_buffers": bool(model.broadcast_buffers),
        "comm_hook": HOOKS.get(hook := model._get_ddp_logging_data().get("comm_hook") or "", hook) or None,
    }


def _buckets(model: nn.Module) -> dict[str, Any]:
    """Sizes of DDP's gradient buckets, in the order in which they are exchanged: rebuilt after the first step."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return {}
    data = model._get_ddp_logging_data()
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return {"buckets_bytes": tuple(int(size) for size in str(text).replace(",", " ").split())}


def _compile_counts() -> dict[str, int]:
    """Graphs that torch.compile made, and places where it had to leave one."""
    from torch._dynamo.utils import counters

    return {
        "compiled_graphs": int(counters["stats"].get("unique_graphs", 0)),
        "graph_breaks": sum(counters["graph_break"].values()) + sum(counters["unimplemented"].values()),
    }
