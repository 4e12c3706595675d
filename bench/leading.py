"""How a node comes to lead or to follow: its address, the study's secret, the other nodes of one box."""

import ipaddress
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench import interfaces, secret, wire
from bench.asked import Asked, leads_at, over_ssh, parse_lead
from bench.errors import UsageError
from bench.follower import Follower
from bench.hints import fault_hints
from bench.launchers import hand
from bench.launchers._job import Job
from bench.machine import Host, fingerprint, probe_host
from bench.netns import Box
from bench.nodes import Team
from bench.plan import Plan
from bench.reach import reach
from bench.records import Member
from bench.sameness import mine
from bench.started import Followers, SshFollowers

LOOPBACK = "127.0.0.1"
HINTS = ("shm-small", "shm-full", "fd-limit", "memory-limit")  # that a launch may fail of
CLOCK_S = 1.0
JOIN_S = 30.0  # for a store whose port can be reached: many nodes may come at once
SHARED_S = 5.0  # for a file to be seen on another node


def follow(asked: Asked, say: Callable[[str], None], devices: tuple[int, ...] | None = None) -> None:
    """Follow the node that leads until the study is over. Raises UsageError and LeaderLost."""
    address, port = parse_lead(asked.lead or "", port_needed=True)
    host = probe_host()
    reach(address, port, asked.wait_s, say)
    try:
        link = wire.join(address, port, _secret(asked), min(max(3.0, asked.wait_s), JOIN_S))
    except wire.WireLost as error:
        raise UsageError(f"--lead {address}:{port}: {error}") from None
    name, own = _towards(address, port)
    if asked.interface is not None:
        name, own = asked.interface, _address_of(asked.interface, host)
    Follower(
        link,
        _member(host, asked.rank or 0, own, name),
        host,
        say,
        devices,
        quiet=bool(asked.secret or asked.secret_file),
    ).serve()


def _towards(address: str, port: int) -> tuple[str, str]:
    try:
        return interfaces.towards(address, port)
    except OSError as error:
        raise UsageError(f"--lead {address}:{port}: {error}") from None


@contextmanager
def lead(
    asked: Asked, plan: Plan, host: Host, words: Sequence[str], say: Callable[[str], None]
) -> Iterator[tuple[Team, Box | None]]:
    """All nodes together, ready to run a plan: this one leads. `words`: the command's, without its options.

    On one box the others are started here, each behind a link of its own where a cell asks for one.
    """
    with ExitStack() as stack:
        box = None
        if asked.box and any(cell.case.link for cell in plan.runnable):
            box = stack.enter_context(Box(asked.nodes))
            box.enter(0)
        address, port = _own_address(asked, box, host)
        known = _secret(asked)
        if asked.secret_file:
            stack.callback(Path(asked.secret_file).unlink, missing_ok=True)
        store = wire.host(address, port, known)
        job = Job(name="study", words=tuple(words), nodes=asked.nodes, lead=(address, store.port))
        started: Followers | SshFollowers = SshFollowers(say) if asked.hosts else Followers()
        stack.callback(started.end)
        if asked.interface is not None:
            _address_of(asked.interface, host)
        name = asked.interface or interfaces.of_address(address)
        me = _member(host, 0, address, name)
        cases = [cell.case for cell in plan.cells]
        team = stack.enter_context(
            Team(store, me, mine(cases), asked.nodes, say, started.check, asked.wait_s, asked.box)
        )
        if isinstance(started, SshFollowers):
            started.start(over_ssh(asked, started_words(asked, words), (address, store.port)), known)
        elif asked.box:
            started.start(msgspec.structs.replace(job, words=started_words(asked, words)), known, box)
        elif not (asked.secret or asked.secret_file):  # a launcher starts the others itself
            _say_lines(job, address, say)
        team.gather(cases)
        started.quiet = True
        _say_hints(team, say)
        yield team, box


def started_words(asked: Asked, words: Sequence[str]) -> tuple[str, ...]:
    """The words for nodes that this one starts: nobody else gives them their interface."""
    return (*words, *(("--interface", asked.interface) if asked.interface else ()))


