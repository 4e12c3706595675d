"""Temporary folders of a process, named for it: what it leaves behind when it is killed, the next one removes."""

import contextlib
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

LONGEST_FOLDER = 36  # bytes: a socket's path has at most 103 on every system, and 66 of them follow


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A folder of this node for traces and progress of one launch, gone afterwards."""
    found = Path(tempfile.mkdtemp(prefix=prefix()))
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


def sweep() -> None:
    """Remove the folders of processes that were killed before they could."""
    for where in {tempfile.gettempdir(), socket_folder()}:
        for found in Path(where).glob("scalemark-*-*"):
            pid, _, place = found.name.split("-")[1].partition(".")
            if pid.isdigit() and f"{pid}.{place}" == owner(int(pid)) and not Path("/proc", pid).exists():
                shutil.rmtree(found, ignore_errors=True)


def prefix() -> str:
    """How the names of this process's temporary folders begin: `sweep` finds them if it is killed."""
    return f"scalemark-{owner(os.getpid())}-"


def socket_folder() -> str:
    """Where the engine's sockets go: not into a temporary folder whose path is too long for any socket in it."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_FOLDER else "/tmp"


def owner(pid: int) -> str:
    """A process, and where it is one: other hosts and containers may share the folder, and count for themselves."""
    place = f"{socket.gethostname()} {os.stat('/proc/self/ns/pid').st_ino}"
    return f"{pid}.{zlib.crc32(place.encode()):08x}"
