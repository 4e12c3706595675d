"""One device, no wrapper: the base that the others are held against."""

from typing import Any

from bench.plugins import Strategy


def wrap(model: Any, case: Any, place: Any) -> Any:
    """The model itself, on its device."""
    return model.to(place.device)


PLUGIN = Strategy("one device, no wrapper", wrap, one_device=True)
