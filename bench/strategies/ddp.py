"""torch's DistributedDataParallel, one rank a device; at world size 1 it wraps as well."""

from typing import Any

from bench.plugins import Strategy


def wrap(model: Any, case: Any, place: Any) -> Any:
    """The model in DDP with the case's options; SyncBN, where asked for, is put in before wrapping."""
    from bench.strategies._ddp import wrap_ddp

    return wrap_ddp(model, case, place)


PLUGIN = Strategy(
    "DistributedDataParallel: one rank a device",
    wrap,
    collective=True,
    ddp_options=True,
    wrappers=("DistributedDataParallel",),
)
