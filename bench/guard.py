"""Nobody is left behind: a process ends, with its whole group, when a process it depends on is gone."""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable


def end_with(*pids: int) -> None:
    """From now on, kill this process group when one of `pids` has ended (pidfd: no polling, no reuse).

    Ranks and engine share a process group of their own, so whoever notices first takes all with it.
    """
    me = os.getpid()
    fds = [open_pidfd(pid) for pid in pids if pid != me]
    if None in fds:
        _end_group()
    watch(dict.fromkeys((fd for fd in fds if fd is not None), 0), lambda _: _end_group())


def watch(fds: dict[int, int], ended: Callable[[int], None]) -> threading.Thread:
    """Call `ended(value)` in a thread as each pidfd, the keys, becomes readable; then close it."""

    def wait() -> None:
        poller = select.poll()
        for fd in fds:
            poller.register(fd, select.POLLIN)
        left = len(fds)
        while left:
            for fd, _ in poller.poll():
                poller.unregister(fd)
                left -= 1
                ended(fds[fd])
                os.close(fd)

    thread = threading.Thread(target=wait, daemon=True, name="guard")
    thread.start()
    return thread


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends, or None if it is gone already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def kill_group(pgid: int) -> None:
    """SIGKILL for every process of a group; fine if there is none."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)


def _end_group() -> None:
    kill_group(os.getpgrp())
    os._exit(137)
