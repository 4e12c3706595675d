"""What is wrong with the nodes of a study, or between two of them, before any cell is looked at."""

from collections.abc import Iterator
from statistics import median
from typing import Any

import msgspec

from bench import hints
from bench.checks.seen import Known, Seen
from bench.machine import Host, comparable
from bench.measures import format_value
from bench.plugins import clip
from bench.records import Member, Pair

CLOCK_S = 1.0
SLOW = 0.5  # of the median pair's bandwidth
LATE = 3.0  # times the median pair's latency
HICCUP_S = 1e-4  # a latency that is worth a finding: below it a busy CPU makes such differences
ENOUGH_PAIRS = 3


def who(member: Member) -> str:
    """`node 1 (n1)`."""
    return f"node {member.node} ({clip(member.hostname, 40)})"


def nodes_differ(known: Known) -> Iterator[Seen]:
    """Nodes that would not be compared with each other, were they hosts of two studies."""
    for nodes in _clusters(known):
        found = [comparable(msgspec.convert(member.host, Host)) for member in nodes]
        names = [name for name in found[0] if any(one[name] != found[0][name] for one in found[1:])]
        if names:
            values = {name: " | ".join(dict.fromkeys(_word(one[name]) for one in found)) for name in names}
            text = "; ".join(f"{name} {value}" for name, value in values.items())
            yield Seen(f"nodes differ in {clip(text, 300)}: each step waits for the slowest", (), values)


def clocks_differ(known: Known) -> Iterator[Seen]:
    """Wall clocks that are far apart: logs cannot be laid side by side. (No duration is taken across nodes.)"""
    for nodes in _clusters(known):
        ahead = sorted((one.clock_ahead_s, one.node) for one in nodes if one.clock_ahead_s is not None)
        if ahead and ahead[-1][0] - ahead[0][0] > CLOCK_S:
            names = {member.node: who(member) for member in nodes}
            apart = format_value("step_s", ahead[-1][0] - ahead[0][0])
            ends = names[ahead[-1][1]], names[ahead[0][1]]
            yield Seen(f"the clock of {ends[0]} is {apart} ahead of that of {ends[1]}")


def hostname_loopback(known: Known) -> Iterator[Seen]:
    """Host names that stand for loopback: gloo would offer that address to other nodes. Nodes on loopback have no others."""
    for nodes in _clusters(known):
        named = [
            member
            for member in nodes
            if _is_loopback(member.host.get("hostname_address"))
            and not _is_loopback(member.address)
            and "GLOO_SOCKET_IFNAME" not in member.host.get("variables", {})
        ]
        if named:
            first = named[0]
            more = f" (and of {len(named) - 1} more)" if len(named) > 1 else ""
            text = f"the host name of {who(first)}{more} resolves to {first.host['hostname_address']}"
            yield Seen(
                f"{text}, which gloo would offer to the other nodes; here it was told an interface",
                remedy=f"elsewhere set GLOO_SOCKET_IFNAME={first.interface or 'the interface'}, which leads to the "
                "others, or mend /etc/hosts",
            )


def interface_variables(known: Known) -> Iterator[Seen]:
    """Variables that name interfaces in another library's way, or name none of the node's."""
    said: dict[tuple[str, str], Member] = {}
    for cluster in known.network.clusters if known.network else ():
        for member in cluster.nodes:
            for hint in hints.networks(msgspec.convert(member.host, Host)):
                said.setdefault((hint.message, hint.remedy), member)
    for (message, remedy), member in said.items():
        yield Seen(f"{who(member)}: {message}", remedy=remedy)


def slow_pair(known: Known) -> Iterator[Seen]:
    """Two nodes with much less between them than between the others."""
    for cluster in known.network.clusters if known.network else ():
        names = {member.node: who(member) for member in cluster.nodes}
        for pair, text in (*_narrow(cluster.pairs), *_far(cluster.pairs)):
            ends = " and ".join(names.get(node, f"node {node}") for node in (pair.first, pair.second))
            yield Seen(f"between {ends}: {text} between the median pair")


def _narrow(pairs: tuple[Pair, ...]) -> Iterator[tuple[Pair, str]]:
    known = {pair: pair.bits_per_s for pair in pairs if pair.bits_per_s}
    usual = median(known.values()) if len(known) >= ENOUGH_PAIRS else 0.0
    for pair, bits in known.items():
        if bits < SLOW * usual:
            ours, theirs = (format_value("link_bits_per_s", value) for value in (bits, usual))
            yield pair, f"{ours}, {theirs}"


def _far(pairs: tuple[Pair, ...]) -> Iterator[tuple[Pair, str]]:
    known = {pair: pair.latency_s for pair in pairs if pair.latency_s}
    usual = median(known.values()) if len(known) >= ENOUGH_PAIRS else 0.0
    for pair, latency_s in known.items():
        if usual and latency_s > max(LATE * usual, HICCUP_S):
            ours, theirs = (format_value("latency_s", value) for value in (latency_s, usual))
            yield pair, f"{ours} one way, {theirs}"


def _clusters(known: Known) -> Iterator[tuple[Member, ...]]:
    """The nodes of each study that has several machines; agents on one machine are equal by nature."""
    for cluster in known.network.clusters if known.network else ():
        if len(cluster.nodes) > 1 and not cluster.box:
            yield cluster.nodes


def _is_loopback(address: str | None) -> bool:
    return address is not None and (address.startswith("127.") or address == "::1")


def _word(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
