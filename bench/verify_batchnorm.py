"""What BatchNorm layers see and give: moments of their outputs over all ranks, and a batch in DataParallel's chunks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from bench.checkpoint_state import bare
from bench.float64 import Untellable
from bench.verify_tensors import Tensors


class Outputs:
    """Sums of the outputs of a model's first BatchNorm layer, a channel each, in the last forward pass."""

    def __init__(self, model: nn.Module) -> None:
        found = [(n, m) for n, m in bare(model).named_modules() if isinstance(m, _BatchNorm)]
        self.last: Tensor | None = None  # (3, channels): sum, sum of squares, count
        if found:
            self.layer, layer = found[0]
            layer.register_forward_hook(self._see)

    def _see(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        wide = output.detach().double()
        axes = [0, *range(2, wide.dim())]
        count = wide.new_full((wide.shape[1],), wide.numel() / wide.shape[1])
        self.last = torch.stack([wide.sum(axes), (wide * wide).sum(axes), count]).cpu()


def moments(sums: Sequence[Tensor], layer: str) -> Tensors:
    """Mean and mean square a channel of outputs whose sums come from several ranks."""
    total = sum(sums[1:], start=sums[0])
    return {f"output mean of {layer}": total[0] / total[2], f"output square of {layer}": total[1] / total[2]}


class Chunked(nn.Module):
    """What DataParallel does to a batch, one chunk after the other: the first one's buffers are kept."""

    def __init__(self, module: nn.Module, replicas: int) -> None:
        super().__init__()
        self.module, self._count = module, replicas

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of all chunks. Raises Untellable for inputs and outputs other than one tensor."""
        if not isinstance(inputs, Tensor):
            raise Untellable("DataParallel's chunks are followed for models of one tensor only")
        first, *rest = inputs.chunk(self._count)
        before = {name: b.detach().clone() for name, b in self.module.named_buffers()}
        outputs = [self.module(first)]
        for part in rest:
            own = {name: b.clone() for name, b in before.items()}
            outputs.append(functional_call(self.module, own, (part,)))
        if not all(isinstance(output, Tensor) for output in outputs):
            raise Untellable("DataParallel's chunks are followed for models that return one tensor only")
        return torch.cat(outputs)
