"""SyncBN: torch's own on accelerators; on CPU, where torch has none, a reference that says what it is.

The statistics of Ioffe & Szegedy (2015), eq. 1 to 4, taken over the batches of all ranks; the gradient
is theirs too, with both of its sums taken over all ranks.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def convert(model: nn.Module, accelerated: bool) -> nn.Module:
    """Replace every BatchNorm layer; the state dict keeps its keys."""
    if accelerated:
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return _convert_reference(model)


def _convert_reference(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return ReferenceSyncBatchNorm.from_batch_norm(module)
    for name, child in module.named_children():
        setattr(module, name, _convert_reference(child))
    return module


class ReferenceSyncBatchNorm(_BatchNorm):
    """BatchNorm over the global batch, with one all-reduce in forward and one in backward."""

    @classmethod
    def from_batch_norm(cls, bn: _BatchNorm) -> "ReferenceSyncBatchNorm":
        """A synchronised layer that shares the parameters and buffers of `bn`."""
        layer = cls(bn.num_features, bn.eps, bn.momentum, bn.affine, bn.track_running_stats)
        layer._parameters.update(bn._parameters)
        layer._buffers.update(bn._buffers)
        return layer.train(bn.training)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(input)
        output, mean, var, count = _SyncNormalise.apply(input, self.weight, self.bias, self.eps)
        self._update_running(mean, var, count)
        return output

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        unbiased = var * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _SyncNormalise(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, mean and var over all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        axes = [0, *range(2, x.dim())]
        wide = x.double()
        local = torch.tensor([x.numel() / x.shape[1]], dtype=torch.float64)
        sums = torch.cat([wide.sum(axes), (wide * wide).sum(axes), local])
        dist.all_reduce(sums)
        count = sums[-1]
        mean, square = (sums[:-1] / count).chunk(2)
        var = (square - mean * mean).clamp_(min=0)
        scale = torch.rsqrt(var + eps)
        normal = ((wide - _spread(mean, x)) * _spread(scale, x)).to(x.dtype)
        ctx.save_for_backward(normal, scale, count, weight)
        y = normal if weight is None or bias is None else normal * _spread(weight, x) + _spread(bias, x)
        ctx.mark_non_differentiable(mean, var, count)
        return y, mean, var, count

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        normal, scale, count, weight = ctx.saved_tensors
        axes = [0, *range(2, grad.dim())]
        grad_bias = grad.sum(axes, dtype=torch.float64)
        grad_weight = (grad * normal).sum(axes, dtype=torch.float64)
        sums = torch.cat([grad_bias, grad_weight])
        dist.all_reduce(sums)
        mean_grad, mean_projection = (sums / count).chunk(2)
        gain = scale if weight is None else scale * weight
        centred = grad - _spread(mean_grad, grad) - normal * _spread(mean_projection, grad)
        grad_x = (centred * _spread(gain, grad)).to(grad.dtype)
        if weight is None:
            return grad_x, None, None, None
        return grad_x, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None


def _spread(per_channel: Tensor, like: Tensor) -> Tensor:
    """A (C,) tensor in the dtype it has, shaped to broadcast over (N, C, ...)."""
    return per_channel.reshape(1, -1, *[1] * (like.dim() - 2))
