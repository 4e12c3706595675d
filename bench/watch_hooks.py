"""What a loop does, as its loader and torch's hooks tell it: steps with their marks, optimizers, gradients.

A step is one batch of the training loader with a forward of the watched model in it that trains: in training
mode, with gradients on. Evaluation makes no marks; inside a step its time stays in the phase it falls into.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from bench.watch_facts import differentiable
from bench.watch_marks import BACKWARD, DATA_WAIT, FORWARD, H2D, OPTIMIZER, OTHER, Stamps, Step

LOOKS = 2  # at gradients: each waits for the device, so only in the first steps, which warm-up drops


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong in a hook ends the recording, never the training."""

    @functools.wraps(method)
    def run(self: "Recorder", *args: Any) -> None:
        try:
            if self.trouble is None:
                method(self, *args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the training's
            self.trouble = error
            self.drop()

    return run


class Loader:
    """The user's loader, which tells the watch of every batch; in all else it is the loader itself."""

    def __init__(self, watch: Any, loader: Any) -> None:
        self._watch, self._loader = watch, loader

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        watch = self._watch
        watch.pass_begins(self._loader)
        watch.batch_asked()  # before the iterator is made: that starts the workers
        batches = iter(self._loader)
        while not watch.over:
            try:
                batch = next(batches)
            except StopIteration:
                watch.batch_dropped()
                return
            watch.batch_there(batch)
            try:
                yield batch
            except GeneratorExit:  # the loop was left
                watch.batch_dropped()
                raise
            watch.batch_asked()
        yield from batches


class Recorder:
    """The steps of one model's loop. `trouble` is what ended the recording, if anything did."""

    def __init__(self, clock: Stamps) -> None:
        self.clock = clock
        self.steps: list[Step] = []
        self.idle = 0  # batches without a forward that trains
        self.optimizer: Optimizer | None = None  # one that stepped
        self.optimizer_steps = 0
        self.rebuilt = 0  # optimizers of parameters that another one had before
        self.gradients_left: list[bool] = []  # as a backward began, after an optimizer step
        self.trouble: Exception | None = None
        self._known: dict[tuple[type, int], weakref.ref[Optimizer]] = {}
        self._look_at: list[Tensor] = []
        self._handles: list[Any] = []
        self._phases: list[int] = []  # of the batch that is trained on: which began, and when
        self._stamps: list[Any] = []
        self._samples = 0
        self._depth = 0  # optimizers that step within another one
        self._trained = False  # there was a forward that trains

    def attach(self, model: nn.Module) -> None:
        """Put hooks on the model, and on all optimizers of this process."""
        before, after = self._before_forward, self._after_forward
        if getattr(model, "_compiled_call_impl", None) is not None:  # model.compile() would trace them
            before, after = torch.compiler.disable(before), torch.compiler.disable(after)
        self._handles = [
            model.register_forward_pre_hook(before),
            model.register_forward_hook(after),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def detach(self) -> None:
        """Take the hooks off. Not from within one: torch may be going through them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def asked(self) -> None:
        """The loop asks for a batch: the one before it is done."""
        now = self.clock.stamp()
        if self._trained:
            self.steps.append(Step(tuple(self._phases), (*self._stamps, now), self._samples))
        elif self._phases:
            self.idle += 1
        self.drop()
        self._phases, self._stamps = [DATA_WAIT], [now]

    def there(self, samples: int) -> None:
        """The batch is there, and holds so many samples."""
        self._mark(H2D)
        self._samples = samples

    def drop(self) -> None:
        """The batch asked for last is no step: none came, or the loop was left in the middle of it."""
        self._phases, self._stamps, self._samples = [], [], 0
        self._depth, self._trained = 0, False

    def _mark(self, phase: int) -> None:
        self._phases.append(phase)
        self._stamps.append(self.clock.stamp())

    @_guarded
    def _before_forward(self, module: nn.Module, *_: Any) -> None:
        if self._phases and module.training and torch.is_grad_enabled():
            self._mark(FORWARD)

    @_guarded
    def _after_forward(self, module: nn.Module, _: Any, output: Any) -> None:
        if not (self._phases and module.training and torch.is_grad_enabled()):
            return
        if self._look_at and not self._trained:
            found = differentiable(output)
            if found is not None:
                found.register_hook(self._backward_begins)
        self._trained = True
        self._mark(BACKWARD)

    @_guarded
    def _backward_begins(self, _: Tensor) -> None:
        parameters, self._look_at = self._look_at, []
        if parameters:
            self.gradients_left.append(any(p.grad is not None and bool(p.grad.any()) for p in parameters))

    @_guarded
    def _before_step(self, *_: Any) -> None:
        if self._phases:
            self._depth += 1
            self._mark(OPTIMIZER)

    @_guarded
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._phases:
            return
        self._depth -= 1
        if self._depth > 0:
            return
        self._mark(OTHER)
        self.optimizer_steps += 1
        self._remember(optimizer)
        if len(self.gradients_left) < LOOKS:
            self._look_at = _small_with_gradients(optimizer)

    def _remember(self, optimizer: Optimizer) -> None:
        key = (type(optimizer), id(optimizer.param_groups[0]["params"][0]))
        before = self._known.get(key)
        if before is None or before() is not optimizer:
            self.rebuilt += before is not None
            self._known[key] = weakref.ref(optimizer)
            self.optimizer = self.optimizer or optimizer


def _small_with_gradients(optimizer: Optimizer) -> list[Tensor]:
    """A few small parameters to look at; none where they are sharded: a look would be a collective."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if any(hasattr(p, "full_tensor") for p in parameters):
        return []
    return sorted(parameters, key=lambda p: p.numel())[:3]
