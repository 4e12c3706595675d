"""A model in DistributedDataParallel as a case asks for it: its options and its communication hook."""

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from bench.case import DDP_OPTIONS, Case
from bench.place import Place
from bench.strategies._sync_bn import convert

_DEFAULT = Case()
POWERSGD_RANK, POWERSGD_START = 1, 2  # torch's rank; plain all-reduce for so few steps that no window has one


def wrap_ddp(model: nn.Module, case: Case, place: Place) -> nn.Module:
    """SyncBN first, then DDP, then the hook. What the case does not change is left to torch."""
    if case.sync_bn:
        model = convert(model, place.accelerated)
    model = model.to(place.device)
    options = {
        name: value for name in DDP_OPTIONS if (value := getattr(case, name)) != getattr(_DEFAULT, name)
    }
    hook = options.pop("comm_hook", None)
    with warnings.catch_warnings():
        # broadcast_buffers has another name from torch 2.13 on, which 2.9 does not know
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        wrapped = DistributedDataParallel(
            model, device_ids=[place.device] if place.accelerated else None, **options
        )
    if hook is not None:
        _register(wrapped, hook)
    return wrapped


def powerSGD_hook_serial(  # noqa: N802 - DDP reports a hook by its name, and checks these types
    state: Any, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD, a bucket at a time, for gloo: nothing overlaps.

    torch's hook starts collectives from gloo's own threads; with two buckets in flight their order differs between
    ranks, and a rank aborts (seen).
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


def _register(model: DistributedDataParallel, hook: str) -> None:
    """A hook of torch.distributed.algorithms: gradients compressed before they are exchanged."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "powersgd":
        state: Any = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START
        )
        serial = torch.distributed.get_backend() == "gloo"
        model.register_comm_hook(state, powerSGD_hook_serial if serial else powerSGD_hook.powerSGD_hook)
    else:
        compress = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
        model.register_comm_hook(None, compress[hook])
