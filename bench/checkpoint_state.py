"""The state that a checkpoint holds: its tensors by name, their digests, and what a load has to fill."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

WRAPPERS = ("DistributedDataParallel", "DataParallel", "ReferenceDataParallel")


def bare(model: nn.Module) -> nn.Module:
    """The module inside DataParallel, its reference or DDP; else the model itself."""
    inner = getattr(model, "module", None)
    return inner if type(model).__name__ in WRAPPERS and isinstance(inner, nn.Module) else model


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of model and optimizer, buffers included, by a name that no wrapper changes."""
    inner = bare(model)
    for key, value in inner.state_dict().items():
        if isinstance(value, Tensor):
            yield f"model.{key}", value
    names: dict[Any, str] = {parameter: name for name, parameter in inner.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key in sorted(state):
            if isinstance(state[key], Tensor):
                yield f"optimizer.{names.get(parameter, '?')}.{key}", state[key]


def digests(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """SHA-256 of every tensor: type, shape and bytes. Sharded ones are gathered: a collective."""
    return {name: digest(value) for name, value in tensors(model, optimizer)}


def digest(value: Tensor) -> str:
    """Of one tensor; equal exactly where it is the same bit by bit."""
    whole = value.full_tensor() if hasattr(value, "full_tensor") else value
    plain = whole.detach().cpu().contiguous().reshape(-1)
    found = hashlib.sha256(f"{plain.dtype} {tuple(whole.shape)}".encode())
    found.update(plain.view(torch.uint8).numpy().data)
    return found.hexdigest()


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all of them on this rank."""
    held = [
        value.to_local() if hasattr(value, "to_local") else value for _, value in tensors(model, optimizer)
    ]
    return sum(value.numel() * value.element_size() for value in held)


def wipe(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Zero everything: what a load leaves out is seen."""
    with torch.no_grad():
        for _, value in tensors(model, optimizer):
            value.zero_()


def write_reference(path: Path, found: dict[str, str]) -> None:
    """Digests for the launches that load."""
    path.write_bytes(msgspec.json.encode(found))


def differing(found: dict[str, str], folder: Path, references: tuple[str, ...]) -> str | None:
    """The first tensor that is as in none of the references, or that only one side has; None where all are equal.

    Several references: torch.distributed.checkpoint takes a replicated tensor from any rank that has it.
    """
    known: list[dict[str, Any]] = [msgspec.json.decode((folder / name).read_bytes()) for name in references]
    for name in dict.fromkeys(name for one in (*known, found) for name in one):
        if name not in found:
            return f"{name} (not there after the load)"
        if all(name not in one for one in known):
            return f"{name} (not in what was saved)"
        if all(found[name] != one.get(name) for one in known):
            return name
    return None
