"""What a ring all-reduce sends and how fast it was, in the words and formulas of nccl-tests (doc/PERFORMANCE.md).

For S bytes over N ranks in t seconds: algbw = S / t, busbw = algbw x 2 (N - 1) / N. A ring sends
2 (N - 1) / N x S bytes from every rank, so busbw is the rate on each of its links, to be compared with theirs.
Rates are in bytes a second (MB/s: 1e6), links in bits a second. None where the time is 0.
"""

from collections.abc import Sequence


def algbw_bytes_per_s(size_bytes: float, seconds: float) -> float | None:
    """Algorithm bandwidth: S / t."""
    return size_bytes / seconds if seconds > 0 else None


def busbw_bytes_per_s(size_bytes: float, seconds: float, ranks: int) -> float | None:
    """Bus bandwidth: S / t x 2 (N - 1) / N."""
    return algbw_bytes_per_s(ring_bytes(size_bytes, ranks), seconds)


def ring_bytes(gradient_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends, and receives, to all-reduce its gradients once: 2 (N - 1) / N x S."""
    return 2 * (ranks - 1) / ranks * gradient_bytes


def link_bytes(gradient_bytes: float, ranks: int, nodes: int) -> float:
    """Bytes that leave each node for one all-reduce over `ranks` in all; 0 on one node.

    Ranks of a node are neighbours in the ring: one of its connections leaves each node and one enters it, and
    what a rank sends is what crosses the link.
    """
    return ring_bytes(gradient_bytes, ranks) if nodes > 1 else 0.0


def shortest_s(size_bytes: float, link_bits_per_s: float) -> float:
    """The least time in which a link carries so many bytes one way."""
    return 8 * size_bytes / link_bits_per_s


def link_share(bytes_per_s: float, link_bits_per_s: float) -> float:
    """What part of a link a rate takes."""
    return 8 * bytes_per_s / link_bits_per_s


def waits(durations_s: Sequence[float]) -> tuple[float, tuple[float, ...]]:
    """Time of a collective, and how long each rank waited in it for the last one to come.

    Ranks leave together, so the shortest of their durations, the late rank's, is the collective's own.
    """
    own_s = min(durations_s)
    return own_s, tuple(duration - own_s for duration in durations_s)
