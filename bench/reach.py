"""A follower waits for the node that leads, which may start later, or may not be there."""

import socket
import time
from collections.abc import Callable

from bench.errors import UsageError


def reach(address: str, port: int, limit_s: float, say: Callable[[str], None]) -> None:
    """Return when the leader, which may start later than this node, can be reached. Raises UsageError."""
    deadline = time.monotonic() + limit_s
    told = False
    while True:
        try:
            socket.create_connection((address, port), timeout=3).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(_no_leader(address, port, limit_s, error)) from None
            if not told:
                say(f"waiting for node 0 at {address}:{port} ({_short(error)})")
                told = True
            time.sleep(0.1)


def _no_leader(address: str, port: int, limit_s: float, error: Exception) -> str:
    where = f"--lead {address}:{port}"
    if isinstance(error, socket.gaierror):
        return f"{where}: this node cannot resolve {address!r} ({_short(error)}): give an address, or mend DNS or /etc/hosts"
    return (
        f"{where}: node 0 did not answer within {limit_s:.0f} s ({_short(error)}): start it there with --node-rank 0, and"
        " look at address, port and firewall"
    )


def _short(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)[:200]
