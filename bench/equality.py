"""Rank 0's judgement: what the ranks did in each step against what one process does with the same samples."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from bench import plugins
from bench.case import Case
from bench.float64 import Untellable, line
from bench.place import Place
from bench.single_process import Shards, Single, Step
from bench.strategies._ddp import POWERSGD_START
from bench.verify_batchnorm import Outputs, moments
from bench.verify_records import Check
from bench.verify_rounding import left_out
from bench.verify_tensors import FLOOR, Apart, Tensors, apart, apart_each, differing

TRAINED = ("gradients", "global batch", "loss", "batch norm", "parameters")
LOSSY = {
    "fp16": 5e-3,
    "bf16": 5e-2,
}  # of the largest gradient, summed over a few ranks; PowerSGD has no such limit

MOVED = 1e-8  # of parameters: an optimizer that divides by the gradient's size makes more of its rounding


class Equality:
    """Compares step by step, and says at the end what was equal. `weights` are rank 0's, by name."""

    def __init__(
        self, case: Case, strategy: plugins.Strategy, place: Place, single: Single, weights: Tensors
    ) -> None:
        self._case, self._place, self._single = case, place, single
        self._failed: dict[str, Check] = {}
        self._worst: dict[str, float] = {}
        self._beyond: Check | None = None
        self._no_whole = ""
        self._why: str | None = None
        self._steps = 0
        self._compressed: float | None = None
        try:
            single.start(weights, strategy, place)
        except Exception as error:  # noqa: BLE001 - the user's model and optimizer
            self._why = _reason(error)
        self._outputs = Outputs(single.model) if case.sync_bn and self._why is None else None

    def look(self, batches: Shards) -> str | None:
        """Why nothing can be told of this model, or None."""
        if self._why is None:
            try:
                self._single.look(batches)
            except Exception as error:  # noqa: BLE001 - the user's model and loss
                self._why = _reason(error)
        return self._why

    def take(
        self,
        batches: Shards,
        loss: float,
        gradients: dict[str, Tensor | None],
        outputs: Sequence[Tensor | None],
    ) -> None:
        """One step: what all ranks loaded, their mean loss, and rank 0's gradients before the optimizer's step."""
        self._steps += 1
        try:
            if self._why is None:
                expected = self._single.step(batches)
                self._normed_outputs(outputs)
                self._loss(loss, expected.loss)
                self._gradients(batches, gradients, expected)
        except Exception as error:  # noqa: BLE001 - the user's model and loss
            self._why = _reason(error)

    def end(
        self, parameters: Tensors, buffers: Tensors, ranks: Check | None, synced: str | None
    ) -> list[Check]:
        """All checks. `ranks` is set where ranks differ after the last step; `synced`: class of the SyncBN layers."""
        if self._why is not None:
            return [Check(name=name, outcome="cannot tell", detail=self._why) for name in TRAINED]
        norms = {n for n, m in self._single.model.named_modules() if isinstance(m, _BatchNorm)}
        held = dict(self._single.model.named_buffers())
        running = {n: b for n, b in held.items() if n.rpartition(".")[0] in norms}
        rest = {n: b for n, b in held.items() if n not in running}
        own: Tensors = {n: p.detach() for n, p in self._single.model.named_parameters()}
        return [
            self._gradients_told(),
            self._whole_told(),
            self._told("loss", "equal to that of one process"),
            _guarded("batch norm", lambda: self._statistics(running, buffers, synced)),
            _guarded("parameters", lambda: self._parameters(own, parameters, rest, buffers, ranks)),
        ]

    # -- a step -----------------------------------------------------------------------------------

    @property
    def _tolerance(self) -> float:
        hook = self._case.comm_hook if self._place.world_size > 1 else None
        return max(self._single.tolerance, LOSSY.get(hook or "", 0.0))

    @property
    def _floor(self) -> float:
        return 1.0 if self._lossy else FLOOR  # a hook rounds sums of ranks, of which the mean may be far less

    @property
    def _lossy(self) -> bool:
        return self._case.comm_hook is not None and self._place.world_size > 1

    def _gradients(self, batches: Shards, ours: dict[str, Tensor | None], expected: Step) -> None:
        if self._case.comm_hook == "powersgd" and self._lossy and self._steps > POWERSGD_START:
            found = apart(ours, expected.gradients, math.inf)
            self._compressed = found.relative
            if found.first is not None:
                self._note("gradients", found, math.inf)
            return
        limit = self._tolerance
        differs = self._note("gradients", apart(ours, expected.gradients, limit, self._floor), limit)
        if differs and self._case.sync_bn and self._single.couples(batches):
            raise Untellable(
                "SyncBN with a loss that is no mean over samples: one process has no equal to it"
            )
        if expected.whole is None:
            self._no_whole = expected.no_whole
        elif self._beyond is None:
            found = apart(ours, expected.whole, limit, self._floor)
            self._worst["global batch"] = max(self._worst.get("global batch", 0.0), found.relative)
            if found.first is not None:
                self._beyond = self._difference(found, batches)

    def _difference(self, found: Apart, batches: Shards) -> Check:
        """What lies between the ranks and one process that takes all samples at once, with its reason."""
        told = f"{found.told()} in step {self._steps}"
        failed = differing("global batch", found, self._tolerance, told, self._steps)
        if "gradients" in self._failed:
            return failed
        if self._single.couples(batches):
            why = "the loss, or a layer, couples samples: its mean over ranks is not that of the global batch"
        elif self._single.normed:
            why = (
                f"BatchNorm has the statistics of each {self._parts}; with fixed ones the gradients are equal"
            )
        else:
            return failed
        values = {
            name: getattr(failed, name) for name in ("tensor", "step", "largest", "relative", "tolerance")
        }
        return Check(name="global batch", outcome="known", detail=f"{why} ({found.told()})", **values)

    @property
    def _parts(self) -> str:
        """What BatchNorm sees at a time, where that is not the global batch."""
        replicas = self._single.replicas > 1 and not self._case.sync_bn
        micro = self._case.grad_accumulation > 1
        return (
            "micro-batch of each replica" if replicas and micro else "replica" if replicas else "micro-batch"
        )

    def _loss(self, ours: float, theirs: float) -> None:
        if self._compressed is not None and self._steps > POWERSGD_START + 1 and math.isfinite(ours):
            return
        distance = abs(ours - theirs)
        size = abs(theirs) or 1.0
        if not distance <= self._tolerance * size and "loss" not in self._failed:
            told = f"{ours:.9g} in place of {theirs:.9g} in step {self._steps}"
            self._failed["loss"] = Check(
                name="loss", outcome="fail", detail=told, step=self._steps, tolerance=self._tolerance
            )
        self._worst["loss"] = max(self._worst.get("loss", 0.0), distance / size)

    def _normed_outputs(self, outputs: Sequence[Tensor | None]) -> None:
        known = [one for one in outputs if one is not None]
        if self._outputs is None or self._outputs.last is None or not known:
            return
        layer = self._outputs.layer
        found = apart(moments(known, layer), moments([self._outputs.last], layer), self._tolerance)
        self._note("batch norm", found, self._tolerance)

    def _note(self, name: str, found: Apart, limit: float) -> bool:
        """Keep the first step that differs, and the worst of those that do not; True for the first that differs."""
        if found.first is None:
            self._worst[name] = max(self._worst.get(name, 0.0), found.relative)
            return False
        if name in self._failed:
            return False
        told = f"{found.told()} in step {self._steps}"
        self._failed[name] = differing(name, found, limit, told, self._steps)
        return True

    # -- in words ---------------------------------------------------------------------------------

    def _told(self, name: str, detail: str, outcome: Any = "pass", limit: float | None = None) -> Check:
        if name in self._failed:
            return self._failed[name]
        worst, limit = self._worst.get(name, 0.0), limit or self._tolerance
        return Check(
            name=name,
            outcome=outcome,
            detail=f"{detail}: largest difference {worst:.1e} (tolerance {limit:.0e})",
            relative=worst,
            tolerance=limit,
        )

    def _gradients_told(self) -> Check:
        narrow = f"; the model computes {self._single.narrow}" if self._single.narrow else ""
        if "gradients" in self._failed or not self._lossy:
            shares = " that takes the ranks' shares in turn" if self._single.by_shard else ""
            return self._told(
                "gradients", f"of {self._steps} steps equal to those of one process{shares}{narrow}"
            )
        told = f"comm_hook {self._case.comm_hook} rounds them, as asked{narrow}"
        if self._compressed is not None:
            told = (
                f"equal in {POWERSGD_START} steps; from then on PowerSGD compresses them, as asked, and they differ by"
                f" {self._compressed:.1e} of the largest value; before that"
            )
        return self._told("gradients", told, "known")

    def _whole_told(self) -> Check:
        if self._beyond is not None:
            return self._beyond
        if self._no_whole:
            return Check(name="global batch", outcome="cannot tell", detail=self._no_whole)
        equal = "gradients equal to those of one process on the whole batch"
        if not self._lossy:
            return self._told("global batch", equal)
        until = (
            f" until PowerSGD compresses, in {POWERSGD_START} steps" if self._compressed is not None else ""
        )
        rounded = "" if until else f", but for what comm_hook {self._case.comm_hook} rounds, as asked"
        return self._told("global batch", equal + until + rounded, "known")

    def _statistics(self, running: dict[str, Tensor], ours: Tensors, synced: str | None) -> Check:
        if not self._single.normed:
            return Check(
                name="batch norm", outcome="not applicable", detail="the model has no BatchNorm layer"
            )
        if "batch norm" in self._failed:
            return self._failed["batch norm"]
        limit = max(self._tolerance, MOVED)
        found = apart({name: ours.get(name) for name in running}, running, limit)
        if found.first is not None:
            return differing("batch norm", found, limit, found.told(), self._steps)
        self._note("batch norm", found, limit)
        what = "running statistics of the first replica equal to those of its own share"
        if self._case.sync_bn:
            stand_in = ", a reference implementation," if synced and synced.startswith("Reference") else ""
            what = f"running statistics and outputs of {synced}{stand_in} equal to the global batch's"
        return self._told("batch norm", what, limit=limit)

    def _parameters(
        self, theirs: Tensors, ours: Tensors, rest: Tensors, buffers: Tensors, ranks: Check | None
    ) -> Check:
        """`theirs` and `ours` are parameters; `rest` and `buffers` are what else there is."""
        if ranks is not None:
            return ranks
        limit = math.inf if self._lossy else max(self._tolerance, MOVED)
        found, left = self._single.rounding.apart(ours, theirs, limit)
        if found.first is None:
            found = max(
                found, apart_each(buffers, rest, limit), key=lambda one: (one.first is not None, one.relative)
            )
        if found.first is not None:
            return differing(
                "parameters", found, limit, f"{found.told()} after {self._steps} steps", self._steps
            )
        self._worst["parameters"] = found.relative
        if self._lossy:
            told = f"equal on all ranks; compressed gradients took them {found.relative:.1e} of the largest value away"
            return Check(name="parameters", outcome="known", detail=told, relative=found.relative)
        equal = f"after {self._steps} steps equal on all ranks and to those of one process"
        return left_out(left, theirs, equal) if left else self._told("parameters", equal)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """A check, or why it could not be made: the others are told all the same."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the user's tensors
        return Check(name=name, outcome="cannot tell", detail=_reason(error, "cannot be compared"))


def _reason(error: BaseException, what: str = "not in float64") -> str:
    """Of what could not be told, the reason; of any other exception, `what` could not be done, and what it was."""
    return str(error) if isinstance(error, Untellable) else f"{what}: {line(error)}"
