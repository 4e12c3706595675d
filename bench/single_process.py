"""The reference of `verify`: the same model trained by one process, in float64, on the batches of all ranks.

It is built before the ranks meet, as a process on its own would build it. Then it takes each step twice: once on
the global batch, and once as the way of training means it to be taken: shard by shard where BatchNorm has
each replica's own statistics. What lies between these two is no fault, and is told with its reason.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from bench import plugins, recipe
from bench.case import Case
from bench.float64 import Untellable, Watch, calm, join, line, to_double
from bench.place import Place
from bench.user import workload as build_workload
from bench.verify_batchnorm import Chunked
from bench.verify_rounding import Rounding
from bench.verify_tensors import NOT_FINITE, Tensors, apart, buffers, digests, gradients
from bench.verify_tensors import parameters as parameters_of

SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")  # that torchelastic sets
Shards = Sequence[Sequence[Any]]  # batches of one step: micro-batches, and of each one a rank


@dataclass(frozen=True)
class Step:
    """What one step of the reference came to. `whole` is None, with its reason, where there is no global batch."""

    loss: float
    gradients: dict[str, Tensor | None]
    whole: dict[str, Tensor | None] | None
    no_whole: str = ""


class Single:
    """The model as one process builds and trains it. Made on rank 0, before it joins the others."""

    def __init__(self, case: Case) -> None:
        self._case = case
        with _alone():
            torch.manual_seed(case.seed)
            self._workload = build_workload(case)
        self.model = self._workload.model
        self.digests = digests(self.tensors())
        self.narrow: str | None = None  # an operation that computes in less than float64

    def tensors(self) -> Tensors:
        """Parameters and buffers by name."""
        return parameters_of(self.model) | buffers(self.model)

    def start(self, weights: Mapping[str, Tensor], strategy: plugins.Strategy, place: Place) -> None:
        """Begin from rank 0's weights. `place` is rank 0's. Raises Untellable for a model that has no float64."""
        self._strategy, self._world = strategy, place.world_size
        self._place = place
        self.model = calm(self.model).train()
        to_double(self.model).to(place.device)
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(weights[name])
        alone: plugins.Strategy = plugins.load("strategies", "single")
        self._optimizer = recipe.make_optimizer(
            msgspec.structs.replace(self._case, fused=False), self._workload, alone, self.model
        )
        self._buffers: list[list[Tensor]] = []  # of each replica
        self.rounding = Rounding()

    @property
    def normed(self) -> bool:
        """Whether it has BatchNorm layers."""
        return any(isinstance(layer, _BatchNorm) for layer in self.model.modules())

    @property
    def replicas(self) -> int:
        """Copies of the model that train together."""
        return self._case.ranks if self._strategy.single_process else self._world

    @property
    def _chunked(self) -> bool:
        """Whether one process scatters a batch over replicas that each have statistics of their own."""
        return self._strategy.single_process and self.replicas > 1 and self.normed

    @property
    def by_shard(self) -> bool:
        """Whether a step is taken share by share, as ranks with statistics of their own take it."""
        return self._world > 1 and not self._case.sync_bn

    def look(self, batches: Shards) -> None:
        """One pass that changes nothing: raises Untellable for a model that no reference can be had of."""
        batch = batches[0][0]
        with self._kept(), Watch() as seen:
            one = float(self._loss(batch).detach())
        self.narrow = seen.narrow
        with self._kept(), torch.no_grad():
            torch.manual_seed(self._case.seed + 7919)
            other = float(self._loss(batch))
        if not math.isfinite(one):
            raise Untellable(f"{NOT_FINITE}: its loss is {one}")
        if not abs(one - other) <= (1e-12 if self.narrow is None else 1e-5) * abs(one):
            raise Untellable(
                f"the model draws random numbers in training: equal batches gave a loss of {one:.6g} and {other:.6g}"
            )

    def step(self, batches: Shards) -> Step:
        """Take one step on the batches of all ranks. Raises Untellable."""
        try:
            joined: list[Any] | None = [join(ranks) for ranks in batches]
            everything, why = join(joined or []), ""
        except (Untellable, RuntimeError) as error:
            joined, why = None, f"batches cannot be put together: {line(error)}"
        found = None
        if joined is not None and (self.by_shard or self._chunked or len(joined) > 1):
            _, found = self._tried([everything])
        if self.by_shard:
            loss, own = self._shards(batches)
        elif joined is None:
            raise Untellable(why)
        else:
            loss, own = self._passes(joined)
            found = own if found is None else found  # one pass, and that on everything
        if not math.isfinite(loss):
            raise Untellable(f"{NOT_FINITE}: its loss is {loss}")
        self._set(own)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return Step(loss, own, found, why)

    def couples(self, batches: Shards) -> bool:
        """Whether the mean over the shards is not that of the global batch even where BatchNorm has fixed statistics."""
        norms = [layer for layer in self.model.modules() if isinstance(layer, _BatchNorm) and layer.training]
        for layer in norms:
            layer.eval()
        try:
            _, shards = self._tried([batch for ranks in batches for batch in ranks])
            _, one = self._tried([join([join(ranks) for ranks in batches])])
        finally:
            for layer in norms:
                layer.train()
        return apart(shards, one, self.tolerance).first is not None

    @property
    def tolerance(self) -> float:
        """Of the largest value: what float64 leaves, or float32 where the model computes in that somewhere."""
        return 1e-10 if self.narrow is None else 1e-4

    # -- passes -----------------------------------------------------------------------------------

    def _loss(self, batch: Any) -> Tensor:
        model = Chunked(self.model, self._case.ranks) if self._chunked else self.model
        return self._workload.loss(model, batch)

    def _passes(self, groups: Sequence[Any]) -> tuple[float, dict[str, Tensor | None]]:
        """Mean loss and gradient over passes, one a group of samples."""
        total = 0.0
        for group in groups:
            loss = self._loss(group) / len(groups)
            loss.backward()
            total += float(loss.detach())
        return total, self._taken()

    def _tried(self, groups: Sequence[Any]) -> tuple[float, dict[str, Tensor | None]]:
        """The same, with the buffers put back and without DataParallel's chunks."""
        total = 0.0
        with self._kept():
            for group in groups:
                loss = self._workload.loss(self.model, group) / len(groups)
                loss.backward()
                total += float(loss.detach())
        return total, self._taken()

    def _shards(self, batches: Shards) -> tuple[float, dict[str, Tensor | None]]:
        """A pass a shard. Every replica has buffers of its own; DDP sends rank 0's before the first of a step."""
        if not self._buffers or (self._strategy.ddp_options and self._case.broadcast_buffers):
            self._buffers = [_clones(self.model.buffers()) for _ in range(self._world)]
        total, count = 0.0, len(batches) * self._world
        for ranks in batches:
            for replica, batch in enumerate(ranks):
                with self._as(replica) if replica else nullcontext():
                    loss = self._loss(batch) / count
                    loss.backward()
                total += float(loss.detach())
        return total, self._taken()

    def _taken(self) -> dict[str, Tensor | None]:
        found = gradients(self.model)
        self.model.zero_grad(set_to_none=True)
        return found

    def _set(self, found: Mapping[str, Tensor | None]) -> None:
        known = {name: one for name, one in found.items() if one is not None}
        self.rounding.step(known)
        for name, parameter in self.model.named_parameters():
            parameter.grad = known.get(name)

    @contextmanager
    def _as(self, replica: int) -> Iterator[None]:
        """With the buffers of a replica other than the first."""
        with self._kept():
            _write(self.model.buffers(), self._buffers[replica])
            yield
            self._buffers[replica] = _clones(self.model.buffers())

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Buffers are afterwards what they were before."""
        before = _clones(self.model.buffers())
        try:
            yield
        finally:
            _write(self.model.buffers(), before)


@contextmanager
def _alone() -> Iterator[None]:
    """The environment says that there is one process: a model that looks there is built as it would be then."""
    before = {name: os.environ.get(name) for name in SIZES}
    os.environ.update(dict.fromkeys(SIZES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _clones(tensors: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def _write(tensors: Any, values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
