"""Nodes that the leader itself has started: processes on this machine, or behind ssh clients."""

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import IO

from bench.errors import UsageError
from bench.launchers._job import Job, node_words
from bench.launchers._remote import Remote
from bench.launchers._stdin import END_WITH_STDIN
from bench.launchers.ssh import Nodes as SshNodes
from bench.machine import own_python
from bench.netns import Box

END_S = 10.0  # for a follower on this machine to end by itself


class Followers:
    """Nodes of one box that were started here: processes of this same command."""

    quiet = False

    def __init__(self) -> None:
        self._processes: list[tuple[int, subprocess.Popen[str], deque[str]]] = []

    def start(self, job: Job, known: bytes, box: Box | None) -> None:
        """One process a node, in its network where there is a box."""
        for node in range(1, job.nodes):
            argv = [*own_python("from bench.__main__ import main; main()"), *node_words(job, node)]
            process = subprocess.Popen(
                box.argv(node, argv) if box else argv,
                stdin=subprocess.PIPE,  # open as long as this process lives: one that waits for its leader sees the end too
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=dict(os.environ) | {END_WITH_STDIN: "1"},
                start_new_session=True,  # a Ctrl-C is the leader's to handle
            )
            assert process.stdin is not None
            with suppress(OSError):  # it may have ended: `check` tells
                process.stdin.write(f"{known.decode()}\n")
                process.stdin.flush()
            said: deque[str] = deque(maxlen=50)
            threading.Thread(target=_drain, args=(process.stdout, said), daemon=True).start()
            self._processes.append((node, process, said))

    def check(self) -> None:
        """Raise UsageError where one has ended before it was there."""
        for node, process, said in self._processes:
            if process.poll() is not None:
                last = next(
                    (text for text in reversed(said) if text.strip()), f"exit code {process.returncode}"
                )
                raise UsageError(f"node {node} on this machine ended: {last.removeprefix('error: ')}")

    def end(self) -> None:
        """They have been told that the study is over; one that stays is killed."""
        for _, process, _ in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            if process.poll() is None:
                process.kill()
                process.wait()
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]


class SshFollowers:
    """Nodes that were started over ssh. What they say is shown until all are there, `quiet` afterwards."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.quiet = False
        self._say = say
        self._held = ExitStack()
        self._remote: Remote | None = None

    def start(self, job: SshNodes, known: bytes) -> None:
        """Every node but the first, which is this one."""
        self._remote = self._held.enter_context(Remote(job, range(1, job.nodes), known.decode(), self._hear))

    def _hear(self, text: str) -> None:
        if not self.quiet:
            self._say(text)

    def check(self) -> None:
        """Raise UsageError where one has ended before it was there."""
        for ended in self._remote.ended().values() if self._remote else ():
            raise UsageError(ended.why)

    def end(self) -> None:
        """They have been told that the study is over; those that stay are stopped."""
        self._held.close()


def _drain(stream: IO[str], said: deque[str]) -> None:
    with stream:
        for text in stream:
            said.append(text.rstrip())
