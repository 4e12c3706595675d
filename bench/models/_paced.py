"""Layers that sleep to deadlines: compute of a known length, with real parameters and gradients."""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bench.workload import classification_loss

JUST_S = 0.005  # a backward pass that begins this soon after its forward belongs to it


class PacedLoss:
    """Cross entropy that is there `seconds` after the forward pass began: the last part of the phase."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        deadline_s = time.perf_counter() + self.seconds
        loss = classification_loss(model, batch)
        sleep_until(deadline_s)
        return loss


class PacedModel(nn.Module):
    """`layers` layers that multiply by 1 + the mean of their weights, and take the time they are told.

    A forward pass of B samples, with its PacedLoss, ends B x `forward_s_per_sample` + `slow_forward_s` after it
    began, in n + 1 parts: n layers and the loss. Backward likewise: gradients become ready after the first n
    parts, and the last leaves a small collective the time it needs. Deadlines count from the start of the pass, so
    what happens on the way (arithmetic, a hook, a bucket copy) is absorbed. Nothing is kept in the module
    between calls: replicas may run in threads.
    """

    def __init__(
        self,
        parameters: int,
        layers: int,
        forward_s_per_sample: float,
        backward_s_per_sample: float,
        slow_forward_s: float = 0.0,
        slow_backward_s: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = [parameters // layers + (i < parameters % layers) for i in range(layers)]
        self.layers = nn.ModuleList(PacedLayer(size) for size in sizes)
        self.forward_s_per_sample = forward_s_per_sample
        self.backward_s_per_sample = backward_s_per_sample
        self.slow_forward_s = slow_forward_s
        self.slow_backward_s = slow_backward_s

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) to scaled logits of the same shape."""
        start_s = time.perf_counter()
        samples, count = x.shape[0], len(self.layers)
        forward_s = samples * self.forward_s_per_sample + self.slow_forward_s
        backward = Backward(samples * self.backward_s_per_sample + self.slow_backward_s, start_s + forward_s)
        for done, layer in enumerate(self.layers, start=1):
            x = layer(x, start_s + forward_s * done / (count + 1), backward, (count + 1 - done) / (count + 1))
        if x.requires_grad:
            x.register_hook(backward.begin)  # type: ignore[no-untyped-call]
        return x


class Backward:
    """The backward pass of one forward call: when it began, and how long it is to take.

    It begins where forward ended, if that has only just been: the loss's own gradient is then absorbed.
    """

    def __init__(self, seconds: float, forward_end_s: float) -> None:
        self.seconds = seconds
        self.start_s = forward_end_s

    def begin(self, _: Tensor) -> None:
        """Called with the gradient of the output. What is queued here runs when all gradients are there,
        before DDP, which queues its own later, waits for its collectives."""
        now_s = time.perf_counter()
        if not 0 <= now_s - self.start_s <= JUST_S:
            self.start_s = now_s
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.sleep(1.0))

    def sleep(self, share: float) -> None:
        """Sleep until a share of the pass is over."""
        sleep_until(self.start_s + share * self.seconds)


class PacedLayer(nn.Module):
    """One weight vector; see PacedModel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor, deadline_s: float, backward: Backward, share: float) -> Tensor:
        """x (1 + mean(weight)), not before a deadline; its gradients come at a share of `backward`."""
        scaled: Tensor = _Paced.apply(  # type: ignore[no-untyped-call]
            x, self.weight, deadline_s, backward, share
        )
        return scaled


class _Paced(torch.autograd.Function):
    """y = x (1 + mean(w)) and its gradients, each ready at its deadline and not before."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, deadline_s: float, backward: Backward, share: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.pass_, ctx.share = backward, share
        y = x * (1 + weight.mean())
        sleep_until(deadline_s)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_weight = ((grad * x).sum() / weight.numel()).expand_as(weight).contiguous()
        grad_x = grad * (1 + weight.mean())
        ctx.pass_.sleep(ctx.share)
        return grad_x, grad_weight, None, None, None


def sleep_until(deadline_s: float) -> None:
    """Sleep until `time.perf_counter()` reaches a deadline; return at once where it has passed."""
    left_s = deadline_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)
