"""Plain facts about this host, each read on its own and None where the platform does not say."""

import contextlib
import os
import platform
import resource
import shutil
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench.interfaces import RESOLVE_TIMEOUT_S, resolve, speed_mbit
from bench.machine import Nic, Port

SYSTEM = Path("/sys/devices/system")
CLASSES = Path("/sys/class")
LIBRARIES = ("transformers", "timm", "torchvision")
FORMATS = {  # flags of x86 and of ARM
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def facts() -> dict[str, Any]:
    """The fields of machine.Host that need neither torch nor a control group."""
    shm_total, shm_free = shared_memory()
    fd_soft, fd_hard = file_limits()
    return {
        "hostname": socket.gethostname(),
        "hostname_address": resolved(socket.gethostname()),
        "os": os_name(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cpu_model": cpu_model(),
        "numa_nodes": len(list(SYSTEM.glob("node/node[0-9]*"))) or None,
        "governor": governor(),
        "compiler": compiler(),
        "cpu_formats": cpu_formats(),
        "libraries": libraries(),
        "clocksource": read(SYSTEM / "clocksource/clocksource0/current_clocksource"),
        "memory_bytes": psutil.virtual_memory().total,
        "shm_total_bytes": shm_total,
        "shm_free_bytes": shm_free,
        "fd_soft": fd_soft,
        "fd_hard": fd_hard,
        "nics": nics(),
        "ports": ports(),
    }


def affinity() -> int:
    """CPUs in the affinity mask of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def os_name() -> str:
    """The distribution's name for itself; the kernel's where it has none."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def cpu_model() -> str:
    """The model name the kernel gives; the architecture where it gives none."""
    for line in (read(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpu_formats() -> list[str] | None:
    """Which of bf16 and fp16 the CPU multiplies itself, by the kernel's flags of it; None where it gives none."""
    for line in (read(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return [kind for kind, needed in FORMATS.items() if needed & set(flags.split())]
    return None


def libraries() -> dict[str, str]:
    """The libraries of models that are installed, with their versions; none is imported."""
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def governor() -> str | None:
    """Frequency governors in use, joined where CPUs differ; None where the kernel offers none (most VMs)."""
    found = {read(path) for path in SYSTEM.glob("cpu/cpu[0-9]*/cpufreq/scaling_governor")} - {None}
    return ", ".join(sorted(name for name in found if name)) or None


def compiler() -> str | None:
    """The C++ compiler that torch.compile would use: CXX, or the first of g++, c++ and clang++ on the path."""
    named = [os.environ["CXX"]] if os.environ.get("CXX") else []
    return next((name for name in (*named, "g++", "c++", "clang++") if shutil.which(name)), None)


def shared_memory() -> tuple[int | None, int | None]:
    """Total and free bytes of /dev/shm."""
    try:
        disk = os.statvfs("/dev/shm")
    except OSError:
        return None, None
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


def file_limits() -> tuple[int | None, int | None]:
    """Soft and hard limit of open files; None: no limit."""
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard


def nics() -> list[Nic]:
    """Network interfaces by name, with the first IPv4 (else IPv6) address of each."""
    addresses = psutil.net_if_addrs()
    return [
        Nic(
            name=name,
            speed_mbit=speed_mbit(name),
            up=state.isup,
            address=_address(addresses.get(name, [])),
            loopback="loopback" in state.flags.split(",") or name in ("lo", "lo0"),
            kind=nic_kind(name),
        )
        for name, state in sorted(psutil.net_if_stats().items())
    ]


def nic_kind(name: str, classes: Path = CLASSES) -> str | None:
    """What an interface is, from the kernel's number of its link type (linux/if_arp.h); None if it does not say."""
    folder = classes / "net" / name
    link = read(folder / "type")
    if link == "1" and not (folder / "device").exists():
        return "virtual"
    return {"1": "ethernet", "32": "infiniband", "772": "loopback"}.get(link or "")


def ports(classes: Path = CLASSES) -> list[Port]:
    """Ports of InfiniBand and RoCE adapters, by name."""
    return [
        Port(
            device=folder.parent.parent.name,
            port=int(folder.name),
            state=(read(folder / "state") or "").rpartition(": ")[2] or None,  # "4: ACTIVE"
            rate=read(folder / "rate"),
            link_layer=read(folder / "link_layer"),
        )
        for folder in sorted(classes.glob("infiniband/*/ports/[0-9]*"))
    ]


def _address(entries: list[Any]) -> str | None:
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in entries:
            if entry.family == family:
                return str(entry.address)
    return None


def resolved(name: str) -> str | None:
    """The address a name resolves to, or None; a name server that does not answer is not waited for."""
    return next(iter(resolve(name, RESOLVE_TIMEOUT_S)), None)


def read(path: Path) -> str | None:
    """A file's text without surrounding space; None where it is empty or cannot be read."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None
