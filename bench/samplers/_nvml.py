"""Finding devices in NVML by UUID; used by the sampler and by the device probe."""

import contextlib
from collections.abc import Iterable
from typing import Any

from bench.environment import bare_uuid


def find_handles(nvml: Any, uuids: Iterable[str]) -> dict[str, Any]:
    """NVML handle by wanted UUID, MIG slices included. A card that cannot be asked is passed over.

    A slice is known by its own UUID and, as older drivers write it, by MIG-GPU-<card>/<instance>/<instance>.
    """
    wanted = {bare_uuid(uuid): uuid for uuid in uuids}
    found: dict[str, Any] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        for name, handle in _named(nvml, index):
            if name in wanted:
                found.setdefault(wanted[name], handle)
    return found


def slices(nvml: Any, card: Any) -> list[Any]:
    """Handles of the MIG slices of a card."""
    found = []
    with contextlib.suppress(Exception):  # most cards have no MIG
        for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
            with contextlib.suppress(Exception):  # slots need not be filled
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, slot))
    return found


def split(nvml: Any, handle: Any) -> bool:
    """Whether this is a card in MIG mode: no process can use it as a whole."""
    with contextlib.suppress(Exception):
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == 1)
    return False


def uuid_of(nvml: Any, handle: Any) -> str:
    """The UUID as NVML writes it. Raises what NVML raises."""
    return text(nvml.nvmlDeviceGetUUID(handle))


def _named(nvml: Any, index: int) -> list[tuple[str, Any]]:
    """Each name, without prefix, of a card and of its slices."""
    found: list[tuple[str, Any]] = []
    with contextlib.suppress(Exception):  # lost, or forbidden
        card = nvml.nvmlDeviceGetHandleByIndex(index)
        name = bare_uuid(uuid_of(nvml, card))
        found.append((name, card))
        for handle in slices(nvml, card):
            with contextlib.suppress(Exception):
                found.append((bare_uuid(uuid_of(nvml, handle)), handle))
            with contextlib.suppress(Exception):
                instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
                found.append((f"{name}/{instance}/{nvml.nvmlDeviceGetComputeInstanceId(handle)}", handle))
    return found


def text(value: str | bytes) -> str:
    """NVML names are bytes or str, depending on the version of its bindings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def why(error: BaseException) -> str:
    """The name of an NVML error (NotSupported, NoPermission, ...), or what else went wrong."""
    name = type(error).__name__
    return name.removeprefix("NVMLError_") if name.startswith("NVMLError_") else f"{name}: {error}"
