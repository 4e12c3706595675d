"""How far two sets of named tensors lie apart: the first that differs, by how much. Tensors of all ranks as one."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.checked import Check

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Apart:
    """What lies between two sets of tensors. `first` is None where all are within the tolerance.

    `largest` is that tensor's largest absolute difference; `relative` the same over the largest value of all
    tensors, and where none is beyond the tolerance, the worst of all.
    """

    first: str | None
    largest: float
    relative: float
    why: str = ""

    def told(self) -> str:
        """In words."""
        if self.first is None:
            return f"largest difference {self.relative:.1e} of the largest value"
        return f"{self.first} {self.why or f'differs by {self.largest:.3g} ({self.relative:.1e} of the largest value)'}"


def apart(ours: Mapping[str, Tensor | None], theirs: Mapping[str, Tensor | None], tolerance: float) -> Apart:
    """The first tensor, in the order of `theirs`, that differs by more than `tolerance` times their largest value.

    A missing tensor counts as zeros: a gradient that nobody asked for. Raises ValueError where a value of
    `theirs` is not finite: nothing can be told then.
    """
    scale = max(
        (float(t.detach().abs().max()) for t in theirs.values() if t is not None and t.numel()), default=0.0
    )
    if scale != scale or scale == float("inf"):
        raise ValueError("values of the single process are not finite")
    worst, size = 0.0, scale or 1.0
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        one, other = ours.get(name), theirs.get(name)
        if one is None and other is None:
            continue
        if one is not None and other is not None and one.shape != other.shape:
            shapes = f"has shape {tuple(one.shape)} in place of {tuple(other.shape)}"
            return Apart(name, float("nan"), float("nan"), shapes)
        largest = _largest(one, other)
        if not largest <= tolerance * size:  # NaN is beyond every limit
            return Apart(name, largest, largest / size)
        worst = max(worst, largest)
    return Apart(None, worst, worst / size)


def _largest(one: Tensor | None, other: Tensor | None) -> float:
    """The largest absolute difference; None is zero."""
    if one is None or other is None:
        one, other = one if one is not None else other, None
        assert one is not None
    if not one.numel():
        return 0.0
    wide = one.detach().double()
    if other is not None:
        wide = wide - other.detach().to(one.device).double()
    return float(wide.abs().max())


def differing(name: str, found: Apart, tolerance: float, detail: str, step: int | None = None) -> Check:
    """The failed check that a difference makes."""
    finite = {"largest": found.largest, "relative": found.relative}
    known = {key: value for key, value in finite.items() if value == value and value != float("inf")}
    return Check(
        name=name, outcome="fail", detail=detail, tensor=found.first, step=step, tolerance=tolerance, **known
    )


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Every parameter's gradient by the name that it has without wrapper, whole where it is sharded."""
    return {plain(name): whole(p.grad) for name, p in model.named_parameters() if p.requires_grad}


def parameters(model: nn.Module) -> Tensors:
    """Every parameter likewise. All ranks must call this together."""
    return {plain(name): _copy(p) for name, p in model.named_parameters()}


def buffers(model: nn.Module) -> Tensors:
    """Every buffer likewise."""
    return {plain(name): _copy(b) for name, b in model.named_buffers()}


def plain(name: str) -> str:
    """A tensor's name without what wrappers put before it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")


def whole(tensor: Tensor | None) -> Tensor | None:
    """A copy of the tensor, gathered from all ranks where it is sharded."""
    return None if tensor is None else _copy(tensor)


def _copy(tensor: Tensor) -> Tensor:
    gather = getattr(tensor, "full_tensor", None)
    return (gather() if gather is not None else tensor).detach().clone()


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A hash a tensor: its shape, type and bytes."""
    return {name: digest(tensor) for name, tensor in tensors.items()}


def digest(tensor: Tensor) -> str:
    """A hash of one tensor: its shape, type and bytes."""
    found = hashlib.blake2b(f"{tuple(tensor.shape)} {tensor.dtype}".encode(), digest_size=8)
    found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def everyone(value: Any) -> list[Any]:
    """What every rank has for it, in the order of ranks; on each rank."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def to_first(value: Any) -> list[Any]:
    """What every rank has for it, on rank 0; an empty list on the others."""
    if not dist.is_initialized():
        return [value]
    first = dist.get_rank() == 0
    found: list[Any] | None = [None] * dist.get_world_size() if first else None
    dist.gather_object(value, found)
    return found or []


def unequal(by_rank: Sequence[Mapping[str, str]]) -> tuple[str, int] | None:
    """The first name whose hash is not rank 0's on some rank, and that rank; None where all agree."""
    for rank, theirs in enumerate(by_rank):
        for name in [*by_rank[0], *(name for name in theirs if name not in by_rank[0])]:
            if by_rank[0].get(name) != theirs.get(name):
                return name, rank
    return None


def between(tensors: Mapping[str, Tensor], name: str, rank: int) -> Apart:
    """How far one tensor of a rank lies from rank 0's. All ranks must call this together."""
    here = dist.get_rank() if dist.is_initialized() else 0
    mine = tensors.get(name)
    found = everyone(mine.cpu() if mine is not None and here in (0, rank) else None)
    if found[0] is None or found[rank] is None:
        where = "is on rank 0 only" if found[rank] is None else f"is not on rank 0, but on rank {rank}"
        return Apart(name, float("nan"), float("nan"), where)
    return apart({name: found[rank]}, {name: found[0]}, 0.0)
