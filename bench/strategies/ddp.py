"""torch's DistributedDataParallel, one rank a device; at world size 1 it wraps as well."""

from typing import Any

from bench.plugins import Strategy


def wrap(model: Any, case: Any, place: Any) -> Any:
    """The model in DDP; SyncBN, where asked for, is put in before wrapping."""
    from torch.nn.parallel import DistributedDataParallel

    from bench.strategies._sync_bn import convert

    if case.sync_bn:
        model = convert(model, place.accelerated)
    model = model.to(place.device)
    return DistributedDataParallel(model, device_ids=[place.device] if place.accelerated else None)


PLUGIN = Strategy("DistributedDataParallel: one rank a device", wrap, collective=True)
