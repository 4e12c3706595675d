"""What is asked of several nodes: by the command line, or by the environment of whoever started this process."""

import os
from collections.abc import Mapping, Sequence

import msgspec

from bench import allocation
from bench.errors import UsageError
from bench.launchers._hosts import Host as SshHost
from bench.launchers._hosts import fewest_slots
from bench.launchers._job import address as at_address
from bench.launchers._lead import is_here, lead_host, some_port
from bench.launchers.ssh import Nodes as SshNodes
from bench.launchers.ssh import carried
from bench.netns import MOST_NODES, delay_why_not, why_not
from bench.nodes import GATHER_S
from bench.plan import Nodes


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line, or a launcher's environment, says about nodes."""

    nodes: int = 1
    rank: int | None = None
    lead: str | None = None  # HOST:PORT; on node 0, and beside hosts, HOST will do
    interface: str | None = None
    link: str | None = None
    hosts: tuple[SshHost, ...] = ()  # started over ssh, the first one leads
    wait_s: float = GATHER_S
    secret: str | None = None  # given by whoever started this
    secret_file: str | None = None  # of a job whose nodes share the working directory

    @property
    def box(self) -> bool:
        """Whether the nodes are to be agents on this machine."""
        return self.nodes > 1 and self.rank is None and self.lead is None and not self.hosts

    @property
    def follows(self) -> bool:
        """Whether another node leads."""
        return bool(self.rank)

    @property
    def away(self) -> bool:
        """Whether this machine is none of the hosts."""
        return bool(self.hosts) and not is_here(self.hosts[0])

    @property
    def slots(self) -> int | None:
        """The most ranks that every host has room for; None where no host says."""
        return fewest_slots(self.hosts)

    def checked(self, said: int | None = None) -> "Asked":
        """This. Raises UsageError for what does not go together; `said` is --nodes as it was given."""
        if self.hosts:
            if self.rank is not None or self.link is not None:
                raise UsageError("--hosts starts the nodes itself: leave out --node-rank and --link")
            if said not in (None, len(self.hosts)):
                raise UsageError(f"--nodes {said}: {len(self.hosts)} hosts are named; leave --nodes out")
            if self.lead is not None:
                parse_lead(self.lead)
            return msgspec.structs.replace(self, nodes=len(self.hosts))
        self._check()
        return self

    def _check(self) -> None:
        if self.rank is not None and not 0 <= self.rank < self.nodes:
            raise UsageError(f"--node-rank {self.rank}: --nodes {self.nodes} has ranks 0 to {self.nodes - 1}")
        if self.follows and self.lead is None:
            raise UsageError("--node-rank: --lead HOST:PORT of node 0 is missing (node 0 prints the line)")
        if self.nodes == 1 and (self.lead or self.link):
            raise UsageError(f"{'--lead' if self.lead else '--link'}: there is one node only: give --nodes N")
        if self.link is not None and not self.box:
            raise UsageError(
                f"--link {self.link}: links are shaped on one box only: leave out --node-rank and --lead"
            )

    def plan_nodes(self) -> Nodes:
        """What a plan needs to know of them. Raises UsageError where a link was asked for and cannot be."""
        if not self.box:
            return Nodes(count=self.nodes)
        reason = self._no_links()
        if self.link is not None and reason:
            raise UsageError(f"--link {self.link}: {reason}")
        return Nodes(count=self.nodes, box=True, link=self.link, no_link=reason, no_delay=delay_why_not())

    def _no_links(self) -> str | None:
        """Why the nodes of one box cannot have links of their own, in one line; None if they can."""
        if self.nodes > MOST_NODES:
            return f"a box has links for {MOST_NODES} nodes at most, --nodes {self.nodes} were asked for"
        return why_not()


def from_environment(asked: Asked, environ: Mapping[str, str], said: int | None) -> Asked:
    """With what a launcher's environment says of this node's place. Raises UsageError for a launcher that starts ranks."""
    given = None if asked.lead is None else parse_lead(asked.lead)
    place = allocation.found(environ, said, given)
    if place is None:
        return asked
    return msgspec.structs.replace(
        asked,
        nodes=place.nodes,
        rank=place.node_rank,
        lead=at_address(*place.lead),
        secret_file=f".scalemark-{place.job}.{place.step}.secret" if place.launcher == "Slurm" else None,
    )


def leads_at(asked: Asked) -> tuple[str, int]:
    """The name or address by which hosts over ssh reach the first of them, and its port; 0: one has yet to be chosen."""
    return parse_lead(asked.lead) if asked.lead is not None else (lead_host(asked.hosts), 0)


def over_ssh(asked: Asked, words: Sequence[str], lead: tuple[str, int] | None = None) -> SshNodes:
    """The nodes as an ssh job. `lead`: where this machine leads; else the first host does, from there."""
    name, port = lead or leads_at(asked)
    return SshNodes(
        name="study",
        words=tuple(words),
        nodes=asked.nodes,
        hosts=asked.hosts,
        lead=(name, port or some_port()),
        folder=os.getcwd(),
        environ=carried(os.environ),
    )


def parse_lead(text: str, port_needed: bool = False) -> tuple[str, int]:
    """HOST:PORT, [V6]:PORT or HOST (port 0: a free one). Raises UsageError."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise UsageError(
            f"--lead {text!r}: write HOST:PORT with a port from 1 to 65535, such as 10.0.0.5:29400"
        )
    if port_needed and not port:
        raise UsageError(f"--lead {text!r}: the port is missing: node 0 prints the line with it")
    return host, int(port or 0)
