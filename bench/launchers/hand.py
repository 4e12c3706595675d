"""By hand: the same command on every node, each in a terminal of its own, in any order."""

import shlex

from bench.launchers._job import Job, node_words
from bench.plugins import Launcher


def line(job: Job, node_rank: int) -> str:
    """The command of one node, as it is typed there."""
    return shlex.join(["scalemark", *node_words(job, node_rank)])


def text(job: Job) -> str:
    """Every node's command, under a comment that says where it belongs."""
    where = [f"on {host.name}" for host in job.hosts] or [f"on node {rank}" for rank in range(job.nodes)]
    where[0] += ", which leads and has the results"
    return "".join(f"# {where[rank]}\n{line(job, rank)}\n" for rank in range(job.nodes))


PLUGIN = Launcher("the same command, typed on every node", Job, text)
