"""`scalemark doctor`: what this host offers, and what about it will bite."""

import shutil
import textwrap
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from bench.environment import read_visible
from bench.hints import Hint, fault_hints
from bench.machine import (
    Device,
    Host,
    Nic,
    Port,
    device_kind,
    fingerprint,
    probe_host,
    slots,
    suggest_workers,
    unwatched,
    watched_uuids,
)
from bench.plugins import clip
from bench.wording import plural, size

LABEL = 12  # width of the column of labels
NARROW = 60  # below this many columns a label stands on a line of its own


def doctor(
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """What this host and its network offer, and what will bite."""
    run(json_out=json)


def run(json_out: bool = False) -> int:
    """Look at this host and print what is there. Always 0: a host that bites is an answer."""
    host = probe_host()
    hints = fault_hints(host)
    if json_out:
        found = {"fingerprint": fingerprint(host), "slots": slots(host), "host": host, "hints": hints}
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        width = max(30, min(110, shutil.get_terminal_size().columns))
        print("\n".join(text(host, hints, width)))
    return 0


def text(host: Host, hints: list[Hint], width: int = 80) -> list[str]:
    """The answer as lines of at most `width` columns (a single long word is never cut)."""
    lines = []
    for label, *facts in sections(host):
        lines += _row(label, facts, width)
    lines += ["", "What will bite" if hints else "Nothing here looks as if it would bite."]
    for number, hint in enumerate(hints, 1):
        lines += ["", *_wrap(f"{hint.message} [{hint.code}]", width, f"{number:2}. ", "    ")]
        lines += _wrap(hint.remedy, width, "    -> ", "       ")
    return lines


def sections(host: Host) -> Iterator[tuple[str, ...]]:
    """Label and facts, in the order in which a reader asks."""
    kernel = f"kernel {host.kernel}" if host.kernel else ""
    yield ("Host", ", ".join(filter(None, (host.hostname, host.os, kernel))))
    yield (
        ("Devices", *(_device(one) for one in host.devices))
        if host.devices
        else ("Devices", _no_devices(host))
    )
    if "CUDA_VISIBLE_DEVICES" in host.variables:
        yield ("Visible", _visible(host))
    yield ("Links", *_links(host))
    if host.devices:
        yield ("Telemetry", *_telemetry(host))
    yield ("CPUs", *_cpus(host))
    limit = "no limit" if host.memory_limit_bytes is None else f"limit {size(host.memory_limit_bytes)}"
    yield ("Memory", f"{size(host.memory_bytes)}, {limit}")
    yield ("/dev/shm", _shm(host))
    yield ("Open files", f"{_limit(host.fd_soft)} (hard limit: {_limit(host.fd_hard)})")
    yield ("Network", *(_nic(nic) for nic in host.nics), *(_port(port) for port in host.ports))
    yield ("Software", *_software(host))
    yield ("Slots", *_slots(host))
    if host.variables:
        yield ("Variables", *(f"{name}={value}" for name, value in host.variables.items()))
    yield ("Fingerprint", fingerprint(host))


def _device(device: Device) -> str:
    where = [f"PCI {device.pci}"] * bool(device.pci) + [device.pcie or ""]
    where += [] if device.numa is None else [f"NUMA node {device.numa}"]
    facts = [
        f"{device.kind}:{device.index} {device.name}",
        size(device.memory_bytes),
        *where,
        device.uuid or "",
    ]
    return ", ".join(filter(None, facts))


def _no_devices(host: Host) -> str:
    return f"none: {host.device_error}" if host.device_error else "none"


def _visible(host: Host) -> str:
    """What CUDA_VISIBLE_DEVICES means: which name became which device, and what of it is ignored."""
    value = host.variables["CUDA_VISIBLE_DEVICES"]
    entries, ignored = read_visible(value)
    pairs = zip(host.devices, entries or (), strict=False)
    named = [f"{device.kind}:{device.index} is {_entry(entry)}" for device, entry in pairs]
    meaning = ", ".join(named or map(_entry, entries or ())) or "no device"
    return f"CUDA_VISIBLE_DEVICES={value}: {meaning}" + (f"; {ignored}" if ignored else "")


def _entry(entry: str) -> str:
    return f"device {entry}" if entry.isdigit() else entry


def _telemetry(host: Host) -> list[str]:
    """How devices are watched beside the ranks, or why they are not."""
    watched, reason = len(watched_uuids(host)), unwatched(host)
    seen = [f"{plural(watched, 'device')} over NVML, by UUID"] if watched and not host.nvml_error else []
    return [*seen, *([reason] if reason else [])]


def _links(host: Host) -> list[str]:
    """Pairs of devices by how they are joined."""
    if len(host.devices) < 2:
        return ["none: fewer than two devices"]
    if not host.device_links:
        return [f"not known: {host.device_links_reason}" if host.device_links_reason else "none"]
    pairs: dict[str, list[str]] = {}
    for link in host.device_links:
        pairs.setdefault(link.path, []).append(f"{link.first}-{link.second}")
    if len(pairs) == 1 and len(host.devices) > 2:
        return [f"{next(iter(pairs))} between every two devices"]
    return [f"{path}: {' '.join(joined)}" for path, joined in pairs.items()]


def _cpus(host: Host) -> list[str]:
    quota = "none" if host.cpu_quota is None else f"{host.cpu_quota:g}"
    nodes = "NUMA not known" if host.numa_nodes is None else plural(host.numa_nodes, "NUMA node")
    return [
        f"{host.cpu_model}, {nodes}",
        f"{host.cpus_usable} usable of {host.cpus_counted} counted (affinity {host.cpus_affinity}, quota {quota})",
        *_formats(host),
        f"governor {host.governor or 'not offered here'}, clock source {host.clocksource or 'not known'}",
    ]


def _formats(host: Host) -> list[str]:
    """How the CPU computes bf16 and fp16, where that is known."""
    if host.cpu_formats is None:
        return []
    how = {True: "in hardware", False: "emulated, slow"}
    return [", ".join(f"{name}: {how[name in host.cpu_formats]}" for name in ("bf16", "fp16"))]


def _shm(host: Host) -> str:
    if host.shm_total_bytes is None:
        return "none"
    return f"{size(host.shm_free_bytes)} free of {size(host.shm_total_bytes)}"


def _limit(count: int | None) -> str:
    return "no limit" if count is None else f"{count:,}"


def _nic(nic: Nic) -> str:
    speed = "speed not known" if nic.speed_mbit is None else f"{nic.speed_mbit:,} Mbit/s"
    state = "up" if nic.up else "down"
    kind = [nic.kind] if nic.kind and not nic.loopback else []
    facts = [nic.address or "no address", state, *kind, "loopback" if nic.loopback else speed]
    return f"{nic.name}: {', '.join(facts)}"


def _port(port: Port) -> str:
    facts = [
        port.link_layer or "link not known",
        port.state or "state not known",
        port.rate or "rate not known",
    ]
    return f"{port.device} port {port.port}: {', '.join(facts)}"


def _software(host: Host) -> list[str]:
    named = {"driver": host.driver, "CUDA or ROCm": host.cuda, "NCCL": host.nccl}
    return [
        f"Python {host.python}, torch {host.torch or 'none'}",
        ", ".join(f"{name} {version or 'none'}" for name, version in named.items()),
        f"collective backends: {', '.join(host.backends) or 'none'}",
        f"C++ compiler for torch.compile: {host.compiler or 'none: compiled cells are skipped'}",
        f"model libraries: {', '.join(f'{k} {v}' for k, v in host.libraries.items()) or 'none'}",
    ]


def _slots(host: Host) -> list[str]:
    count = slots(host)
    kind = "CPU rank" if device_kind(host) == "cpu" else f"{device_kind(host)} device"
    workers = suggest_workers(host.cpus_usable, count)
    spare = (
        f"at most {plural(workers, 'loader worker')} a rank"
        if workers
        else "no CPU is left for loader workers"
    )
    return [f"{plural(count, kind)} (what NGPU counts); with all of them in use, {spare}"]


def _row(label: str, facts: list[str], width: int) -> list[str]:
    if width < NARROW:
        return [label, *(line for fact in facts for line in _wrap(fact, width, "  ", "    "))]
    lines = []
    for number, fact in enumerate(facts):
        first = label.ljust(LABEL) if number == 0 else " " * LABEL
        lines += _wrap(fact, width, first, " " * (LABEL + 2))
    return lines or [label]


def _wrap(fact: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        clip(fact, 1000),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


PLUGIN = doctor
