"""What a user brings: a model, and, where the defaults do not fit, its data set, loss and optimizer."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Sample:
    """The shape of one training sample: input shape (no batch axis) and number of classes.

    With `tokens` an input is a sequence of int64 ids, shape (T,), `classes` is the vocabulary, and the
    targets are the ids that follow, one a position.
    """

    shape: tuple[int, ...]
    classes: int
    tokens: bool = False


def classification_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross entropy of `model(inputs)` against `targets`, for a batch `(inputs, targets)`."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets)


def token_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross entropy over all positions: logits (batch, T, vocabulary) against target ids (batch, T)."""
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def sgd(parameters: Iterable[nn.Parameter], fused: bool | None = None) -> torch.optim.Optimizer:
    """SGD, learning rate 0.01, momentum 0.9, weight decay 1e-4: the field's default."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=fused)


def leading_size(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor. Raises TypeError without one."""
    if isinstance(batch, Tensor):
        return int(batch.shape[0])
    if isinstance(batch, Mapping) and batch:
        return leading_size(next(iter(batch.values())))
    if isinstance(batch, list | tuple) and batch:
        return leading_size(batch[0])
    raise TypeError(f"cannot count the samples of a {type(batch).__name__}: give Workload(samples=...)")


@dataclass
class Workload:
    """A model and how to train it. Only `model` is required.

    `dataset` None means that the case's `data` supplies samples of the shape `sample`.
    `loss(model, batch)` returns a scalar; `optimizer(parameters)` returns a torch optimizer;
    `samples(batch)` counts what a batch holds.
    """

    model: nn.Module
    dataset: Dataset[Any] | None = None
    loss: Callable[[nn.Module, Any], Tensor] = classification_loss
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = sgd
    collate: Callable[[list[Any]], Any] | None = None
    samples: Callable[[Any], int] = leading_size
    sample: Sample | None = field(default=None)
