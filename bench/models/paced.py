"""A stand-in for a model: sleeps a stated time per sample; its gradients and collectives are real.

Sleeping ranks do not compete for cores, so a small host shows scaling whose right answer is known.
"""

import os
from typing import TYPE_CHECKING

from bench.case import Case
from bench.errors import UsageError
from bench.options import option
from bench.plugins import Model, Options

if TYPE_CHECKING:
    from bench.workload import Workload

CLASSES = 10
OPTIONS: Options = {
    "forward_s_per_sample": 0.004,
    "backward_s_per_sample": 0.0085,
    "parameters": 1000,
    "layers": 8,
    "slow_rank": -1,
    "slow_forward_s": 0.0,
    "slow_backward_s": 0.0,
}


def build(case: Case) -> "Workload":
    """The stand-in; `slow_rank` is late by `slow_forward_s` and `slow_backward_s` in every step."""
    from bench.models._paced import PacedLoss, PacedModel
    from bench.workload import Sample, Workload

    options = {key: option(case.model_args, OPTIONS, key) for key in OPTIONS}
    if options.pop("slow_rank") != int(os.environ.get("RANK", "0")):
        options.update(slow_forward_s=0.0, slow_backward_s=0.0)
    # under DataParallel the largest chunk decides, as it does for the replicas
    forward_s = case.device_batch * options["forward_s_per_sample"] + options["slow_forward_s"]
    return Workload(PacedModel(**options), loss=PacedLoss(forward_s), sample=Sample((CLASSES,), CLASSES))


def check(case: Case) -> None:
    """Raise UsageError for fewer parameters than layers."""
    parameters, layers = (option(case.model_args, OPTIONS, key) for key in ("parameters", "layers"))
    if parameters < layers:
        raise UsageError(
            f"model_args of 'paced': parameters = {parameters} for {layers} layers: "
            "a layer needs at least one parameter"
        )


PLUGIN = Model(
    "sleeps a stated time per sample, with real gradients (a stand-in)",
    build,
    options=OPTIONS,
    check=check,
    stand_in=True,
)
