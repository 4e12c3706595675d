"""How a step is taken: precision, gradient accumulation, compilation, optimizer; from a case to a Training."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from bench.case import Case
from bench.loop import Training
from bench.place import Place
from bench.plugins import Strategy
from bench.workload import Workload, sgd

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
COMPILE_STEPS = (
    3  # the first compiles, the second may again (the gradients are there now), the third shows it
)


def set_precision(case: Case) -> None:
    """Whether float32 products may be computed in TF32: never under fp32, always under tf32, else torch's own way.

    torch's own way differs by operation: convolutions on CUDA may, matrix products may not.
    """
    if case.precision in ("fp32", "tf32"):
        allow = case.precision == "tf32"
        # both of torch's two interfaces to these switches can be read afterwards; the newer one alone breaks the older
        torch.set_float32_matmul_precision("high" if allow else "highest")
        torch.backends.cudnn.allow_tf32 = allow


def compiled(case: Case, model: nn.Module) -> nn.Module:
    """The model, or a block of it, through torch.compile, where the case asks for it.

    Inside DDP, not around it: seen, dynamo leaves DDP's forward and then passes over a plain Sequential in it.
    """
    if case.compile is False:
        return model
    mode = None if case.compile is True else case.compile
    return torch.compile(model, mode=mode)  # type: ignore[return-value]


def make_optimizer(
    case: Case, workload: Workload, strategy: Strategy, model: nn.Module
) -> torch.optim.Optimizer:
    """The case's optimizer, or else the workload's, as the strategy spreads it."""
    make = _maker(case, workload)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if strategy.optimizer is not None:
        return strategy.optimizer(make, parameters)
    return make(parameters)


def _maker(case: Case, workload: Workload) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    """SGD and AdamW as the field uses them; fused ones do their work in one kernel a parameter group."""
    fused = True if case.fused else None
    if case.optimizer == "sgd":
        return partial(sgd, fused=fused)
    if case.optimizer == "adamw":
        return partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.01, fused=fused)
    return workload.optimizer


def make_training(
    case: Case,
    workload: Workload,
    place: Place,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Any],
    to_device: Callable[[Any], Any],
) -> Training:
    """One step's parts as functions: loss under autocast, backward (scaled), optimizer step and zero_grad.

    The gradient of a step is the mean over its micro-batches, so that accumulation trains as one large batch
    would. fp16 scales the loss against underflow (torch.amp.GradScaler).
    """
    dtype, kind = AUTOCAST.get(case.precision or ""), place.device.type
    scaler = torch.amp.GradScaler(kind) if case.precision == "fp16" else None
    parts = case.grad_accumulation
    loss_of = workload.loss

    def loss(batch: Any) -> Any:
        if dtype is None:
            found = loss_of(model, batch)
        else:
            with torch.autocast(kind, dtype):
                found = loss_of(model, batch)
        return found / parts if parts > 1 else found

    def backward(found: Any) -> None:
        if scaler is None:
            found.backward()
        else:
            scaler.scale(found).backward()

    def step() -> None:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return Training(
        batches=batches,
        to_device=to_device,
        loss=loss,
        backward=backward,
        step=step,
        count=workload.samples,
        micro_batches=parts,
        unsynchronised=_unsynchronised(model),
        scaler=scaler,
    )


def _unsynchronised(model: nn.Module) -> Callable[[], AbstractContextManager[Any]]:
    """What keeps gradients local in all micro-batches but the last."""
    inner: Any = unwrapped(model)
    if hasattr(inner, "no_sync"):  # DDP
        return inner.no_sync
    if hasattr(inner, "set_requires_gradient_sync"):  # fully_shard
        return lambda: _FsdpLocal(inner)
    return nullcontext


class _FsdpLocal(AbstractContextManager[None]):
    """Gradients stay unreduced inside, and are reduced in the first backward outside."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._model.set_requires_gradient_sync(False)

    def __exit__(self, *_: object) -> None:
        self._model.set_requires_gradient_sync(True)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that torch.compile wraps, or the module itself."""
    if hasattr(
        model, "set_requires_gradient_sync"
    ):  # fully_shard around a compiled module: that is what shards
        return model
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def end_compile_workers() -> None:
    """Inductor's compile processes stay around when their work is done; nothing is compiled in a window."""
    from torch._inductor.async_compile import shutdown_compile_workers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shutdown_compile_workers()
