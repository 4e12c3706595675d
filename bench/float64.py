"""A model and its batches in float64, without random numbers: what one process and many ranks can be compared in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class Untellable(Exception):
    """Why nothing can be told of a model."""


class Watch(TorchDispatchMode):
    """Sees every operation: raises Untellable for a collective, and notes one that computes in less than float64."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace:
            raise Untellable(
                f"the model has collectives of its own ({func.name()}): one process cannot run it alone"
            )
        found = func(*args, **(kwargs or {}))
        outputs = found if isinstance(found, list | tuple) else [found]
        takes = any(isinstance(one, Tensor) and one.is_floating_point() for one in args)
        for one in outputs:
            small = isinstance(one, Tensor) and one.is_floating_point() and one.dtype != torch.float64
            if small and takes and self.narrow is None:
                self.narrow = f"{func.name()} in {str(one.dtype).removeprefix('torch.')}"
        return found


def calm(model: nn.Module) -> nn.Module:
    """The model with dropout of every kind off: ranks draw other random numbers than one process, rightly."""
    for layer in model.modules():
        kind = type(layer).__name__
        names = ["drop_prob", "dropout", "dropout_p", "attention_dropout"]
        names += ["p"] if "Drop" in kind or kind == "StochasticDepth" else []
        for name in names:
            if isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)
    return model


def to_double(model: nn.Module) -> nn.Module:
    """The model in float64. Raises Untellable where it cannot be had so."""
    try:
        return model.double()
    except Exception as error:
        raise Untellable(f"the model has no float64: {line(error)}") from error


def doubled(batch: Any) -> Any:
    """A batch with its floating-point tensors in float64."""
    return mapped(batch, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def join(batches: Sequence[Any]) -> Any:
    """Batches of equal structure as one, along the first axis. Raises Untellable for what has no such thing."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return type(first)({key: join([batch[key] for batch in batches]) for key in first})  # type: ignore[call-arg]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(join(column) for column in zip(*batches, strict=True)))
    if isinstance(first, list | tuple):
        return type(first)(join(column) for column in zip(*batches, strict=True))
    raise Untellable(f"a batch has a {type(first).__name__} in it")


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch with every tensor in it changed. Other values stay, and so do batches of a class of their own."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return type(batch)({key: mapped(value, change) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, change) for value in batch)
    return batch


def line(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
