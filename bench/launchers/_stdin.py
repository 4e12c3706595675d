"""Nobody is left behind on another machine: a node's command ends when its standard input does.

A launcher at the other end of a connection gives the study's secret as the first line and then holds the pipe
open. When it closes it, or is killed, or the connection is gone, this end stops as at Ctrl-C, and soon for good.
"""

import contextlib
import os
import signal
import threading

from bench.errors import UsageError

END_WITH_STDIN = "SCALEMARK_END_WITH_STDIN"
STOP_S = 20.0  # for an orderly end; engines and ranks end with this process in any case
LONGEST = 1024


def end_with_stdin() -> str | None:
    """Take the study's secret from standard input and end with it from now on; None where nobody asks for that.

    The variable is taken out of the environment and standard input becomes /dev/null: neither is for children.
    Raises UsageError where the input ends before the secret.
    """
    if not os.environ.pop(END_WITH_STDIN, ""):
        return None
    handle = os.dup(0)  # not inherited
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    secret = _line(handle)
    if not secret:
        raise UsageError(f"{END_WITH_STDIN}: standard input has no secret in its first line")
    threading.Thread(target=_watch, args=(handle,), daemon=True, name="stdin").start()
    return secret


def _line(handle: int) -> str:
    """The first line, byte by byte: what follows is not ours to read."""
    read = bytearray()
    while len(read) < LONGEST and (byte := os.read(handle, 1)) not in (b"", b"\n"):
        read += byte
    return read.decode(errors="replace").strip()


def _watch(handle: int) -> None:
    """At the end of the input: ask this process to stop, and end it when it does not."""
    with contextlib.suppress(OSError):
        while os.read(handle, 4096):
            pass
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (
        1,
        2,
    ):  # nobody reads them any more, and a broken pipe must not get into the way of stopping
        os.dup2(nothing, stream)
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGTERM if ignored else signal.SIGINT)
    threading.Event().wait(STOP_S)
    os._exit(130)
