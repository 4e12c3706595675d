"""What this host offers: CPUs really usable, memory, /dev/shm, files, networks, devices; and its fingerprint.

Torch-free: the conductor must never initialise an accelerator, so devices and versions come from a
short probe process (device_probe.py). Sizes are in bytes; None means "not known" or "no limit" and is never 0.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from bench import probe_cache
from bench.cgroup import cpu_quota, memory_limit_bytes
from bench.environment import device_index, no_nvml, parse_visible, speed_variables
from bench.plugins import clip

__all__ = [
    "Device", "Host", "Link", "Nic", "comparable", "cpu_quota", "device_index", "device_kind", "fingerprint",
    "memory_limit_bytes", "own_python", "parse_visible", "probe_host", "slots", "speed_variables",
    "suggest_workers", "usable_cpus",
]  # fmt: skip

PROBE_TIMEOUT_S = 60.0
# what an environment brings along: under test where two of them run side by side on one machine
SOFTWARE = frozenset({"torch", "cuda", "rocm", "nccl", "python", "scalemark"})


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One visible accelerator; `index` is its ordinal among the visible ones."""

    index: int
    name: str
    kind: str  # torch's device type: cuda, xpu, mps, ...
    uuid: str | None = None
    memory_bytes: int | None = None
    capability: float | None = None  # CUDA's compute capability: 9.0
    pci: str | None = None
    pcie: str | None = None  # widest link: "gen5 x16"
    numa: int | None = None


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """How two devices are joined: "NVLink x18", or the PCIe path."""

    first: int
    second: int
    path: str


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """One network interface."""

    name: str
    speed_mbit: int | None
    up: bool
    address: str | None
    loopback: bool
    kind: str | None = None  # ethernet, loopback, infiniband (IPoIB), virtual (no hardware of its own)


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port of an InfiniBand or RoCE adapter, in the kernel's own words."""

    device: str
    port: int
    state: str | None = None  # ACTIVE, DOWN, ...
    rate: str | None = None  # "200 Gb/sec (4X HDR)"
    link_layer: str | None = None  # InfiniBand, or Ethernet for RoCE


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe process saw; all empty, with the reason, where it failed."""

    torch: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    nccl: str | None = None
    driver: str | None = None
    backends: list[str] = []
    accelerator: str | None = None
    devices: list[Device] = []
    device_error: str | None = None
    nvml_error: str | None = None
    links: list[Link] | None = None
    links_reason: str | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as a study records it."""

    hostname: str
    hostname_address: str | None = None  # what the name resolves to here
    os: str = ""
    kernel: str = ""
    python: str = ""
    cpu_model: str = ""
    cpus_counted: int
    cpus_affinity: int
    cpu_quota: float | None = None
    cpus_usable: int
    numa_nodes: int | None = None
    governor: str | None = None
    clocksource: str | None = None
    compiler: str | None = None  # a C++ compiler, as torch.compile needs it
    cpu_formats: list[str] | None = (
        None  # of bf16 and fp16, those that the CPU computes itself; None: not known
    )
    libraries: dict[str, str] = {}  # of models: those that are installed, with their versions
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    fd_soft: int | None = None
    fd_hard: int | None = None
    nics: list[Nic] = []
    ports: list[Port] = []
    torch: str | None = None
    cuda: str | None = None  # or ROCm, as torch was built for
    rocm: str | None = None  # set where torch's "cuda" devices are AMD's
    nccl: str | None = None
    driver: str | None = None
    backends: list[str] = []
    accelerator: str | None = None
    devices: list[Device] = []
    device_error: str | None = None  # why there are no devices
    nvml_error: str | None = None  # why NVML, or a device of it, cannot be asked
    device_links: list[Link] | None = None
    device_links_reason: str | None = None
    visible: list[str] | None = None  # CUDA_VISIBLE_DEVICES; None: unset
    variables: dict[str, str] = {}  # set, and known to change speed


def probe_host() -> Host:
    """Look at this host; the devices are looked for once a process."""
    from bench import hostfacts  # psutil: only where a host is really looked at

    probe = probe_devices()
    affinity, quota = hostfacts.affinity(), cpu_quota()
    return Host(
        **hostfacts.facts(),
        cpus_counted=os.cpu_count() or 1,
        cpus_affinity=affinity,
        cpu_quota=quota,
        cpus_usable=usable_cpus(affinity, quota),
        memory_limit_bytes=memory_limit_bytes(),
        torch=probe.torch,
        cuda=probe.cuda,
        rocm=probe.rocm,
        nccl=probe.nccl,
        driver=probe.driver,
        backends=probe.backends,
        accelerator=probe.accelerator,
        devices=probe.devices,
        device_error=probe.device_error,
        nvml_error=probe.nvml_error,
        device_links=probe.links,
        device_links_reason=probe.links_reason,
        visible=parse_visible(os.environ.get("CUDA_VISIBLE_DEVICES")),
        variables=speed_variables(os.environ),
    )


