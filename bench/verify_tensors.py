"""How far two sets of named tensors lie apart: the first that differs, by how much. Tensors of all ranks as one."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.checkpoint_state import bare
from bench.float64 import Untellable
from bench.verify_records import Check

Tensors = dict[str, Tensor]

NOT_FINITE = "the reference itself is not finite"

FLOOR = 0.1  # what is a tenth of the tolerance of the largest of all tensors is some roundings of that, and no difference


@dataclass(frozen=True)
class Apart:
    """What lies between two sets of tensors. `first` is None where all are within the tolerance.

    `largest` is that tensor's largest absolute difference; `relative` the same over the tensor's scale, and where
    none is beyond the tolerance, the worst of all.
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


def apart(
    ours: Mapping[str, Tensor | None],
    theirs: Mapping[str, Tensor | None],
    tolerance: float,
    floor: float = FLOOR,
) -> Apart:
    """The first tensor, in the order of `theirs`, that differs by more than `tolerance` times its scale.

    A tensor's scale is its largest value in `theirs`, or `floor` times that of all tensors where this is more: what
    should be zero is made of rounding. A missing tensor counts as zeros: a gradient that nobody asked for.
    Raises Untellable where a value of `theirs` is not finite: nothing is equal to it.
    """
    sizes = {name: _size(one) for name, one in theirs.items()}
    for name, size in sizes.items():
        if not math.isfinite(size):
            raise Untellable(f"{NOT_FINITE}: {name} has infinities or NaN")
    worst, least = 0.0, floor * max(sizes.values(), default=0.0)
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        one, other = ours.get(name), theirs.get(name)
        if one is None and other is None:
            continue
        if one is not None and other is not None and one.shape != other.shape:
            shapes = f"has shape {tuple(one.shape)} in place of {tuple(other.shape)}"
            return Apart(name, float("nan"), float("nan"), shapes)
        largest, size = _largest(one, other), max(sizes.get(name, 0.0), least) or 1.0
        if not math.isfinite(largest):
            return Apart(name, largest, largest, "is not finite")
        if largest > tolerance * size:
            return Apart(name, largest, largest / size)
        worst = max(worst, largest / size)
    return Apart(None, worst, worst)


def apart_each(ours: Tensors, theirs: Tensors, tolerance: float) -> Apart:
    """The first of `theirs` with an element that differs by more than `tolerance` times its own size.

    For buffers, of which one may be a mask of -1e9 or -inf: a large value is no measure of what lies beside it.
    An element's size is at least 1, or its tensor's largest where this is less. What is not finite has to be equal.
    """
    worst = 0.0
    for name, other in theirs.items():
        one = ours.get(name, torch.zeros_like(other))
        if one.shape != other.shape:
            return apart({name: one}, {name: other}, tolerance)
        mine, known = _wide(one).cpu(), _wide(other).cpu()
        if not torch.equal(_marks(mine), _marks(known)):
            return Apart(name, math.nan, math.nan, "is not finite at the same places")
        if (finite := known.isfinite()).any():
            mine, known = mine[finite], known[finite]
            distance = (mine - known).abs()
            relative = float((distance / known.abs().clamp(min=min(1.0, _size(known)) or 1.0)).max())
            if relative > tolerance:
                return Apart(name, float(distance.max()), relative)
            worst = max(worst, relative)
    return Apart(None, worst, worst)


def _marks(tensor: Tensor) -> Tensor:
    """1, -1 and 2 for what is infinite, negative so, and no number; 0 for the rest."""
    return tensor.isposinf().int() - tensor.isneginf().int() + 2 * tensor.isnan().int()


def _wide(tensor: Tensor) -> Tensor:
    """In float64, truth values and complex numbers too."""
    found = tensor.detach()
    return (torch.view_as_real(found.resolve_conj()) if found.is_complex() else found).double()


def _size(tensor: Tensor | None) -> float:
    """The largest absolute value; 0 of nothing."""
    return float(_wide(tensor).abs().max()) if tensor is not None and tensor.numel() else 0.0


def _largest(one: Tensor | None, other: Tensor | None) -> float:
    """The largest absolute difference; None is zero."""
    if one is None or other is None:
        one, other = one if one is not None else other, None
        assert one is not None
    if not one.numel():
        return 0.0
    wide = _wide(one)
    if other is not None:
        wide = wide - _wide(other).to(one.device)
    return float(wide.abs().max())


def differing(name: str, found: Apart, tolerance: float, detail: str, step: int | None = None) -> Check:
    """The failed check that a difference makes."""
    numbers = {"largest": found.largest, "relative": found.relative, "tolerance": tolerance}
    known = {key: value for key, value in numbers.items() if math.isfinite(value)}
    return Check(name=name, outcome="fail", detail=detail, tensor=found.first, step=step, **known)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Every parameter's gradient by the name that it has without wrapper, whole where it is sharded."""
    return {name: whole(p.grad) for name, p in bare(model).named_parameters() if p.requires_grad}


def parameters(model: nn.Module) -> Tensors:
    """Every parameter likewise. All ranks must call this together."""
    return {name: _copy(p) for name, p in bare(model).named_parameters()}


def buffers(model: nn.Module) -> Tensors:
    """Every buffer likewise."""
    return {name: _copy(b) for name, b in bare(model).named_buffers()}


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
    return of_one(name, found[rank], found[0])


def of_one(name: str, one: Tensor | None, other: Tensor | None) -> Apart:
    """How far one tensor, known to differ, lies from another, of which some values may be infinite or no numbers."""
    try:
        return apart({name: one}, {name: other}, 0.0)
    except Untellable:
        return Apart(name, math.nan, math.nan, "differs, and is not finite")
