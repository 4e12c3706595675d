"""A study that this machine is no node of: node 0 runs on the first host too, and its results are fetched."""

import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bench.errors import BenchError, UsageError
from bench.launchers._hosts import Host
from bench.launchers._remote import NO_COMMAND, SSH_FAILED, Ended, Remote
from bench.launchers.ssh import Nodes, client, in_shell, label
from bench.plugins import clip
from bench.store import HEADER

ASK_S = 60.0
LOOK_S = 0.1
FOUND = "there"


def conduct(job: Nodes, root: Path, secret: str, say: Callable[[str], None]) -> int:
    """Run a study on `job.hosts` alone and bring its folder to `root`; the exit code of its `scalemark run`.

    `job.words` say nothing of where the results go. What lies in `root` already is sent there first, so that
    --resume goes on with it. Where the first host names its own folder, `say` gets `root` in its place. Raises
    UsageError where the first host cannot be reached, or a node does not begin; BenchError where it is lost.
    """
    first = job.hosts[0]
    scratch = ask(first, "mktemp -d /tmp/scalemark-XXXXXXXX")
    there = f"{scratch}/{root.name}"
    if root.exists():
        send(root, first, scratch)

    def heard(text: str) -> None:
        say(text.replace(shlex.quote(there), shlex.quote(str(root))))

    away = msgspec.structs.replace(job, words=(*job.words, "-o", there))
    try:
        with _terminated_as_interrupted(), Remote(away, range(job.nodes), secret, heard, plain=0) as remote:
            last = _followed(remote, say)
    finally:
        _bring(first, there, root, say)
    if last.node_rank == 0 and last.code >= 0 and last.code not in (SSH_FAILED, *NO_COMMAND):
        return last.code  # it has said why itself
    raise (UsageError if last.never_began else BenchError)(last.why)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM stops the nodes in order, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _bring(host: Host, there: str, root: Path, say: Callable[[str], None]) -> None:
    """The results, and nothing stays behind; where they cannot be brought, they do, and it is said where they lie."""
    try:
        if fetch(host, there, root):
            say(f"results of {label(host)} are here: {root}")
    except UsageError as error:
        say(f"what {label(host)} has recorded was not brought here, and lies there in {there}: {error}")
        return
    with suppress(UsageError):
        ask(host, f"rm -rf {shlex.quote(there.rpartition('/')[0])}")


def _followed(remote: Remote, say: Callable[[str], None]) -> Ended:
    """Wait for node 0; what became of it, or of a node that did not begin. Others that end early are told."""
    told: set[int] = set()
    while True:
        ended = remote.ended()
        if 0 in ended:
            return ended[0]
        for rank in ended.keys() - told:
            told.add(rank)
            if ended[rank].never_began:
                return ended[rank]
            if ended[rank].code:
                say(ended[rank].why)
        time.sleep(LOOK_S)


def ask(host: Host, command: str) -> str:
    """What a short command says there. Raises UsageError, with ssh's or its last line, where it fails."""
    try:
        done = subprocess.run(
            [*client(host), in_shell(command)],
            capture_output=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise UsageError("ssh is not on the path: install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"{label(host)}: no answer within {ASK_S:.0f} s") from None
    if done.returncode:
        complaint = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise UsageError(f"{label(host)}: exit code {done.returncode}: {clip(complaint[-1], 300)}")
    return done.stdout.decode(errors="replace").strip()


def send(root: Path, host: Host, folder: str) -> None:
    """Copy a folder into one on a host. Raises UsageError."""
    pack = ["tar", "-C", str(root.parent.resolve()), "-cf", "-", "--", root.name]
    there = [*client(host), in_shell(f"tar -C {shlex.quote(folder)} -xf -")]
    if not _piped(pack, there):
        raise UsageError(f"{label(host)}: {root} could not be sent there")


def fetch(host: Host, folder: str, root: Path) -> bool:
    """Bring a study's folder from a host to `root`, of the same name; False where there is none. Raises UsageError."""
    parent, name = folder.rsplit("/", 1)
    if not ask(host, f"test ! -f {shlex.quote(folder)}/{HEADER} || echo {FOUND}"):
        return False
    root.parent.mkdir(parents=True, exist_ok=True)
    there = [*client(host), in_shell(f"tar -C {shlex.quote(parent)} -cf - -- {shlex.quote(name)}")]
    if not _piped(there, ["tar", "-C", str(root.parent.resolve()), "-xf", "-"]):
        raise UsageError(f"{root}: the copy from {label(host)} failed; its last lines are above")
    return True


def _piped(first: list[str], second: list[str]) -> bool:
    """`first | second`; True if both did well."""
    with (
        subprocess.Popen(first, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as source,
        subprocess.Popen(second, stdin=source.stdout) as sink,
    ):
        assert source.stdout
        source.stdout.close()  # only the second one reads
        return sink.wait() == 0 and source.wait() == 0
