"""What the network did to cells on several nodes: links that are full, wrong interfaces, more bytes than needed."""

from collections.abc import Iterator
from typing import Any

from bench import ring
from bench.answers import Cluster, Traffic
from bench.checks.nodes import who
from bench.checks.seen import Known, Seen, worst
from bench.describe import describe
from bench.measures import format_value
from bench.traffic import sent_per_s

FULL = 0.8  # of a link: TCP's own bytes leave some 95 % of it
WORTH = 0.10  # of a step: an exchange that could be shorter than that bounds nothing
FAR_MORE = 1.5  # times the ring bound
LITTLE_BYTES = 1e6  # of gradients: beside so few, headers and barriers are a large part
LITTLE = 0.10  # of the ring bound: a port that carried less does not carry the gradients


def link_saturated(known: Known) -> Iterator[Seen]:
    """A rate near the link's: of the largest all-reduce where exchanges matter, or of the whole window."""
    found = []
    for traffic in _cells(known):
        link, whole_window = traffic.link_bits_per_s, traffic.sent_bytes_per_s
        if not link:
            continue
        rates = []
        largest = traffic.exchanges[-1] if traffic.exchanges else None
        if largest and largest.busbw_bytes_per_s and _matters(traffic, link):
            size = format_value("sent_bytes", largest.bytes)
            rates.append((largest.busbw_bytes_per_s, f"bus bandwidth of an all-reduce of {size}"))
        if whole_window:
            rates.append((whole_window, f"sent by node {traffic.sender} over the window"))
        rate, what = max(rates, default=(0.0, ""))
        share = ring.link_share(rate, link)
        if share >= FULL:
            text = f"{format_value('busbw_bytes_per_s', rate)} is {share * 100:.0f} % of {_bits(link)}"
            where = describe(known.evidence.cells[traffic.cell].case)
            message = f"network-bound: {text} ({what}; {where})"
            found.append(Seen(message, (traffic.cell,), _bound(traffic, link), share))
    yield from worst(found)


def _matters(traffic: Traffic, link: float) -> bool:
    """Whether the gradients need a good part of the step even at the link's full speed."""
    if traffic.ring_bytes is None or not traffic.step_s:
        return True
    return ring.shortest_s(traffic.ring_bytes, link) >= WORTH * traffic.step_s


def _bound(traffic: Traffic, link: float) -> dict[str, str]:
    seen = {"link": f"{_bits(link)} ({traffic.link_source})", "step": format_value("step_s", traffic.step_s)}
    if traffic.ring_bytes is not None:
        seen["gradients over that link"] = format_value("step_s", ring.shortest_s(traffic.ring_bytes, link))
    return seen


def more_bytes_than_ring(known: Known) -> Iterator[Seen]:
    """Interfaces that sent far more a step than a ring all-reduce of the gradients does."""
    found = []
    for traffic in _cells(known):
        sent, least = traffic.sent_bytes, traffic.ring_bytes
        if sent and least and least > LITTLE_BYTES and sent > FAR_MORE * least:
            texts = [format_value("sent_bytes", value) for value in (sent, least)]
            message = (
                f"node {traffic.sender} sent {texts[0]} a step, {sent / least:.1f} times the {texts[1]} of a ring "
                f"all-reduce of the gradients ({describe(known.evidence.cells[traffic.cell].case)})"
            )
            found.append(Seen(message, (traffic.cell,), {}, sent / least))
    yield from worst(found)


def wrong_interface(known: Known) -> Iterator[Seen]:
    """Ranks that talked over another interface than their node's, or over a slower one than it has."""
    for cluster in known.network.clusters if known.network else ():
        over = _used(known, cluster)
        for member in cluster.nodes:
            for name, cells in over.get(member.node, {}).items():
                if member.interface and name != member.interface:
                    text = f"ranks of {who(member)} talked to other nodes over {name}, not {member.interface}"
                    yield Seen(text, tuple(cells), {"node": str(member.node), "interface": name})
            if not cluster.box:
                yield from _slower(member, [*over.get(member.node, {})] or [member.interface])


def _used(known: Known, cluster: Cluster) -> dict[int, dict[str, list[str]]]:
    """Node -> interface -> cells of the study whose ranks used it; cells behind a link of ours are left out."""
    found: dict[int, dict[str, list[str]]] = {}
    for traffic in _cells(known):
        cell = known.evidence.cells[traffic.cell]
        if cell.case.link is None and cell.shown[0].study == cluster.study:
            for node, names in traffic.interfaces.items():
                for name in names:
                    found.setdefault(node, {}).setdefault(name, []).append(cell.id)
    return found


def _slower(member: Any, used: list[str | None]) -> Iterator[Seen]:
    """A node whose fastest interface with an address is not the one that is used."""
    nics = {nic["name"]: nic for nic in member.host.get("nics", ())}
    speeds = [nics[name].get("speed_mbit") for name in used if name in nics]
    fit = [nic for nic in nics.values() if nic.get("up") and nic.get("address") and nic.get("speed_mbit")]
    real = [nic for nic in fit if not nic.get("loopback") and nic.get("kind") != "virtual"]
    best = max(real, key=lambda nic: nic["speed_mbit"], default=None)
    if best and speeds and all(speed and speed < best["speed_mbit"] for speed in speeds):
        ours, theirs = (_bits(speed * 1e6) for speed in (max(speeds), best["speed_mbit"]))
        text = f"{who(member)} talks over {', '.join(map(str, used))} ({ours}); {best['name']} ({theirs}) is up too"
        yield Seen(text, (), {"node": str(member.node), "faster": best["name"]})


def infiniband_unused(known: Known) -> Iterator[Seen]:
    """A port of InfiniBand or RoCE that is up on every node, and gradients that went over TCP."""
    found = []
    for traffic in _cells(known):
        cell = known.evidence.cells[traffic.cell]
        ports = _ports(known, cell.shown[0].study)
        if len(ports) < traffic.nodes or not all(ports[node] for node in range(traffic.nodes)):
            continue
        moved = [sent_per_s(row, node, ports[node]) for row in cell.shown for node in range(traffic.nodes)]
        if _over_tcp(known, traffic, moved):
            names = ", ".join(ports[0])
            text = (
                f"{names} is ACTIVE on every node, but the gradients of {describe(cell.case)} went over TCP"
            )
            found.append(Seen(text, (cell.id,), {"ports": names}))
    yield from worst(found)


def _ports(known: Known, study: str) -> dict[int, list[str]]:
    """Node -> its ports that are up, named as in telemetry."""
    clusters = known.network.clusters if known.network else ()
    return {
        member.node: [
            f"{port['device']} port {port['port']}"
            for port in member.host.get("ports", ())
            if "ACTIVE" in (port.get("state") or "")
        ]
        for cluster in clusters
        if cluster.study == study
        for member in cluster.nodes
    }


def _over_tcp(known: Known, traffic: Traffic, moved: list[float | None]) -> bool:
    """The ports' own counters tell; where nobody read them, gloo is known to speak TCP only."""
    rates = [rate for rate in moved if rate is not None]
    needed = traffic.ring_bytes or traffic.sent_bytes
    if rates and needed and traffic.step_s:
        return max(rates) * traffic.step_s < LITTLE * needed
    return not rates and set(known.evidence.said(traffic.cell, "backend")) == {"gloo"}


def _cells(known: Known) -> tuple[Traffic, ...]:
    return known.network.cells if known.network else ()


def _bits(bits_per_s: float) -> str:
    return format_value("link_bits_per_s", bits_per_s)
