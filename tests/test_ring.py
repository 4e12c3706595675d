"""Bandwidths and bytes of a ring all-reduce, against published and measured figures."""

import pytest

from bench import ring

MB = 1e6


def test_bandwidths_are_those_of_nccl_tests() -> None:
    """4 MB in 0.3506 s: 11.4 MB/s on the bus of 2 ranks, 0.091 Gbit/s, and 17.1 MB/s on that of 4."""
    size, seconds = 4 * MB, 0.3506
    assert ring.algbw_bytes_per_s(size, seconds) == pytest.approx(11.4 * MB, rel=0.002)
    two, four = (ring.busbw_bytes_per_s(size, seconds, ranks) for ranks in (2, 4))
    assert two == pytest.approx(11.4 * MB, rel=0.002)
    assert 8 * (two or 0) / 1e9 == pytest.approx(0.091, abs=0.0005)
    assert four == pytest.approx(17.1 * MB, rel=0.002)


def test_a_rank_sends_less_than_twice_its_gradients() -> None:
    """125 M parameters in float32 over 16 ranks: 937.5 MB a rank, 0.30 s at 25 Gbit/s."""
    sent = ring.ring_bytes(125e6 * 4, 16)
    assert sent == pytest.approx(937.5 * MB)
    assert ring.shortest_s(sent, 25e9) == pytest.approx(0.30)


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 2), (4, 2), (16, 2), (16, 4)])
def test_what_leaves_a_node_is_what_crosses_between_neighbours(ranks: int, nodes: int) -> None:
    """Counted on a ring of ranks that lie node by node: 2 (N - 1) rounds of one N-th each, one hop out of each node."""
    on = [rank * nodes // ranks for rank in range(ranks)]
    chunks = [0.0] * nodes
    for _ in range(2 * (ranks - 1)):
        for rank in range(ranks):
            if on[rank] != on[(rank + 1) % ranks]:
                chunks[on[rank]] += 1 / ranks
    assert [ring.link_bytes(100.0, ranks, nodes)] * nodes == pytest.approx([100 * chunk for chunk in chunks])


def test_nothing_leaves_a_node_that_is_alone() -> None:
    """One node has no link to others; one rank sends nothing at all."""
    assert ring.link_bytes(100.0, 8, 1) == 0
    assert ring.ring_bytes(100.0, 1) == 0


def test_a_rate_is_a_part_of_a_link() -> None:
    """11.4 MB/s is 91 % of 100 Mbit/s: bits are not bytes."""
    assert ring.link_share(11.4 * MB, 100e6) == pytest.approx(0.91, abs=0.005)


def test_the_rest_of_a_collectives_time_is_waiting() -> None:
    """23.35, 7.98, 3.41 and 2.79 ms on four ranks: the exchange took 2.79, the rank with 2.79 came last."""
    own, waits = ring.waits([23.35, 7.98, 3.41, 2.79])
    assert own == 2.79
    assert waits == pytest.approx((20.56, 5.19, 0.62, 0.0))


def test_no_time_is_no_bandwidth() -> None:
    """A duration of 0 gives None: no infinite rate, no error."""
    assert ring.algbw_bytes_per_s(4.0, 0.0) is None
    assert ring.busbw_bytes_per_s(4.0, 0.0, 2) is None
