"""Write and read checkpoints in a rank: train a few steps, then every save and load that the launch asks for."""

from collections.abc import Callable, MutableSequence
from typing import Any

import torch
from torch import nn

from bench import plugins, progress, recipe
from bench.build import make_model, make_source, move
from bench.checkpoint_desk import Desk
from bench.checkpoint_loading import Loader
from bench.checkpoint_records import Attempt
from bench.checkpoint_saving import Saver
from bench.errors import BenchError
from bench.joining import enter
from bench.place import Place
from bench.plugins import Strategy
from bench.records import Launch, marks_a_step
from bench.user import workload as build_workload

STEPS = 2  # of training: the optimizer has its state, batch norm its statistics


def work(
    launch: Launch, beat: MutableSequence[int], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Save and load as the launch asks; returns fields of a RankTrace.

    A save or load that fails is an Attempt that says so, and the next one is tried.
    """
    job = launch.checkpointing
    if job is None:
        raise BenchError("the launch does not say what to save or load")
    strategy: Strategy = plugins.load("strategies", launch.case.strategy)
    place, rendezvous_s = enter(launch, strategy, beat)
    model, optimizer = _trained(launch, strategy, place)
    desk = Desk(job, place, model, optimizer)
    beat[progress.STATE], beat[progress.PLANNED] = progress.WINDOW, len(job.saves) + len(job.loads)
    done: list[Attempt] = []

    def note(attempt: Attempt) -> None:
        done.append(attempt)
        beat[progress.MARKS] += marks_a_step(1)
        keep({"checkpoints": tuple(done), "rendezvous_s": rendezvous_s})

    if job.saves:
        saver = Saver(desk)
        for save in job.saves:
            note(saver.save(save))
    loader = Loader(desk)
    for load in job.loads:
        note(loader.load(load))
    return {"checkpoints": tuple(done), "rendezvous_s": rendezvous_s}


def _trained(launch: Launch, strategy: Strategy, place: Place) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model and optimizer after a few steps."""
    torch.manual_seed(launch.case.seed)  # equal on every rank: the same model
    workload = build_workload(launch.case)
    model = make_model(launch.case, workload, strategy, place)
    optimizer = recipe.make_optimizer(launch.case, workload, strategy, model)
    torch.manual_seed(launch.case.seed + 1 + place.rank)  # different on every rank: the data
    source = make_source(launch.case, workload, strategy, place)
    training = recipe.make_training(
        launch.case, workload, place, model, optimizer, source.batches,
        lambda batch: move(batch, place.device, launch.case),
    )  # fmt: skip
    for _ in range(STEPS):
        training.backward(training.loss(training.to_device(next(training.batches))))
        training.step()
    return model, optimizer
