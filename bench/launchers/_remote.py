"""Commands on other machines, each behind an ssh client: started, followed line by line, stopped together."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from bench.errors import UsageError
from bench.launchers.ssh import CONNECT_S, Nodes, argv, label
from bench.plugins import clip

END_S = 5.0  # for a node whose study is over
STOP_S = 25.0  # for a node that was told to stop: a little more than it takes itself
KILL_S = 2.0
SSH_FAILED = 255  # ssh's own code, for what is not the command's
NO_COMMAND = (126, 127)
LINE = 2000


class Ended(NamedTuple):
    """A node's command that has ended."""

    node_rank: int
    name: str
    code: int  # negative: the ssh client ended by this signal
    after_s: float  # since its start
    said: str  # its last line

    @property
    def never_began(self) -> bool:
        """It did not get as far as the study: no connection, no Python, or it refused what it was given."""
        no_connection = self.code == SSH_FAILED and self.after_s < CONNECT_S + 5
        return no_connection or self.code == 2 or self.code in NO_COMMAND

    @property
    def why(self) -> str:
        """One line: which node, how it ended, what it said last."""
        said = f": {self.said}" if self.said else ""
        how = f"exit code {self.code}"
        if self.code == SSH_FAILED:
            how = "ssh failed"
        elif self.code < 0:
            how = f"its ssh client ended by signal {-self.code}"
        remedy = "; a host file names another (python=, dir=)" if self.code in NO_COMMAND else ""
        return f"{self.name} (node {self.node_rank}): {how}{said}{remedy}"


class Remote:
    """Nodes of a job, running behind ssh clients. Use as a context manager: leaving it stops them all.

    `say` is called with each line, `n2: text`, from threads of its own; lines of the node `plain` come as they
    are. Raises UsageError where there is no ssh.
    """

    def __init__(
        self,
        job: Nodes,
        ranks: Iterable[int],
        secret: str,
        say: Callable[[str], None],
        plain: int | None = None,
    ) -> None:
        self._commands = {rank: argv(job, rank) for rank in ranks}
        self._names = {rank: label(job.hosts[rank]) for rank in self._commands}
        self._secret, self._say, self._plain = secret, say, plain
        self._clients: dict[int, _Client] = {}

    def __enter__(self) -> "Remote":
        try:
            for rank, command in self._commands.items():
                prefix = "" if rank == self._plain else f"{self._names[rank]}: "
                self._clients[rank] = _Client(command, self._secret, prefix, self._say)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:  # the study is over, and every node has been told so
            self._wait(END_S)
        self.stop()

    def ended(self) -> Mapping[int, Ended]:
        """The nodes whose command has ended, by rank; asking is cheap."""
        return {
            rank: Ended(rank, self._names[rank], one.code, one.after_s, one.said)
            for rank, one in self._clients.items()
            if one.code is not None
        }

    def stop(self, within_s: float = STOP_S) -> None:
        """Close every node's input, which ends it, and wait for all of them. A client that stays is killed."""
        for one in self._clients.values():
            one.close()
        self._wait(within_s)
        for one in self._clients.values():
            one.kill()

    def _wait(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        for one in self._clients.values():
            one.wait(deadline)


class _Client:
    """One ssh client and the thread that reads it."""

    def __init__(self, command: Sequence[str], secret: str, prefix: str, say: Callable[[str], None]) -> None:
        self.code: int | None = None
        self.after_s = 0.0
        self.said = ""
        self._began, self._prefix, self._say = time.monotonic(), prefix, say
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the conductor, which then stops the nodes in order
            )
        except FileNotFoundError:
            raise UsageError(
                f"{command[0]} is not on the path: install OpenSSH's client, or start the nodes by hand"
            ) from None
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # it has ended; the reader says why
            self._process.stdin.write(secret.encode() + b"\n")
            self._process.stdin.flush()
        self._reader = threading.Thread(target=self._follow, daemon=True, name="ssh")
        self._reader.start()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin
            self._process.stdin.close()

    def wait(self, deadline: float) -> None:
        """Until the client has ended and all that it said was read, or the deadline."""
        self._reader.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """End the client where it still runs; without it, sshd closes the command's input."""
        for end in (self._process.terminate, self._process.kill):
            if self._reader.is_alive():
                end()
                self._reader.join(KILL_S)

    def _follow(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for raw in lines:
                line = clip(raw.decode(errors="replace").expandtabs().rstrip(), LINE)
                self.said = line.strip() or self.said
                self._say(self._prefix + line)
        code = self._process.wait()
        self.after_s = time.monotonic() - self._began
        self.code = code
