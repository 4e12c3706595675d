"""Look at the accelerators and say what is there: runs in a short process of its own.

The conductor must never initialise an accelerator, so it starts this, which prints one line of JSON:
the fields of machine.Probe.
"""

import contextlib
import json
import os
from typing import Any

from bench.binding import device_numa, pci_address
from bench.environment import device_uuid, parse_visible

PCIE_PATHS = {  # NVML's common ancestor, in the words of `nvidia-smi topo`
    0: "same board", 10: "PIX: one PCIe switch", 20: "PXB: several PCIe switches", 30: "PHB: host bridge",
    40: "NODE: between host bridges of one NUMA node", 50: "SYS: between NUMA nodes",
}  # fmt: skip
UNNAMED = "NVML cannot tell which device this is: name it in CUDA_VISIBLE_DEVICES, by UUID"


def main() -> None:
    """Print what torch and NVML see."""
    found = look()
    print(json.dumps(found), flush=True)


def look() -> dict[str, Any]:
    """Versions, backends, devices and their links, as plain data."""
    import torch

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
        "rocm": getattr(torch.version, "hip", None),
        "nccl": nccl_version(torch),
        "backends": backends(torch),
        "devices": [],
    }
    found |= accelerators(torch)
    found |= nvml_facts(found["devices"])
    return found


def backends(torch: Any) -> list[str]:
    """Collective backends that this torch was built with."""
    distributed = torch.distributed
    if not distributed.is_available():
        return []
    known = [name for name in distributed.Backend.backend_list if name not in ("undefined", "fake")]
    return [name for name in known if distributed.is_backend_available(name)]


def nccl_version(torch: Any) -> str | None:
    """The NCCL that torch was built with."""
    try:
        return ".".join(str(part) for part in torch.cuda.nccl.version())
    except Exception:  # noqa: BLE001 - a build without CUDA fails in its own ways
        return None


def accelerators(torch: Any) -> dict[str, Any]:
    """The accelerator kind and its devices, or in one line why there are none."""
    if not hasattr(torch, "accelerator"):
        return {"device_error": f"torch {torch.__version__} has no torch.accelerator: it is too old"}
    built_for = torch.accelerator.current_accelerator()
    if built_for is None:
        return {"device_error": f"torch {torch.__version__} is built without an accelerator"}
    kind = built_for.type
    module = torch.get_device_module(kind)
    try:
        if torch.accelerator.is_available() and (count := torch.accelerator.device_count()):
            return {"accelerator": kind, "devices": [device(module, kind, index) for index in range(count)]}
        getattr(module, "init", lambda: None)()
    except Exception as error:  # noqa: BLE001 - a driver can fail in any way, and is then the reason
        return {"device_error": one_line(error)}
    return {"device_error": f"torch sees no {kind} device"}


def device(module: Any, kind: str, index: int) -> dict[str, Any]:
    """One device, in the fields of machine.Device; what torch does not say is None."""
    properties = None
    with contextlib.suppress(Exception):
        properties = module.get_device_properties(index)
    pci = pci_address(properties)
    return {
        "index": index,
        "name": str(getattr(properties, "name", None) or kind),
        "uuid": device_uuid(kind, getattr(properties, "uuid", None)),
        "memory_bytes": getattr(properties, "total_memory", None),
        "capability": capability(kind, properties),
        "kind": kind,
        "pci": pci,
        "numa": device_numa(pci),
    }


def capability(kind: str, properties: Any) -> float | None:
    """CUDA's compute capability, 9.0 for a Hopper; None on other devices."""
    try:
        return float(f"{properties.major}.{properties.minor}") if kind == "cuda" else None
    except (AttributeError, ValueError):
        return None


