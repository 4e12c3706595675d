"""Verify one way of training in its ranks: the same weights, samples, gradients and parameters as one process.

Everything is computed in float64, uncompiled and without dropout; rank 0 trains the reference beside its own part.
"""

import os
from collections.abc import Callable, MutableSequence
from contextlib import nullcontext
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from bench import plugins, progress, recipe
from bench import verify_tensors as tensors
from bench.build import Source, make_model, make_source, move
from bench.case import Case
from bench.equality import TRAINED, Equality
from bench.float64 import Untellable, calm, doubled, mapped, to_double
from bench.joining import enter
from bench.loop import Training
from bench.options import data_plugin
from bench.place import Place
from bench.records import Launch
from bench.single_process import Single
from bench.user import workload as build_workload
from bench.verify_batchnorm import Outputs
from bench.verify_records import Check
from bench.verify_room import no_room
from bench.verify_samples import sampled
from bench.workload import Workload


def work(
    launch: Launch, beat: MutableSequence[int], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run all checks of the launch's way of training; their results are in rank 0's trace."""
    case = launch.case
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    single = Single(case) if os.environ["RANK"] == "0" else None
    place, rendezvous_s = enter(launch, strategy, beat)
    torch.manual_seed(case.seed)
    workload = build_workload(case)
    case = _loading(case, workload)
    weights: tensors.Tensors = tensors.parameters(workload.model) | tensors.buffers(workload.model)
    checks = [_weights(weights, single, strategy)]
    torch.manual_seed(case.seed + 1 + place.rank)
    source = make_source(case, workload, strategy, place)
    found, alike = sampled(case, workload, source)
    checks += found
    beat[progress.STATE] = progress.WINDOW
    if alike:
        checks += _trained(case, workload, strategy, place, source, single, weights)
    else:
        told = "ranks have data sets of different lengths"
        checks += [Check(name=name, outcome="cannot tell", detail=told) for name in TRAINED]
    return {"rendezvous_s": rendezvous_s, "verified": tuple(checks) if place.rank == 0 else None}


def _loading(case: Case, workload: Workload) -> Case:
    """The case with a loader: one batch that lies on every device is the same on all, and hides what differs."""
    if data_plugin(case.data)[0].loader:
        return case
    data = "synthetic" if workload.dataset is None else "own"
    return msgspec.structs.replace(case, data=data, data_args={})


def _weights(weights: tensors.Tensors, single: Single | None, strategy: plugins.Strategy) -> Check:
    """Whether all ranks, and one process on its own, build the same model."""
    by_rank = tensors.everyone(tensors.digests(weights))
    found = tensors.unequal(by_rank)
    if found is not None:
        between = tensors.between(weights, *found)
        told = f"ranks build different models: {between.told()} between rank 0 and rank {found[1]}"
        mended = "; DDP sends rank 0's to all" if strategy.ddp_options else ""
        return tensors.differing("weights", between, 0.0, told + mended)
    if single is not None and (other := tensors.unequal([by_rank[0], single.digests])) is not None:
        name = other[0]
        theirs = single.tensors()
        between = tensors.of_one(name, weights.get(name), theirs.get(name))
        told = f"one process on its own, with the same seed, builds another model: {between.told()}"
        return tensors.differing("weights", between, 0.0, told)
    count = len(by_rank)
    ranks = "the process's own" if count == 1 else f"those of {count} ranks"
    told = f"{len(weights)} tensors: {ranks} and those that one process builds by itself have equal hashes"
    return Check(name="weights", outcome="pass", detail=told)


def _trained(
    case: Case, workload: Workload, strategy: plugins.Strategy, place: Place, source: Source, single: Single | None,
    weights: tensors.Tensors,
) -> list[Check]:  # fmt: skip
    """Train a few steps, rank 0 with the reference beside it."""
    why = next(filter(None, tensors.everyone(_unready(case, workload, place))), None)
    judge = Equality(case, strategy, place, single, weights) if single is not None and why is None else None
    loaded = _loaded(case, source) if why is None else []
    if why is None:
        by_rank = tensors.to_first(loaded)
        told = judge.look(_moved(by_rank, place, case)) if judge is not None else None
        why = tensors.everyone(told)[0]
    if why is not None:
        return [Check(name=name, outcome="cannot tell", detail=why) for name in TRAINED]
    model = make_model(case, workload, strategy, place)
    synced = [
        type(m).__name__ for m in model.modules() if isinstance(m, _BatchNorm) and "Sync" in type(m).__name__
    ]
    optimizer = recipe.make_optimizer(case, workload, strategy, model)
    training = recipe.make_training(
        case, workload, place, model, optimizer, source.batches,
        lambda batch: doubled(move(batch, place.device, case)),
    )  # fmt: skip
    outputs = Outputs(model) if case.sync_bn else None
    for step in range(case.steps):
        if step:
            loaded = _loaded(case, source)
            by_rank = tensors.to_first(loaded)
        loss = _backward(training, loaded)
        gradients = tensors.gradients(model)
        told_by = tensors.to_first((loss, outputs.last if outputs is not None else None))
        if judge is not None:
            mean = sum(one for one, _ in told_by) / len(told_by)
            judge.take(_moved(by_rank, place, case), mean, gradients, [last for _, last in told_by])
        training.step()
    after, buffers = tensors.parameters(model), tensors.buffers(model)
    ranks = _ranks_differ(after)
    return judge.end(after, buffers, ranks, synced[0] if synced else None) if judge is not None else []


def _unready(case: Case, workload: Workload, place: Place) -> str | None:
    """Put the model into float64, without dropout; why that cannot be, or None."""
    if place.device.type == "mps":
        return "mps has no float64"
    try:
        to_double(calm(workload.model))
    except Untellable as error:
        return str(error)
    return no_room(workload.model, case, place)


def _loaded(case: Case, source: Source) -> list[Any]:
    """This rank's micro-batches of one step, as they come from the loader, in host memory."""
    return [mapped(next(source.batches), Tensor.cpu) for _ in range(case.grad_accumulation)]


def _moved(by_rank: list[list[Any]], place: Place, case: Case) -> list[list[Any]]:
    """Batches of all ranks, by micro-batch and rank, in float64 on rank 0's device."""
    return [
        [doubled(move(batch, place.device, case)) for batch in ranks] for ranks in zip(*by_rank, strict=True)
    ]


def _backward(training: Training, batches: list[Any]) -> float:
    """Forward and backward of a step, as the timed loop does them; the step's loss on this rank."""
    total = 0.0
    for number, batch in enumerate(batches):
        with nullcontext() if number == len(batches) - 1 else training.unsynchronised():
            loss = training.loss(training.to_device(batch))
            training.backward(loss)
        total += float(loss.detach())
    return total


def _ranks_differ(after: tensors.Tensors) -> Check | None:
    """The failed check where ranks do not hold the same parameters after their last step."""
    found = tensors.unequal(tensors.everyone(tensors.digests(after)))
    if found is None:
        return None
    between = tensors.between(after, *found)
    told = f"ranks hold different parameters: {between.told()} between rank 0 and rank {found[1]}"
    return tensors.differing("parameters", between, 0.0, told)
