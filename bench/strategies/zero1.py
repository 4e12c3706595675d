"""ZeRO stage 1: DDP whose optimizer state is split over the ranks (ZeroRedundancyOptimizer)."""

import inspect
from typing import Any

from bench.plugins import Strategy


def wrap(model: Any, case: Any, place: Any) -> Any:
    """The model in DDP: gradients are exchanged whole, as under `ddp`."""
    from bench.strategies._ddp import wrap_ddp

    return wrap_ddp(model, case, place)


def optimizer(make: Any, parameters: Any) -> Any:
    """The workload's optimizer, each rank with the state of its share of the parameters.

    Class, defaults and parameter groups are read off the optimizer that the workload makes.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer

    own = make(list(parameters))
    known = inspect.signature(type(own)).parameters
    defaults = {name: value for name, value in own.defaults.items() if name in known}
    groups = [
        {name: value for name, value in group.items() if name in known or name == "params"}
        for group in own.param_groups
    ]
    return ZeroRedundancyOptimizer(groups, optimizer_class=type(own), **defaults)


PLUGIN = Strategy(
    "DDP with optimizer state split over the ranks (ZeroRedundancyOptimizer)",
    wrap,
    collective=True,
    ddp_options=True,
    optimizer=optimizer,
    wrappers=("DistributedDataParallel",),
)
