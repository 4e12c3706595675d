"""The report's network: nodes, what lies between them, what cells sent against a ring, all-reduces against the link."""

from collections.abc import Iterator
from typing import Any

from bench import ring, wording
from bench.answers import Analysis, Cluster, Exchanged, Traffic
from bench.measures import format_value
from bench.plugins import Row, clip
from bench.records import Member, Pair
from bench.tables import MOST_ROWS, Column, Entry, Spec, Table, amount, build, number_column, word
from bench.wording import cell_labels

UNSHAPED = "Measured before any link was shaped: what this host carries, not what the cells had."


def tables(analysis: Analysis, labels: dict[str, str]) -> list[Table]:
    """The tables of the section, those without a line left out; none where there is one node only."""
    if analysis.network is None:
        return []
    several = len(analysis.network.clusters) > 1
    shaped = any(cell.case.link for cell in analysis.cells)
    found = []
    for cluster in analysis.network.clusters:
        of = f" of {clip(cluster.study, 60)}" if several else ""
        found += [_nodes(cluster, of), _pairs(cluster, of, shaped)]
    found += [_sent(analysis.network.cells, labels), _all_reduces(analysis.network.cells, labels)]
    return [table for table in found if table.lines]


def _nodes(cluster: Cluster, of: str) -> Table:
    spec: Spec[Member] = [
        (number_column("node"), lambda n: amount(n.node, f"{n.node}")),
        (Column("name"), lambda n: word(n.hostname)),
        (Column("address"), lambda n: word(n.address)),
        (Column("interface"), lambda n: word(n.interface)),
        (number_column("speed", "of the interface, as the kernel says"), lambda n: _bits(_speed(n))),
        (
            number_column("clock", "ahead of that of node 0"),
            lambda n: amount(n.clock_ahead_s, wording.duration(n.clock_ahead_s)),
        ),
    ]
    note = "All are agents on one machine and share its CPUs." if cluster.box else ""
    return build(f"Nodes{of}", cluster.nodes, spec, "nodes.csv", note)


def _pairs(cluster: Cluster, of: str, shaped: bool) -> Table:
    """`shaped`: cells of the study ran behind links of their own."""
    spec: Spec[Pair] = [
        (Column("nodes"), lambda p: word(f"{p.first} and {p.second}")),
        (
            number_column("latency", "half of the shortest round trip"),
            lambda p: amount(p.latency_s, wording.duration(p.latency_s)),
        ),
        (number_column("bandwidth", "one TCP stream"), lambda p: _bits(p.bits_per_s)),
        (Column("error"), lambda p: word(p.error) if p.error else Entry("")),
    ]
    shown = cluster.pairs[:MOST_ROWS]
    rest = len(cluster.pairs) - len(shown)
    notes = [UNSHAPED] if shaped else []
    notes += [f"{rest:,} more are in the CSV."] if rest > 0 else []
    return build(f"Between nodes{of}, before the first cell", shown, spec, "pairs.csv", " ".join(notes))


def _sent(cells: tuple[Traffic, ...], labels: dict[str, str]) -> Table:
    spec: Spec[Traffic] = [
        (Column("cell"), lambda t: word(labels.get(t.cell, t.cell))),
        (number_column("nodes"), lambda t: amount(t.nodes, f"{t.nodes}")),
        (number_column("ranks"), lambda t: amount(t.ranks, f"{t.ranks}")),
        (Column("interfaces", hint="of the ranks' connections"), lambda t: word(", ".join(_names(t)))),
        (number_column("step, ms"), lambda t: amount(t.step_s, wording.milliseconds(t.step_s))),
        (
            number_column(
                "sent a step", "by the node that sent most, counted by its interface over the window"
            ),
            lambda t: _value("sent_bytes", t.sent_bytes),
        ),
        (
            number_column("ring bound", "2 (N - 1) / N times the gradients: what a ring all-reduce sends"),
            lambda t: _value("ring_bytes", t.ring_bytes),
        ),
        (number_column("sent / bound"), _times),
        (number_column("link"), lambda t: _bits(t.link_bits_per_s)),
        (Column("known from"), lambda t: word(t.link_source)),
        (
            number_column("least, ms", "the ring bound over that link: no exchange is shorter"),
            lambda t: amount(_least_s(t), wording.milliseconds(_least_s(t))),
        ),
    ]
    return build("What a node sends a step", cells[:MOST_ROWS], spec, "network.csv")