@cache
def probe_devices() -> Probe:
    """Ask a short process what torch and NVML see. A probe that fails is a host without devices.

    An answer of a host that can have no accelerator is kept (probe_cache.py): importing torch takes seconds.
    """
    place = probe_cache.place()
    kept = _decoded(probe_cache.read(place))
    if kept is not None:
        return kept
    command = own_python("from bench.device_probe import main; main()")
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, timeout=PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return _no_probe(f"did not answer within {PROBE_TIMEOUT_S:.0f} s")
    except OSError as error:
        return _no_probe(f"did not start: {error}")
    answer = (done.stdout.splitlines() or [b""])[-1]
    probe = _decoded(answer)
    if probe is None:
        complaint = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        return _no_probe(f"exit code {done.returncode}: {clip(complaint[-1], 200)}")
    if probe.torch is not None and not probe.devices:
        probe_cache.keep(place, answer)
    return probe


def _decoded(answer: bytes | None) -> Probe | None:
    try:
        return None if answer is None else msgspec.json.decode(answer, type=Probe)
    except msgspec.DecodeError:
        return None


def _no_probe(reason: str) -> Probe:
    return Probe(device_error=f"device probe: {reason}", links_reason="device probe failed")


def own_python(statement: str) -> list[str]:
    """argv of a fresh interpreter that runs a statement of this package.

    Neither the working directory nor a script's folder is on its path: a user's own `bench` cannot
    take the place of this one.
    """
    root = str(Path(__file__).absolute().parent.parent)  # as found: beside a link to it lies nothing else
    return [sys.executable, "-P", "-c", f"import sys; sys.path.append({root!r}); {statement}"]


def usable_cpus(affinity: int, quota: float | None) -> int:
    """Whole CPUs this process can use: the smaller of affinity mask and control-group quota, at least 1."""
    return max(1, int(min(affinity, quota if quota is not None else affinity)))


def suggest_workers(usable: int, local_ranks: int) -> int:
    """Most loader workers a rank that leave each rank a CPU of its own: floor(usable / ranks) - 1, at least 0."""
    return max(0, usable // max(1, local_ranks) - 1)


def slots(host: Host) -> int:
    """Device slots: accelerators where there are any, else usable CPUs."""
    return len(host.devices) or host.cpus_usable


def device_kind(host: Host) -> str:
    """torch's device type for the ranks of this host; "cpu" where there is no accelerator."""
    return host.accelerator if host.accelerator and host.devices else "cpu"


def watched_uuids(host: Host) -> tuple[str, ...]:
    """The devices that are watched beside the ranks: NVIDIA's, by UUID."""
    known = tuple(device.uuid for device in host.devices if device.uuid)
    return () if no_nvml(device_kind(host), host.rocm) else known


def unwatched(host: Host) -> str | None:
    """Why accelerators of this host are not watched, in one line; None where they are, or there are none."""
    return no_nvml(device_kind(host), host.rocm) or (host.nvml_error if host.devices else None)


def comparable(host: Host) -> dict[str, Any]:
    """What must be equal for results of two hosts to be compared, by name."""
    return comparable_facts(msgspec.to_builtins(host))


def comparable_facts(host: Mapping[str, Any]) -> dict[str, Any]:
    """`comparable` of a host as a study records it: plain data, of an older version where fields are missing."""
    return {
        "cpu_model": host.get("cpu_model"),
        "cpus_usable": host.get("cpus_usable"),
        "cpu_quota": host.get("cpu_quota"),
        "numa_nodes": host.get("numa_nodes"),
        "governor": host.get("governor"),
        "devices": [device["name"] for device in host.get("devices") or ()],
        "device_links": sorted(link["path"] for link in host.get("device_links") or ()),
        "driver": host.get("driver"),
        "torch": host.get("torch"),
        "cuda": host.get("cuda"),
        "nccl": host.get("nccl"),
    }


def fingerprint(host: Host) -> str:
    """Twelve hex digits that are equal where `comparable` is equal, in every process and on every host."""
    text = msgspec.json.encode(comparable(host), order="deterministic")
    return hashlib.sha256(text).hexdigest()[:12]
