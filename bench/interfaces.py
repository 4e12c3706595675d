"""Which network interface leads to a host, which one owns an address, and which ones a process really uses."""

import contextlib
import ipaddress
import socket
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil

RESOLVE_TIMEOUT_S = 2.0
UNKNOWN_SPEED = 0xFFFF  # what many virtual interfaces answer
FAMILIES = (socket.AF_INET, socket.AF_INET6)


def resolve(host: str, limit_s: float = RESOLVE_TIMEOUT_S) -> list[str]:
    """The addresses of a host name, best first; empty if it has none or no name server answers in time."""
    found: list[str] = []

    def ask() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(answer[4][0]) for answer in answers))

    thread = threading.Thread(target=ask, daemon=True, name="resolve")
    thread.start()
    thread.join(limit_s)
    return list(found)


def towards(host: str, port: int) -> tuple[str, str]:
    """Interface and own address that packets to a host leave by. Nothing is sent.

    Raises OSError with one line if the name has no address, or no interface leads to any of them.
    """
    addresses = resolve(host)
    for address in addresses:
        with contextlib.suppress(OSError):
            own = _own_towards(address, port)
            if name := of_address(own):
                return name, own
    raise OSError(
        f"no interface leads to {host} ({', '.join(addresses)})" if addresses else f"{host} has no address"
    )


def of_address(address: str) -> str | None:
    """The interface that has an address of this host; None if none has."""
    wanted = _plain(address)
    if wanted.is_loopback:  # all of 127.0.0.0/8, of which only one stands in the table
        wanted = ipaddress.ip_address("127.0.0.1" if wanted.version == 4 else "::1")
    return next((name for known, name in _table() if known == wanted), None)


def is_own(address: str) -> bool:
    """Whether an address is this host's: loopback, or of one of its interfaces."""
    return _plain(address).is_loopback or of_address(address) is not None


def speed_mbit(name: str, classes: Path = Path("/sys/class/net")) -> int | None:
    """The speed of an interface as the kernel gives it; None where it gives none, or makes one up.

    It says 10000 of every one without hardware, its own or below it, such as a container's or a network namespace's.
    """
    state = psutil.net_if_stats().get(name)
    folder = classes / name
    if folder.exists() and not (folder / "device").exists() and not any(folder.glob("lower_*")):
        return None
    return state.speed if state and 0 < state.speed != UNKNOWN_SPEED else None


def used(pid: int | None = None, other_than: Collection[int] = ()) -> tuple[str, ...] | None:
    """Interfaces of the TCP connections between a process (None: this one) and other hosts, most connections first.

    Connections within this host are left out, whatever address they use: they pass no interface. So are those with
    a port of `other_than` at either end, such as the store's. RDMA (InfiniBand, RoCE) is none of TCP's and not
    seen. None where connections cannot be read. The process must share this one's network namespace.
    """
    try:
        connections = _connections(psutil.Process(pid))
        table = dict(_table())
    except (psutil.Error, OSError, NotImplementedError):
        return None
    counts: Counter[str] = Counter()
    for connection in connections:
        if connection.status != psutil.CONN_ESTABLISHED or {
            connection.laddr.port,
            connection.raddr.port,
        } & set(other_than):
            continue
        own, other = _plain(connection.laddr.ip), _plain(connection.raddr.ip)
        if own in table and other not in table and not other.is_loopback:
            counts[table[own]] += 1
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


def _own_towards(address: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))
        return str(probe.getsockname()[0])


def _table() -> list[tuple[Any, str]]:
    """Address and interface of all of this host's."""
    return [
        (_plain(entry.address), name)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in FAMILIES
    ]


def _plain(address: str) -> Any:
    """An address without its zone (`%eth0`), and IPv4 as such where a dual-stack socket shows it within IPv6."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _connections(process: psutil.Process) -> list[Any]:
    read = getattr(process, "net_connections", None) or process.connections  # psutil before 6
    return list(read(kind="tcp"))