def _say_lines(job: Job, address: str, say: Callable[[str], None]) -> None:
    for node in range(1, min(job.nodes, 5)):
        say(f"on node {node}: {hand.line(job, node)}")
    if job.nodes > 5:
        say(f"... and so on up to --node-rank {job.nodes - 1}")
    if not os.environ.get(secret.NAME):
        file = os.environ.get(secret.FILE) or secret.default_path()
        say(f"the others need this study's secret: {file} copied there, or {secret.NAME} set alike")
    if ipaddress.ip_address(address).is_loopback:
        say(f"bound to {address}: only this machine reaches it; --lead HOST takes an address of this node")


def _say_hints(team: Team, say: Callable[[str], None]) -> None:
    """What will bite on the other nodes, and is not said of this one by `scalemark doctor` here."""
    for member in team.members[1:]:
        host = msgspec.convert(member.host, Host)
        for hint in fault_hints(host):
            if hint.code in HINTS:
                say(f"node {member.node}: {hint.message}: {hint.remedy}")
        if abs(member.clock_ahead_s or 0.0) > CLOCK_S:
            say(
                f"node {member.node}: its clock is {member.clock_ahead_s:+.1f} s off this one's: logs are hard to compare"
            )


def _own_address(asked: Asked, box: Box | None, host: Host) -> tuple[str, int]:
    """Where the study's store listens: loopback unless told otherwise."""
    if box is not None:
        return box.address(0), 0
    if asked.lead is None and not asked.hosts:
        return LOOPBACK, 0
    name, port = leads_at(asked)
    return _resolved(name, host, asked.interface), port


def _secret(asked: Asked) -> bytes:
    """What messages are signed with: given, made for nodes that are started here, of the job, or this user's own."""
    if asked.secret:
        return asked.secret.encode()
    if asked.box or asked.hosts:
        return secret.fresh().encode()
    of_job = Path(asked.secret_file) if asked.secret_file else None
    return secret.find(make=not asked.follows, of_job=of_job, wait_s=SHARED_S if asked.follows else 0.0)


def _resolved(name: str, host: Host, interface: str | None = None) -> str:
    """The address of this node that a name stands for. Raises UsageError."""
    found = interfaces.resolve(name)
    if not found:
        raise UsageError(
            f"--lead {name}: this node cannot resolve that name: give an address, or mend DNS or /etc/hosts"
        )
    own = [address for address in found if interfaces.is_own(address)]
    if not own:
        here = ", ".join(f"{nic.name} {nic.address}" for nic in host.nics if nic.up and nic.address)
        raise UsageError(
            f"--lead {name} is {found[0]}, which is no address of this node ({here}): node 0 leads at its own"
        )
    reached = [address for address in own if not ipaddress.ip_address(address).is_loopback]
    return reached[0] if reached else _behind_loopback(name, own[0], host, interface)


def _behind_loopback(name: str, address: str, host: Host, interface: str | None) -> str:
    """What the other nodes mean by a name that stands for loopback here, as Debian has it of a host's own name."""
    if name in (address, "localhost"):
        return address
    if interface is not None:
        return _address_of(interface, host)
    nics = [nic for nic in host.nics if nic.up and nic.address and not nic.loopback]
    nics = [nic for nic in nics if nic.kind != "virtual"] or nics
    if len(nics) != 1:
        here = ", ".join(f"{nic.name} {nic.address}" for nic in nics) or "none is up"
        raise UsageError(
            f"--lead {name} is {address} on this node, which no other one reaches: give one of its addresses ({here}),"
            " or --interface, or mend /etc/hosts"
        )
    return str(nics[0].address)


def _address_of(interface: str, host: Host) -> str:
    found = {nic.name: nic.address for nic in host.nics}
    if not found.get(interface):
        known = ", ".join(name for name, address in found.items() if address)
        raise UsageError(
            f"--interface {interface}: this node has no such interface with an address; it has {known}"
        )
    return str(found[interface])


def _member(host: Host, node: int, address: str | None, name: str | None) -> Member:
    """A node, as the others know it."""
    return Member(
        node=node,
        hostname=host.hostname,
        address=address,
        interface=name,
        speed_mbit=interfaces.speed_mbit(name) if name else None,
        fingerprint=fingerprint(host),
        host=msgspec.to_builtins(host),
    )
