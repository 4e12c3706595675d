"""Options of `scalemark run` about nodes, and what a launcher's environment says about them, as one value."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.asked import Asked
    from bench.store import Store

ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
STOPPED = "stopped; everything measured is kept. Go on with: scalemark {}"

Nodes = Annotated[
    int | None,
    typer.Option("--nodes", min=1, help="Nodes; without the options below, agents on this machine."),
]
Rank = Annotated[
    int | None,
    typer.Option(
        "--node-rank", min=0, help="This node's number; 0 leads. The same command runs on every node."
    ),
]
Lead = Annotated[
    str | None,
    typer.Option(
        "--lead", metavar="HOST:PORT", help="Where node 0 is reached; it binds there (else: loopback)."
    ),
]
Hosts = Annotated[
    str | None,
    typer.Option("--hosts", metavar="n1,user@n2", help="Start the nodes over ssh; the first one leads."),
]
HostFile = Annotated[
    Path | None,
    typer.Option(
        "--hostfile", metavar="FILE", help="Hosts, a line each: n1 slots=8 user= port= python= dir=."
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        "--interface", metavar="eth0", help="This node's interface towards the others; with --hosts of each."
    ),
]
Wait = Annotated[str, typer.Option("--node-wait", metavar="2m", help="How long nodes are waited for.")]


def asked(
    nodes: int | None, rank: int | None, lead: str | None, hosts: str | None, hostfile: Path | None,
    interface: str | None, link: str | None, wait: str,
) -> "Asked":  # fmt: skip
    """What the command line and the environment say. Raises UsageError for what does not go together.

    What a launcher such as torchrun has set for its own ranks is taken out of the environment: it is not ours'.
    """
    from bench.allocation import OF_A_RANK
    from bench.asked import Asked, from_environment
    from bench.launchers._stdin import end_with_stdin

    secret = end_with_stdin()
    found = Asked(
        nodes=nodes or 1,
        rank=rank,
        lead=lead,
        hosts=_hosts(hosts, hostfile),
        interface=interface,
        link=link,
        wait_s=o.parse_budget(wait, "--node-wait") or float("inf"),
        secret=secret,
    )
    if rank is None and not found.hosts and link is None:
        found = from_environment(found, os.environ, nodes)
        if (
            "RANK" in os.environ and os.environ.get(ERRORS) == "1"
        ):  # torchrun says so to every rank, as this suite does
            del os.environ[ERRORS]
        for name in OF_A_RANK:
            os.environ.pop(name, None)
    return found.checked(nodes)


def _hosts(text: str | None, file: Path | None) -> tuple:
    from bench.errors import UsageError
    from bench.launchers._hosts import parse_hosts, read_hosts

    if text and file:
        raise UsageError("--hosts and --hostfile: give one of them")
    return parse_hosts(text) if text else read_hosts(file) if file else ()


def narrow(ranks: int) -> str | None:
    """One line where Slurm lets this task use fewer devices than `ranks`; else None."""
    from bench import allocation

    return allocation.narrow(os.environ, ranks)


def follow(one: "Asked", devices: tuple[int, ...] | None) -> None:
    """This node follows another one; its exit code: 0 at the study's end, 1 if the leader was lost, 130 after a signal."""
    from bench.leader import LeaderLost
    from bench.leading import follow as serve
    from bench.study import Interrupted, signals

    try:
        with signals():
            serve(one, typer.echo, devices)
    except Interrupted:
        raise typer.Exit(130) from None
    except LeaderLost as error:
        where = f"node {one.rank}: the leader at {one.lead} is lost"
        typer.echo(f"{where}: {error}; what it recorded is kept there", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(0)


def away(one: "Asked", words: tuple[str, ...], store: "Store") -> None:
    """This machine is none of the hosts: the first of them leads, and its results are brought here."""
    from bench import secret
    from bench.asked import over_ssh
    from bench.launchers._away import conduct

    try:
        code = conduct(over_ssh(one, words), store.root, secret.fresh(), typer.echo)
    except KeyboardInterrupt:
        code = 130
    if code == 130 and store.header_path.exists():
        typer.echo(STOPPED.format(resumed(store)))
    raise typer.Exit(code)


def resumed(store: "Store") -> str:
    """This command's words with --resume and the study's folder."""
    return resumed_at(store.root)


def resumed_at(root: Path) -> str:
    """This command's words with --resume and a folder by -o."""
    words = list(sys.argv[1:])
    if "--resume" not in words:
        words.append("--resume")
    named = any(word in ("-o", "--output") or word.startswith(("-o=", "--output=")) for word in words)
    return shlex.join(words if named else [*words, "-o", str(root)])
