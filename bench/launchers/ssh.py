"""Over the user's own ssh: the command on every host, its secret on standard input, its end with this one's."""

import shlex
from collections.abc import Mapping

import msgspec

from bench.environment import WITHHELD, speed_variables
from bench.launchers._hosts import Host
from bench.launchers._job import Job, node_words
from bench.launchers._stdin import END_WITH_STDIN
from bench.plugins import Launcher

CONNECT_S = 15
# What must hold whatever the user's ssh configuration says. No pseudo-terminal: the pipe's end is what stops a
# node. No master of a shared connection: it would outlive the run, and hold the output open.
OPTIONS = (
    "-T", "-oBatchMode=yes", f"-oConnectTimeout={CONNECT_S}", "-oServerAliveInterval=15", "-oServerAliveCountMax=4",
    "-oControlMaster=no", "-oClearAllForwardings=yes", "-oForwardX11=no", "-oLogLevel=ERROR",
)  # fmt: skip

# of one machine or of another launcher
NOT_CARRIED = ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "LD_PRELOAD")
NOT_CARRIED_PREFIXES = ("OMPI_",)


class Nodes(Job, frozen=True, kw_only=True):
    """A job over ssh; `hosts` are its nodes."""

    folder: str = ""  # where the command runs unless a host says another; empty: the home there
    environ: dict[str, str] = msgspec.field(default_factory=dict)


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change speed and are not of one machine alone: the nodes run with this one's."""
    return {
        name: value
        for name, value in speed_variables(environ).items()
        if value != WITHHELD
        and value.isprintable()
        and name not in NOT_CARRIED
        and not name.startswith(NOT_CARRIED_PREFIXES)
    }


def client(host: Host) -> tuple[str, ...]:
    """argv of ssh up to the host; what follows is the remote command."""
    port = () if host.port is None else ("-p", str(host.port))
    user = () if host.user is None else ("-l", host.user)
    return ("ssh", *OPTIONS, *port, *user, "--", host.name)


def argv(job: Nodes, node_rank: int) -> tuple[str, ...]:
    """argv that runs one node's command over ssh."""
    return (*client(job.hosts[node_rank]), in_shell(command(job, node_rank)))


def command(job: Nodes, node_rank: int) -> str:
    """A node's command for a POSIX shell."""
    host = job.hosts[node_rank]
    folder = host.dir or job.folder
    given = {END_WITH_STDIN: "1", **job.environ}
    words = ["exec", "env", *(shlex.quote(f"{name}={value}") for name, value in given.items())]
    words += [_path(host.python or job.python), "-P", "-m", "bench"]
    words += map(shlex.quote, node_words(job, node_rank))
    return (f"cd {_path(folder)} && " if folder else "") + " ".join(words)


def in_shell(command: str) -> str:
    """A command for whatever shell the user has there: sshd hands it one text."""
    return f"exec sh -c {shlex.quote(command)}"


def text(job: Nodes) -> str:
    """Each node's line; what is typed into it first is the study's secret, and its end stops the node."""
    return "".join(
        f"# on {host.name}\n{shlex.join(argv(job, node_rank))}\n" for node_rank, host in enumerate(job.hosts)
    )


def label(host: Host) -> str:
    """What a host is called in lines for people."""
    return host.name if host.port is None else f"{host.name}:{host.port}"


def _path(path: str) -> str:
    """A path for the shell there; ~/ is the home there."""
    home = '"$HOME"/' if path.startswith("~/") else ""
    return home + shlex.quote(path.removeprefix("~/") if home else path)


PLUGIN = Launcher("started, followed and stopped over the user's own ssh (--hosts, --hostfile)", Nodes, text)