def _all_reduces(cells: tuple[Traffic, ...], labels: dict[str, str]) -> Table:
    spec: Spec[tuple[Traffic, Exchanged]] = [
        (Column("cell"), lambda p: word(labels.get(p[0].cell, p[0].cell))),
        (number_column("S, MB"), lambda p: amount(p[1].bytes / 1e6)),
        (number_column("t, ms"), lambda p: amount(p[1].seconds, wording.milliseconds(p[1].seconds))),
        (number_column("algbw, MB/s"), lambda p: _millions(p[1].algbw_bytes_per_s)),
        (number_column("busbw, MB/s"), lambda p: _millions(p[1].busbw_bytes_per_s)),
        (number_column("busbw, Gbit/s"), lambda p: _gigabits(p[1].busbw_bytes_per_s)),
        (number_column("of the link"), lambda p: _share(*p)),
        (number_column("launches"), lambda p: amount(p[1].launches, f"{p[1].launches}")),
    ]
    every = [(traffic, one) for traffic in cells for one in traffic.exchanges]
    rest = len(every) - MOST_ROWS
    note = f"{rest:,} more are in the CSV." if rest > 0 else ""
    return build("All-reduces after the window", every[:MOST_ROWS], spec, "allreduce.csv", note)


def files(analysis: Analysis) -> dict[str, list[Row]]:
    """Rows by the name of their CSV; none where there is one node only."""
    network, labels = analysis.network, cell_labels(analysis.cells)
    clusters = network.clusters if network else ()
    return {
        "nodes.csv": [
            {"study": cluster.study, **_fields(node, ("fingerprint", "host"))}
            for cluster in clusters
            for node in cluster.nodes
        ],
        "pairs.csv": [
            {"study": cluster.study, **_fields(pair)} for cluster in clusters for pair in cluster.pairs
        ],
        "network.csv": [
            {
                "cell": one.cell,
                "label": labels.get(one.cell, one.cell),
                "nodes": one.nodes,
                "ranks": one.ranks,
                "interfaces": "; ".join(_names(one)) or None,
                "step_s": one.step_s,
                "sender": one.sender,
                "sent_bytes": one.sent_bytes,
                "ring_bytes": one.ring_bytes,
                "link_bits_per_s": one.link_bits_per_s,
                "link_source": one.link_source,
                "least_s": _least_s(one),
            }
            for one in (network.cells if network else ())
        ],
    }


def _fields(struct: Any, but: tuple[str, ...] = ()) -> Row:
    return {name: getattr(struct, name) for name in struct.__struct_fields__ if name not in but}


def _names(traffic: Traffic) -> Iterator[str]:
    """Interfaces, each once, in the order of the nodes."""
    yield from dict.fromkeys(name for names in traffic.interfaces.values() for name in names)


def _speed(member: Member) -> float | None:
    return None if member.speed_mbit is None else member.speed_mbit * 1e6


def _least_s(traffic: Traffic) -> float | None:
    if traffic.ring_bytes is None or not traffic.link_bits_per_s:
        return None
    return ring.shortest_s(traffic.ring_bytes, traffic.link_bits_per_s)


def _times(traffic: Traffic) -> Entry:
    if traffic.sent_bytes is None or not traffic.ring_bytes:
        return amount(None)
    return amount(traffic.sent_bytes / traffic.ring_bytes, f"{traffic.sent_bytes / traffic.ring_bytes:.2f}")


def _share(traffic: Traffic, one: Exchanged) -> Entry:
    if one.busbw_bytes_per_s is None or not traffic.link_bits_per_s:
        return amount(None)
    share = ring.link_share(one.busbw_bytes_per_s, traffic.link_bits_per_s)
    return amount(share, wording.share(share))


def _value(name: str, value: float | None) -> Entry:
    return amount(value, format_value(name, value))


def _bits(bits_per_s: float | None) -> Entry:
    return _value("link_bits_per_s", bits_per_s)


def _millions(rate: float | None) -> Entry:
    return amount(None if rate is None else rate / 1e6)


def _gigabits(rate: float | None) -> Entry:
    return amount(None if rate is None else 8 * rate / 1e9)
