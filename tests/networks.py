"""Studies of several nodes without nodes: members, pairs, and what ranks and counters saw of the network."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bench.case import Case
from bench.machine import Host, Nic, Port
from bench.records import Exchange, LaunchRecord, Member, Pair, RankNetwork

Change = Callable[[LaunchRecord], LaunchRecord]

GRADIENT_BYTES = 4_000_000  # of every simulated rank
ETH0 = Nic(name="eth0", speed_mbit=1000, up=True, address="10.0.0.1", loopback=False, kind="ethernet")
IB0 = Nic(name="ib0", speed_mbit=100_000, up=True, address="10.1.0.1", loopback=False, kind="infiniband")
DOCKER = Nic(name="docker0", speed_mbit=10_000, up=True, address="172.17.0.1", loopback=False, kind="virtual")
PORT = Port(device="mlx5_0", port=1, state="4: ACTIVE", rate="100 Gb/sec (4X EDR)", link_layer="InfiniBand")


def ddp(nodes: int = 2, ranks: int = 1, **fields: Any) -> Case:
    """DDP on so many nodes."""
    return Case(strategy="ddp", nodes=nodes, ranks=ranks, **fields)


def member(node: int, ahead_s: float = 0.0, host: Mapping[str, Any] | None = None, **fields: Any) -> Member:
    """One node, on eth0 at 1 Gbit/s; `host` changes facts about its machine."""
    facts: dict[str, Any] = {
        "hostname": f"n{node}", "hostname_address": f"10.0.0.{node + 1}", "cpus_counted": 8, "cpus_affinity": 8,
        "cpus_usable": 8, "cpu_model": "Simulated C", "torch": "2.13.0", "nics": [ETH0],
    }  # fmt: skip
    own: dict[str, Any] = {
        "hostname": f"n{node}",
        "address": f"10.0.0.{node + 1}",
        "interface": "eth0",
        "speed_mbit": 1000,
        "clock_ahead_s": ahead_s,
        "fingerprint": "simulated-1",
        "host": msgspec.to_builtins(Host(**(facts | dict(host or {})))),
    }
    return Member(node=node, **(own | fields))


def pairs(nodes: int, bits_per_s: float = 941e6, latency_s: float = 5e-5) -> tuple[Pair, ...]:
    """Every two of the nodes, all alike."""
    return tuple(
        Pair(first=first, second=second, latency_s=latency_s, bits_per_s=bits_per_s)
        for second in range(nodes)
        for first in range(second)
    )


def header(*members: Member, **fields: Any) -> dict[str, Any]:
    """Fields of study.json."""
    return {"nodes": members or (member(0), member(1)), **fields}


def networked(
    seconds: Mapping[int, float] | None = None,
    sent_bytes: float | None = None,
    interfaces: tuple[str, ...] | None = ("eth0",),
    speed_mbit: int | None = 1000,
    subject: str | None = None,
    **effective: Any,
) -> Change:
    """Ranks that measured all-reduces (bytes -> seconds; each rank waits longer than the last), and node 1's counters.

    `sent_bytes` a step were counted on `subject` of node 1, which is its first interface where none is named.
    """

    def change(record: LaunchRecord) -> LaunchRecord:
        if record.requested.nodes == 1:
            return record
        each = len(record.ranks) // record.requested.nodes
        step_s = record.window.step_s if record.window else 0.0
        name = subject or (interfaces or ("eth0",))[0]
        rate = {"mean": (sent_bytes or 0.0) / step_s, "max": None}
        ranks = tuple(
            msgspec.structs.replace(
                rank,
                node=rank.rank // each,
                effective=msgspec.structs.replace(rank.effective, **effective),
                network=RankNetwork(
                    interfaces=interfaces,
                    speed_mbit=speed_mbit,
                    exchanges=tuple(
                        Exchange(bytes=size, seconds=least * (len(record.ranks) - rank.rank), repeats=5)
                        for size, least in (seconds or {}).items()
                    ),
                ),
            )
            for rank in record.ranks
        )
        telemetry = {f"node 1 {name}/tx_bytes_per_s": rate} if sent_bytes is not None else {}
        return msgspec.structs.replace(record, ranks=ranks, telemetry=record.telemetry | telemetry)

    return change
