"""Who leads: this machine, if it is the first host; else the first host. And by which address the others reach it."""

import functools
import secrets
import socket
import subprocess
from collections.abc import Sequence

from bench.allocation import FIRST_PORT, PORTS
from bench.errors import UsageError
from bench.interfaces import is_own, resolve, towards
from bench.launchers._hosts import Host
from bench.launchers.ssh import client, label

SSH_PORT = 22
DISCARD = 9  # no packet is sent: connecting a datagram socket only chooses a route
ASK_S = 30.0


def is_here(host: Host) -> bool:
    """Is this host the machine that this runs on? One behind a port of its own is not (a container, a tunnel)."""
    if host.port not in (None, SSH_PORT):
        return False
    name = real_name(host)
    return name in ("localhost", socket.gethostname()) or any(map(is_own, resolve(name)))


def lead_host(hosts: Sequence[Host]) -> str:
    """The name or address of the first host for the others: where this is it, its address on the way to them."""
    first, *others = hosts
    if not is_here(first):
        return real_name(first)
    away = next((host for host in others if not is_here(host)), None)
    return _own_address(away) if away else "127.0.0.1"


def some_port() -> int:
    """A port below those of outgoing connections, by chance: for a leader that is started elsewhere."""
    return FIRST_PORT + secrets.randbelow(PORTS)


@functools.cache
def real_name(host: Host) -> str:
    """The name behind an alias of the user's ssh configuration; the host's own where ssh does not say."""
    try:
        told = subprocess.run(
            [*client(host)[:1], "-G", *client(host)[1:]],
            capture_output=True,
            text=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return host.name
    found = [line.split(None, 1)[1] for line in told.stdout.splitlines() if line.startswith("hostname ")]
    return found[0].strip() if found else host.name


def _own_address(other: Host) -> str:
    """This machine's address on the way to another. Raises UsageError where there is no way."""
    try:
        return towards(real_name(other), DISCARD)[1]
    except OSError as error:
        raise UsageError(
            f"{label(other)}: this machine does not know by which of its addresses that host reaches it ({error}):"
            " mend the name, or name the address by --lead"
        ) from None
