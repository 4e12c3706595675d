"""Which CPUs a rank and its loader workers may use: recorded always, changed only when a case asks for it."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.errors import BenchError

SYSTEM = Path("/sys/devices/system")


def bind(how: str, local_rank: int, local_ranks: int, device_numa: int | None) -> None:
    """Bind this process, and what it starts later, to its share of the CPUs it may use. Reads back what holds.

    `cores`: an equal run of neighbouring CPUs for every rank of the node; threads of one core stay together.
    `numa`: the CPUs of its device's NUMA node; without a device the nodes are dealt out evenly.
    Raises BenchError where a rank would have no CPU, or the system keeps another set.
    """
    usable = sorted(os.sched_getaffinity(0))
    if how == "cores":
        wanted = share(neighbours(usable), local_rank, local_ranks)
    else:
        nodes = {node: cpus for node, cpus in numa_nodes().items() if cpus & set(usable)}
        node = device_numa if device_numa in nodes else dealt(sorted(nodes), local_rank, local_ranks)
        wanted = [cpu for cpu in usable if node is not None and cpu in nodes[node]]
    if not wanted:
        raise BenchError(
            f"cpu_binding {how}: no CPU for local rank {local_rank} of {local_ranks} among {len(usable)} usable ones;"
            " lower ranks, or leave cpu_binding out"
        )
    os.sched_setaffinity(0, wanted)
    if os.sched_getaffinity(0) != set(wanted):
        raise BenchError(f"cpu_binding {how}: the system did not take CPUs {wanted}")


def share(cpus: Sequence[int], part: int, parts: int) -> list[int]:
    """Part number `part` of `parts` equal runs; what does not divide is left unused."""
    size = len(cpus) // parts
    return list(cpus[part * size : (part + 1) * size])


def dealt(nodes: Sequence[int], local_rank: int, local_ranks: int) -> int | None:
    """The NUMA node of a rank without a device: neighbouring ranks share one."""
    return nodes[local_rank * len(nodes) // local_ranks] if nodes else None


def neighbours(cpus: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """CPUs such that threads of one core, and cores of one NUMA node, stand side by side."""
    node_of = {cpu: node for node, members in numa_nodes(system).items() for cpu in members}
    return sorted(cpus, key=lambda cpu: (node_of.get(cpu, 0), min(_siblings(cpu, system)), cpu))


def numa_nodes(system: Path = SYSTEM) -> dict[int, set[int]]:
    """CPUs by NUMA node; empty where the kernel does not say."""
    found = {}
    for folder in system.glob("node/node[0-9]*"):
        cpus = _cpu_list(folder / "cpulist")
        if cpus:
            found[int(folder.name.removeprefix("node"))] = cpus
    return found


def nodes_of(cpus: Iterable[int], system: Path = SYSTEM) -> tuple[int, ...] | None:
    """NUMA nodes that a set of CPUs touches; None where the kernel does not say."""
    wanted, nodes = set(cpus), numa_nodes(system)
    return tuple(sorted(node for node, members in nodes.items() if members & wanted)) if nodes else None


def affinity_of(pid: int) -> tuple[int, ...] | None:
    """CPUs that a process may use; None once it has ended."""
    try:
        return tuple(sorted(os.sched_getaffinity(pid)))
    except OSError:
        return None


def pci_address(properties: Any) -> str | None:
    """domain:bus:device.function of a device by torch's properties, the name of its folder in sysfs; or None."""
    try:
        return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    except (AttributeError, TypeError, ValueError):
        return None


def device_numa(pci: str | None) -> int | None:
    """NUMA node of a PCI device by its bus id; None without one, and where the system does not say (-1)."""
    if pci is None:
        return None
    try:
        node = int(Path(f"/sys/bus/pci/devices/{pci.lower()}/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _siblings(cpu: int, system: Path) -> set[int]:
    return _cpu_list(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu}


def _cpu_list(path: Path) -> set[int]:
    """`0-3,8` as a set; empty where the file is missing or empty."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus
