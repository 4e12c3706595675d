"""A reference DataParallel for CPU: what torch.nn.DataParallel does on devices, in threads.

Each step it scatters the batch in chunks, copies the parameters to every replica, runs the replicas in
threads (forward, and again in backward), and adds their gradients on the first. As in torch, replica 0
shares the module's buffers and the others work on copies, and the output is gathered on the first.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn


class ReferenceDataParallel(nn.Module):
    """Replicas of `module` in threads of this process. `chunks` holds the sizes of the last scatter."""

    def __init__(self, module: nn.Module, replicas: int) -> None:
        super().__init__()
        self.module = module
        self.replicas = replicas
        self.chunks: tuple[int, ...] = ()
        self._threads = ThreadPoolExecutor(replicas, thread_name_prefix="replica")

    def forward(self, inputs: Tensor) -> Tensor:
        parts = inputs.chunk(self.replicas)
        self.chunks = tuple(len(part) for part in parts)
        if len(parts) == 1:
            return self.module(inputs)
        return _Replicate.apply(self, parts, *self.module.parameters())

    def __getstate__(self) -> dict[str, Any]:
        """As torch's, it can be saved whole; threads cannot, and are made anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_threads"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._threads = ThreadPoolExecutor(self.replicas, thread_name_prefix="replica")

    def map(self, work: Any, *columns: Any) -> list[Any]:
        """Run `work` once a replica, in threads; exceptions come back to the caller."""
        return list(self._threads.map(work, *columns))


class _Replicate(torch.autograd.Function):
    """Forward and backward of all replicas; torch would run their backward on one CPU thread."""

    @staticmethod
    def forward(ctx: Any, owner: Any, parts: Any, *parameters: Tensor) -> Tensor:
        copies = [[p.detach().clone().requires_grad_(p.requires_grad) for p in parameters] for _ in parts]
        replicas = [_replica(owner.module, parameters, copy, i) for i, copy in enumerate(copies)]

        cast = torch.is_autocast_enabled("cpu")  # of this thread: replicas run under the same, as torch's do
        dtype = torch.get_autocast_dtype("cpu")

        def run(replica: nn.Module, part: Tensor) -> Tensor:
            with torch.enable_grad(), torch.autocast("cpu", dtype, enabled=cast):
                return replica(part)

        outputs = owner.map(run, replicas, parts)
        if not all(isinstance(output, Tensor) for output in outputs):
            raise TypeError("the reference DataParallel gathers tensors only: return one tensor from forward")
        ctx.owner, ctx.copies, ctx.outputs = owner, copies, outputs
        return torch.cat([output.detach() for output in outputs])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        chunks = grad.split([len(output) for output in ctx.outputs])

        def run(output: Tensor, copy: list[Tensor], chunk: Tensor) -> Any:
            wanted = [p for p in copy if p.requires_grad]
            found = iter(torch.autograd.grad(output, wanted, chunk, allow_unused=True))
            return [next(found) if p.requires_grad else None for p in copy]

        per_replica = ctx.owner.map(run, ctx.outputs, ctx.copies, chunks)
        ctx.outputs = ctx.copies = None
        return None, None, *(_add(column) for column in zip(*per_replica, strict=True))


def _add(gradients: tuple[Tensor | None, ...]) -> Tensor | None:
    """The sum of what replicas found for one parameter; None where none used it."""
    present = [gradient for gradient in gradients if gradient is not None]
    return torch.stack(present).sum(0) if present else None


def _replica(module: nn.Module, parameters: tuple[Tensor, ...], copy: list[Tensor], index: int) -> nn.Module:
    """A shallow copy of `module` on copied parameters, as torch.nn.parallel.replicate makes them."""
    tensors = {id(parameter): twin for parameter, twin in zip(parameters, copy, strict=True)}
    tensors |= {id(b): b if index == 0 else b.clone() for b in module.buffers()}
    return _shallow(module, tensors)


def _shallow(module: nn.Module, tensors: dict[int, Tensor]) -> nn.Module:
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else _shallow(child, tensors)
    for name, parameter in module._parameters.items():
        setattr(replica, name, None if parameter is None else tensors[id(parameter)])
    for name, buffer in module._buffers.items():
        replica._buffers[name] = None if buffer is None else tensors[id(buffer)]
    return replica
