"""What several nodes sent to each other: counters and all-reduces of the launches, against a ring and the link."""

from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from bench import frame, ring
from bench.answers import Cluster, Exchanged, Network, Traffic
from bench.case import Case
from bench.evidence import Cell, Evidence
from bench.link import parse
from bench.records import RankNetwork, StudyHeader
from bench.store import finite

HALVED = ("fp16", "bf16")  # hooks that send gradients of float32 in two bytes each


class Seat(NamedTuple):
    """One rank of a launch: its node, and what it saw of the network."""

    node: int
    seen: RankNetwork | None


Seats = dict[tuple[str, str], list[Seat]]  # study and launch -> its ranks


def network(evidence: Evidence) -> Network | None:
    """Everything about the network of studies with several nodes; None where there is none."""
    headers = dict(zip(frame.study_names(list(evidence.stores.values())), evidence.headers, strict=True))
    clusters = tuple(
        Cluster(study=study, nodes=header.nodes, pairs=header.pairs, box=header.box)
        for study, header in headers.items()
        if header.nodes
    )
    several = [cell for cell in evidence.measured if cell.case.nodes > 1]
    if not clusters and not several:
        return None
    seats = _seats(evidence)
    return Network(
        clusters=clusters, cells=tuple(_traffic(evidence, cell, headers, seats) for cell in several)
    )


def _seats(evidence: Evidence) -> Seats:
    found: Seats = {}
    for study, launch, node, seen in evidence.rank_rows("study", "launch", "node", "network"):
        found.setdefault((study, launch), []).append(Seat(int(node), seen))
    return found


def _traffic(evidence: Evidence, cell: Cell, headers: dict[str, StudyHeader], seats: Seats) -> Traffic:
    header = headers[cell.shown[0].study]
    by_launch = [seats.get((row.study, row.launch), []) for row in cell.shown]
    ranks = max((len(some) for some in by_launch), default=0) or cell.case.devices
    used = _interfaces(seat for some in by_launch for seat in some)
    sender, sent_bytes = _sent(cell, header, used)
    bits, source = link_of(cell.case, header, [seat.seen for some in by_launch for seat in some if seat.seen])
    return Traffic(
        cell=cell.id,
        nodes=cell.case.nodes,
        ranks=ranks,
        interfaces=used,
        step_s=cell.average("step_s"),
        sender=sender,
        sent_bytes=sent_bytes,
        ring_bytes=_ring(evidence, cell, ranks),
        link_bits_per_s=bits,
        link_source=source,
        exchanges=_exchanged(by_launch, ranks),
    )


def _interfaces(seats: Iterable[Seat]) -> dict[int, tuple[str, ...]]:
    """Node -> the interfaces of its ranks' connections, where any of them is known."""
    found: dict[int, dict[str, None]] = {}
    for node, seen in seats:
        if seen is not None and seen.interfaces:
            found.setdefault(node, {}).update(dict.fromkeys(seen.interfaces))
    return {node: tuple(names) for node, names in sorted(found.items())}


def link_of(case: Case, header: StudyHeader, seen: Sequence[RankNetwork]) -> tuple[float | None, str | None]:
    """Bits a second that a node's link carries, and where that is known from; None where it is not.

    The cell's own link, else the speed of the interfaces as the kernel says, else what a TCP stream between its
    nodes reached before the first cell. Nodes that share a machine without a link have none.
    """
    if case.link is not None:
        return parse(case.link).rate_bits_per_s, f"link {case.link}"
    if header.box:
        return None, None
    slow = min((one for one in seen if one.speed_mbit), key=lambda one: one.speed_mbit or 0, default=None)
    if slow is not None and slow.speed_mbit:
        name = slow.interfaces[0] if slow.interfaces else "the interface"
        return slow.speed_mbit * 1e6, f"speed of {name}"
    ours = [pair for pair in header.pairs if max(pair.first, pair.second) < case.nodes]
    measured = [pair.bits_per_s for pair in ours if pair.bits_per_s]
    return (min(measured), "a TCP stream before the first cell") if measured else (None, None)


def sent_per_s(row: Any, node: int, names: Iterable[str]) -> float | None:
    """Bytes a second that interfaces or ports of a node sent over the window; None where one did not say."""
    prefix = f"node {node} " if node else ""
    stats = [row.telemetry.get(f"{prefix}{name}/tx_bytes_per_s", {}) for name in names]
    rates = [finite(stat.get("mean")) for stat in stats]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _sent(
    cell: Cell, header: StudyHeader, used: dict[int, tuple[str, ...]]
) -> tuple[int | None, float | None]:
    """The node that sent most and its bytes a step, mean over launches.

    On one machine without a link all nodes share its counters: they are no node's own.
    """
    if header.box and cell.case.link is None:
        return None, None
    chosen = {one.node: (one.interface,) for one in header.nodes if one.interface not in (None, "lo")}
    means = {}
    for node, names in (chosen | used).items():
        per_s = [(sent_per_s(row, node, names), finite(row.step_s)) for row in cell.shown]
        steps = [rate * step_s for rate, step_s in per_s if rate is not None and step_s]
        if steps:
            means[node] = fmean(steps)
    sender = max(means, key=lambda node: means[node], default=None)
    return sender, None if sender is None else means[sender]


def _ring(evidence: Evidence, cell: Cell, ranks: int) -> float | None:
    """What DDP has to exchange a step; None for strategies and hooks that exchange something else."""
    gradients = max(evidence.said(cell.id, "gradient_bytes"), default=None)
    hook = cell.case.comm_hook
    if gradients is None or cell.case.strategy != "ddp" or (hook and hook not in HALVED):
        return None
    return ring.link_bytes(gradients / 2 if hook else gradients, ranks, cell.case.nodes)


def _exchanged(by_launch: Iterable[list[Seat]], ranks: int) -> tuple[Exchanged, ...]:
    """By size: in each launch the least of its ranks, which holds no waiting; then the median of the launches."""
    least_s: dict[int, list[float]] = {}
    for seats in by_launch:
        by_size: dict[int, list[float]] = {}
        for one in (one for seat in seats if seat.seen for one in seat.seen.exchanges):
            by_size.setdefault(one.bytes, []).append(one.seconds)
        for size, durations_s in by_size.items():
            least_s.setdefault(size, []).append(ring.waits(durations_s)[0])
    return tuple(
        Exchanged(
            bytes=size,
            seconds=(seconds := median(some)),
            launches=len(some),
            algbw_bytes_per_s=ring.algbw_bytes_per_s(size, seconds),
            busbw_bytes_per_s=ring.busbw_bytes_per_s(size, seconds, ranks),
        )
        for size, some in sorted(least_s.items())
    )
