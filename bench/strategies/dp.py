"""torch.nn.DataParallel: one process drives all devices. On CPU a reference stands in, and says so."""

from typing import Any

from bench.plugins import Strategy


def wrap(model: Any, case: Any, place: Any) -> Any:
    """DataParallel over the devices of this host, or its reference on CPU."""
    if place.accelerated:
        from torch.nn import DataParallel

        return DataParallel(model.to(place.device), device_ids=list(place.devices))
    from bench.strategies._reference_dp import ReferenceDataParallel

    return ReferenceDataParallel(model, case.ranks)


PLUGIN = Strategy(
    "DataParallel: one process, a thread a device",
    wrap,
    single_process=True,
    reference_on_cpu=True,
    wrappers=("DataParallel", "ReferenceDataParallel"),
)
