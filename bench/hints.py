"""What about this host will bite: small rules over a Host, each with what to do about it."""

import re
from collections.abc import Iterator

import msgspec

from bench.environment import biting, read_visible
from bench.machine import Host, unwatched

SHM_SMALL_BYTES = 1 << 30
FEW_FILES = 4096
VISIBLE = "CUDA_VISIBLE_DEVICES"
GLOO = "GLOO_SOCKET_IFNAME"
OLDEST_TORCH = (2, 9)
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "xen")


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that will bite: what it is called, what happens, what to do."""

    code: str
    message: str
    remedy: str


def fault_hints(host: Host) -> list[Hint]:
    """Everything about a host that will bite a study on it, the gravest first."""
    rules = (
        software,
        devices,
        visibility,
        telemetry,
        cpus,
        memory,
        files,
        variables,
        networks,
        clocks,
        names,
    )
    return [hint for rule in rules for hint in rule(host)]


def software(host: Host) -> Iterator[Hint]:
    """Torch is there, new enough, and can run more than one rank."""
    if host.torch is None:
        yield _hint(
            "torch-missing", f"torch cannot be loaded ({host.device_error})", "install torch 2.9 or later"
        )
        return
    if _version(host.torch) < OLDEST_TORCH:
        yield _hint("torch-old", f"torch {host.torch} is older than 2.9", "install torch 2.9 or later")
    if not host.backends:
        yield _hint(
            "no-backend",
            "this torch has no collective backend: only one rank can run",
            "install another build",
        )


def devices(host: Host) -> Iterator[Hint]:
    """There is an accelerator, it is visible, and this torch can use it."""
    if host.devices or host.torch is None:
        return
    if host.visible == []:
        why = read_visible(host.variables.get(VISIBLE)).ignored
        message = f"{VISIBLE} hides every device" + (f": {why}" if why else "")
        yield _hint("devices-hidden", message, "unset it, or name devices: 0,1")
    elif host.driver:
        yield _hint(
            "torch-without-device",
            f"there is an NVIDIA driver ({host.driver}), but torch finds no device: {host.device_error}",
            "install a torch build whose CUDA this driver supports",
        )
    else:
        yield _hint(
            "no-accelerator",
            f"no accelerator ({host.device_error}): ranks run on CPUs with gloo, one thread each",
            f"good for trying things out; beyond {_count(host.cpus_usable, 'rank')} the ranks share CPUs",
        )


def visibility(host: Host) -> Iterator[Hint]:
    """Every device that CUDA_VISIBLE_DEVICES names is visible."""
    value = host.variables.get(VISIBLE)
    entries, ignored = read_visible(value)
    if not host.devices or not entries:
        return
    if ignored:
        yield _hint(
            "visible-ignored", f"{VISIBLE}={value}: {ignored}", "name each device once, all in one form"
        )
    elif len(entries) != len(host.devices):
        text = f"{VISIBLE} names {_count(len(entries), 'device')} and torch sees {len(host.devices)}"
        cause = "a name that does not exist ends the list, and a process sees one MIG slice"
        yield _hint("visible-missing", f"{text}: {cause}", "nvidia-smi -L lists what can be named")


def telemetry(host: Host) -> Iterator[Hint]:
    """What happens on the devices can be seen."""
    reason = unwatched(host)
    if reason:
        yield _hint(
            "devices-unwatched",
            f"no telemetry of devices: {reason}",
            "nothing to do for throughput; findings about heat, power and other processes are not made",
        )


def cpus(host: Host) -> Iterator[Hint]:
    """What software counts is what this process may use."""
    if host.cpu_quota is not None and host.cpu_quota < host.cpus_counted:
        yield _hint(
            "cpu-quota",
            f"the control group allows {host.cpu_quota:g} of {host.cpus_counted} CPUs: whoever counts CPUs starts too "
            "many threads, and all of them stop when the quota of a period is used up",
            f"ask for more CPUs, or keep ranks, workers and threads together at {host.cpus_usable}",
        )
    if host.cpus_affinity < host.cpus_counted:
        yield _hint(
            "cpu-affinity",
            f"this process is bound to {host.cpus_affinity} of {host.cpus_counted} CPUs",
            "ask the scheduler for more CPUs a task, if the ranks are meant to have them",
        )
    if told := following(host.governor):
        yield _hint("governor", told, "cpupower frequency-set -g performance")


def following(governor: object) -> str | None:
    """What a frequency governor that follows the load does to steps; None for one that holds the clocks."""
    if not re.search("powersave|conservative|ondemand|schedutil", str(governor)):
        return None
    return f"the CPU frequency governor is {governor}: clocks follow the load, rise late, and steps differ"


def memory(host: Host) -> Iterator[Hint]:
    """Memory and shared memory are as large as they look."""
    limit = host.memory_limit_bytes
    if limit is not None and (host.memory_bytes is None or limit < host.memory_bytes):
        of = f" of the host's {_size(host.memory_bytes)}" if host.memory_bytes else ""
        yield _hint(
            "memory-limit",
            f"the control group allows {_size(limit)}{of}: past it the kernel kills a rank or a worker",
            "raise the limit, or use fewer ranks and workers",
        )
    if host.shm_total_bytes is None:
        return
    grow = "docker: --shm-size=8g or --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if host.shm_total_bytes < SHM_SMALL_BYTES:
        yield _hint(
            "shm-small",
            f"/dev/shm holds {_size(host.shm_total_bytes)}: loader workers pass batches through it, and die of "
            "'Bus error' or 'No space left on device' when it is full",
            f"{grow}; or num_workers=0",
        )
    elif host.shm_free_bytes is not None and host.shm_free_bytes < SHM_SMALL_BYTES:
        yield _hint(
            "shm-full",
            f"/dev/shm has {_size(host.shm_free_bytes)} free of {_size(host.shm_total_bytes)}",
            "remove what earlier runs left there (ls -l /dev/shm)",
        )


def files(host: Host) -> Iterator[Hint]:
    """Enough files can be open: each batch in flight from a worker holds some."""
    if host.fd_soft is not None and host.fd_soft < FEW_FILES:
        can = host.fd_hard is None or host.fd_hard > host.fd_soft
        remedy = f"ulimit -n {host.fd_hard or 65536}" if can else "ask for a higher hard limit of open files"
        yield _hint(
            "fd-limit",
            f"{host.fd_soft} open files are allowed: many workers or kept batches end in 'Too many open files'",
            remedy,
        )


def variables(host: Host) -> Iterator[Hint]:
    """No variable that changes what is measured is set by accident."""
    for name, value, message, remedy in biting(host.variables):
        yield _of_variable(name, value, message, remedy)


def networks(host: Host) -> Iterator[Hint]:
    """Variables about networks say what this host has, in the words of the library that reads them."""
    value = host.variables.get(GLOO, "")
    given = [name for name in value.split(",") if name]
    known = {nic.name for nic in host.nics}
    if re.search(r"[=^]", value):
        text = "this is NCCL's way to name interfaces: gloo takes whole names, with commas between, and finds none"
        yield _of_variable(GLOO, value, text, f"set {GLOO} to {_usable(host)}")
    elif known and (missing := [name for name in given if name not in known]):
        text = f"there is no interface {' or '.join(missing)} here: gloo takes whole names, and no beginnings"
        yield _of_variable(GLOO, value, text, f"set {GLOO} to {_usable(host)}")
    active = [port.device for port in host.ports if "ACTIVE" in (port.state or "")]
    if active and host.variables.get("NCCL_NET", "").upper() == "SOCKET":
        text = f"nodes talk over TCP, though {active[0]} is ACTIVE"
        yield _of_variable("NCCL_NET", "Socket", text, "unset it")


def clocks(host: Host) -> Iterator[Hint]:
    """Reading the time is cheap."""
    if host.clocksource in SLOW_CLOCKS:
        yield _hint(
            "clock-slow",
            f"the clock source is {host.clocksource}: reading the time is a system call of microseconds",
            "boot with clocksource=tsc, if the CPU's TSC is stable",
        )


def names(host: Host) -> Iterator[Hint]:
    """Other nodes can reach the address that this host's name stands for."""
    address = host.hostname_address
    remedy = "matters for several nodes only: set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to "
    remedy += _usable(host)
    if address is None:
        yield _hint("hostname-unresolved", f"the host name {host.hostname!r} does not resolve", remedy)
    elif address.startswith("127.") or address == "::1":
        yield _hint(
            "hostname-loopback",
            f"the host name {host.hostname!r} resolves to {address}: gloo would offer other nodes that address",
            remedy,
        )


def _usable(host: Host) -> str:
    """The interfaces that other nodes could be reached over."""
    return (
        " or ".join(nic.name for nic in host.nics if nic.up and nic.address and not nic.loopback) or "the NIC"
    )


def _of_variable(name: str, value: str, message: str, remedy: str) -> Hint:
    return _hint(f"variable-{name.lower().replace('_', '-')}", f"{name}={value}: {message}", remedy)


def _hint(code: str, message: str, remedy: str) -> Hint:
    return Hint(code=code, message=message, remedy=remedy)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _size(count: int) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