def nvml_facts(devices: list[dict[str, Any]]) -> dict[str, Any]:
    """Driver version, PCIe width and links between devices; adds `pcie` to each device, and settles its UUID."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - no NVIDIA driver is normal
        reason = f"no NVML: {one_line(error)}"
        return {"links_reason": reason, "nvml_error": reason}
    from bench.samplers._nvml import find_handles, text

    facts: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        facts["driver"] = text(pynvml.nvmlSystemGetDriverVersion())
    visible = parse_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
    for one in devices:
        one["uuid"] = settled_uuid(pynvml, one, visible)
        if one["uuid"] is None:
            facts["nvml_error"] = f"cuda:{one['index']}: {UNNAMED}"
    handles = find_handles(pynvml, [one["uuid"] for one in devices if one["uuid"]])
    for one in devices:
        with contextlib.suppress(Exception):
            handle = handles[one["uuid"]]
            generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
            one["pcie"] = f"gen{generation} x{pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"
    return facts | links(pynvml, devices, handles)


def settled_uuid(pynvml: Any, device: dict[str, Any], visible: list[str] | None) -> str | None:
    """A device's UUID as NVML writes it; None where NVML cannot tell which device it is.

    torch may give none (then the PCI address or CUDA_VISIBLE_DEVICES tells), and may give a card's for a
    MIG slice of it: then the slice is the one named in CUDA_VISIBLE_DEVICES, or the only one there is.
    """
    from bench.samplers._nvml import find_handles, slices, split, uuid_of

    uuid, index = device["uuid"], device["index"]
    named = find_handles(pynvml, visible[index : index + 1] if visible else ())
    with contextlib.suppress(Exception):
        found = list(find_handles(pynvml, [uuid] if uuid else ()).values())
        found = found or ([pynvml.nvmlDeviceGetHandleByPciBusId(device["pci"])] if not uuid else [])
        if found and split(pynvml, found[0]):
            found = list(named.values()) or slices(pynvml, found[0])
            uuid = None
        if len(found) == 1:
            return uuid_of(pynvml, found[0])
    return uuid or next(iter(named), None)


def links(pynvml: Any, devices: list[dict[str, Any]], handles: dict[str, Any]) -> dict[str, Any]:
    """How each pair of devices is joined, in the fields of machine.Link."""
    if len(devices) < 2:
        return {"links_reason": "fewer than two devices"}
    known = [(one["index"], handles[one["uuid"]]) for one in devices if one["uuid"] in handles]
    found = [
        {"first": i, "second": j, "path": path(pynvml, a, b)}
        for at, (i, a) in enumerate(known)
        for j, b in known[at + 1 :]
    ]
    return {"links": found} if found else {"links_reason": "NVML does not know these devices"}


def path(pynvml: Any, first: Any, second: Any) -> str:
    """NVLinks between two devices where there are any, else the PCIe path."""
    ends, other = nvlinks(pynvml, first), nvlinks(pynvml, second)
    address = peer_address(pynvml, second)
    count = ends.count(address) if address else 0
    count = count or min(ends.count("switch"), other.count("switch"))
    if count:
        return f"NVLink x{count}"
    try:
        return PCIE_PATHS.get(pynvml.nvmlDeviceGetTopologyCommonAncestor(first, second), "unknown")
    except Exception as error:  # noqa: BLE001 - not every driver answers this
        return f"unknown ({type(error).__name__.removeprefix('NVMLError_')})"


def nvlinks(pynvml: Any, handle: Any) -> list[str]:
    """Where each active NVLink of a device ends: the peer's PCI address, or "switch"."""
    ends = []
    for link in range(getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)):
        with contextlib.suppress(Exception):  # links past the last one raise InvalidArgument or NotSupported
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) != 1:
                continue
            switched = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == 2
            remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link)
            ends.append("switch" if switched else bus_id(remote))
    return ends


def peer_address(pynvml: Any, handle: Any) -> str | None:
    """The address by which NVLinks of other devices name this one."""
    with contextlib.suppress(Exception):
        return bus_id(pynvml.nvmlDeviceGetPciInfo(handle))
    return None


def bus_id(info: Any) -> str:
    """domain:bus:device, however long NVML writes the domain."""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}"


def one_line(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
