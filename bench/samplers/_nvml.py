"""Finding devices in NVML by UUID; used by the sampler and by the device probe."""

import contextlib
import re
from collections.abc import Iterable
from typing import Any


def find_handles(nvml: Any, uuids: Iterable[str]) -> dict[str, Any]:
    """NVML handle by wanted UUID, MIG slices included. A card that cannot be asked is passed over."""
    wanted = {_bare(uuid): uuid for uuid in uuids}
    found = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        for handle in _card_and_slices(nvml, index):
            with contextlib.suppress(Exception):
                uuid = _bare(text(nvml.nvmlDeviceGetUUID(handle)))
                if uuid in wanted:
                    found[wanted[uuid]] = handle
    return found


def _card_and_slices(nvml: Any, index: int) -> list[Any]:
    handles: list[Any] = []
    with contextlib.suppress(Exception):  # lost, forbidden, or a card without MIG
        handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
        for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handles[0])):
            with contextlib.suppress(Exception):  # slots need not be filled
                handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handles[0], slot))
    return handles


def text(value: str | bytes) -> str:
    """NVML names are bytes or str, depending on the version of its bindings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def why(error: BaseException) -> str:
    """The name of an NVML error (NotSupported, NoPermission, ...), or what else went wrong."""
    name = type(error).__name__
    return name.removeprefix("NVMLError_") if name.startswith("NVMLError_") else f"{name}: {error}"


def _bare(uuid: str) -> str:
    return re.sub(r"^(GPU|MIG)-", "", uuid.strip()).lower()
