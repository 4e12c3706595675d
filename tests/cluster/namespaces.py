"""One machine of the cluster: a process that holds Linux namespaces, and processes started inside them.

The holder reads from a pipe whose other end the test process has: when that process ends, however it ends, the
holder ends, and with it everything in its namespaces.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

CLONE_NEWPID = 0x20000000
# Who ignores SIGCHLD leaves no zombies, and adopted orphans leave none either.
HOLD = "exec env --ignore-signal=CHLD cat >/dev/null"
# The machine's /proc is still there then, so this is the number that the test process sees.
TELL = "read pid rest </proc/self/stat"


class Holder:
    """Namespaces of their own, from the call until `kill()` or until this process ends.

    `kinds` are options of unshare(1), `script` is run by sh as the first process in there, with `arguments` as
    $1, $2, ...; it sets up what it wants before the holder waits. Raises RuntimeError with what went wrong.
    """

    def __init__(self, kinds: Sequence[str], script: str, arguments: Sequence[str] = ()) -> None:
        self.own_processes = "--pid" in kinds  # and a name and mounts; or a network only
        whole = f'set -e\n{TELL}\n{script}\necho "pid $pid"\n{HOLD}'
        self.parent = subprocess.Popen(
            ["unshare", *kinds, "sh", "-c", whole, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for the test process, which then ends it
        )
        self.started: list[subprocess.Popen[str]] = []
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        """The holder as this process sees it; waits until the script is through."""
        if self._pid is None:
            assert self.parent.stdout
            said = self.parent.stdout.readline()
            if not said.startswith("pid "):
                self.kill()
                raise RuntimeError(f"namespaces: {said.strip()}")
            self._pid = int(said.split()[1])
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether its namespaces are there."""
        return self.parent.poll() is None

    def popen(self, argv: Sequence[object], **options: Any) -> subprocess.Popen[str]:
        """A process in its namespaces, with text pipes: a child of this process, so `pid` and signals are real."""
        kinds = ["-n", "-u", "-m"] if self.own_processes else ["-n"]
        command = ["nsenter", "-t", str(self.pid), *kinds, "--", *map(str, argv)]
        with _born_in(self.pid) if self.own_processes else contextlib.nullcontext():
            process = subprocess.Popen(command, text=True, **options)
        self.started.append(process)
        return process

    def kill(self) -> None:
        """End everything inside, at once. Waits until it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid or self.parent.pid, signal.SIGKILL)
        for process in self.started:  # first: a namespace goes when all that was in it has been waited for
            process.kill()
            process.wait()
        with self.parent:
            pass

    def sweep(self) -> None:
        """End the processes started here, and close their pipes."""
        for process in self.started:
            with process:
                process.kill()
        self.started.clear()


@contextlib.contextmanager
def _born_in(pid: int) -> Iterator[None]:
    """Children that this thread starts meanwhile are in the process namespace of `pid`."""
    with Path("/proc/self/ns/pid").open("rb") as own, Path(f"/proc/{pid}/ns/pid").open("rb") as other:
        _enter(other)
        try:
            yield
        finally:
            _enter(own)


def _enter(namespace: IO[bytes]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "setns")


def members(pid: int) -> dict[int, str]:
    """All processes in the process namespace of `pid` but itself: number, as seen here, and command line."""
    with contextlib.suppress(OSError):
        wanted = os.readlink(f"/proc/{pid}/ns/pid")
        return dict(sorted(_in_namespace(wanted, besides=pid)))
    return {}


def _in_namespace(wanted: str, besides: int) -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry / "ns/pid") == wanted and int(entry.name) != besides:
                words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                yield int(entry.name), b" ".join(words).decode(errors="replace")


def until(condition: Callable[[], object], what: str, seconds: float = 10) -> None:
    """Wait until a condition holds. Raises TimeoutError naming `what` did not come about."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)
