"""What every launcher is told, and the command that it starts on a node."""

import sys
from collections.abc import Sequence

import msgspec

from bench.launchers._hosts import Host


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One study on several nodes. Launchers with settings of their own add them in a struct below this one."""

    name: str  # of the study
    words: tuple[str, ...]  # after `scalemark`: run, suites, options; the same on every node
    nodes: int
    ngpu: int | None = None  # device slots a node
    gpus: bool = True  # they are GPUs, and asked for as such; else CPU ranks
    hosts: tuple[Host, ...] = ()  # where the launcher is told the nodes by name, in their order
    lead: tuple[str, int] | None = None  # host and port of node 0; None: the launcher's business
    python: str = sys.executable


def place(job: Job, node_rank: int) -> tuple[str, ...]:
    """The options that tell a node which one it is."""
    lead = () if job.lead is None else ("--lead", address(*job.lead))
    return ("--nodes", str(job.nodes), "--node-rank", str(node_rank), *lead)


def node_words(job: Job, node_rank: int) -> tuple[str, ...]:
    """What follows `scalemark` on a node."""
    return (*job.words, *place(job, node_rank))


def address(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def module(python: str, words: Sequence[str]) -> tuple[str, ...]:
    """argv of scalemark under a Python that has it: the working directory's own `bench` is not taken (-P)."""
    return (python, "-P", "-m", "bench", *words)
