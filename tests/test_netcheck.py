"""What two nodes measure between them, and who meets whom."""

import socket
import threading
from collections import Counter

import pytest

from bench import netcheck
from bench.netcheck import Responder, measure, rounds

TOKEN = b"a token"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_responder_is_measured(address):
    """Latency, bandwidth, and no difference between the clocks of one host beyond the round trip."""
    try:
        responder = Responder(address, TOKEN)
    except OSError:
        pytest.skip(f"this host has no {address}")
    with responder:
        found = measure(address, responder.port, TOKEN, limit_s=0.02)
    assert 0 < found.latency_s < netcheck.TIMEOUT_S
    assert found.bits_per_s > 1e6
    assert abs(found.clock_ahead_s) <= found.latency_s + 1e-3  # time.time() itself is not monotonic


def test_the_clock_is_the_other_one_less_ours(monkeypatch):
    """A responder whose clock is 5 s ahead is found so."""
    ours = threading.get_ident()
    real = netcheck.time.time
    monkeypatch.setattr(netcheck.time, "time", lambda: real() + 5 * (threading.get_ident() != ours))
    with Responder("127.0.0.1", TOKEN) as responder:
        found = measure("127.0.0.1", responder.port, TOKEN, limit_s=0)
    assert found.clock_ahead_s == pytest.approx(5, abs=0.1)


def test_bytes_that_wait_in_buffers_do_not_count():
    """The rate is that of arrival: small parts at a known pace, behind two lumps of what was saved up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pause = threading.Event()

        def send():
            for lump in (100_000, 100_000, *[0] * 2):  # the ramp: 40 ms of lumps, 40 ms of nothing
                theirs.sendall(bytes(lump))
                pause.wait(0.02)
            for _ in range(10):
                pause.wait(0.02)
                theirs.sendall(bytes(5_000))
            theirs.close()

        threading.Thread(target=send, daemon=True).start()
        bits_per_s = netcheck._rate(ours, limit_s=10)
    assert 0.3 < bits_per_s / (5_000 * 8 / 0.02) < 1.1


def test_a_stream_that_ends_within_its_ramp_has_no_rate():
    """None, not a rate of a few bytes."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(b"few")
        theirs.close()
        assert netcheck._rate(ours, limit_s=1) is None


def test_another_token_is_hung_up_on():
    """Neither time nor bytes are given to whoever lacks the token, and the error says so; others are still served."""
    with Responder("127.0.0.1", TOKEN) as responder:
        with pytest.raises(OSError, match=r"^127\.0\.0\.1 port \d+: hung up: the token is another one"):
            measure("127.0.0.1", responder.port, b"another token")
        assert measure("127.0.0.1", responder.port, TOKEN, limit_s=0).latency_s > 0


def test_a_responder_that_is_closed_refuses():
    """Its port is free again, and its thread has ended."""
    with Responder("127.0.0.1", TOKEN) as responder:
        (listening,) = (t for t in threading.enumerate() if t.name == f"responder:{responder.port}")
    with pytest.raises(OSError, match=r"port \d+: connection refused"):
        measure("127.0.0.1", responder.port, TOKEN)
    listening.join(5)
    assert not listening.is_alive()


def test_one_that_does_not_answer_is_given_up(monkeypatch):
    """A port that accepts and stays silent costs the time limit, and is named."""
    monkeypatch.setattr(netcheck, "TIMEOUT_S", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(OSError, match=r"no answer within 0\.1 s"),
    ):
        measure("127.0.0.1", silent.getsockname()[1], TOKEN)


@pytest.mark.parametrize("nodes", range(2, 10))
def test_every_pair_meets_once(nodes):
    """In as few rounds as there can be, each node in one pair a round."""
    made = rounds(nodes)
    pairs = [pair for made_in in made for pair in made_in]
    assert sorted(pairs) == [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]
    assert len(made) == nodes - 1 + nodes % 2
    assert all(Counter(sum(pairs, ())).most_common(1)[0][1] == 1 for pairs in made)


@pytest.mark.parametrize("nodes", [33, 64, 100])
def test_many_nodes_meet_those_a_power_of_two_away(nodes):
    """Neighbours of rings and trees, each pair once, in rounds that grow with the logarithm."""
    made = rounds(nodes)
    pairs = [pair for made_in in made for pair in made_in]
    strides = [2**power for power in range(7) if 2**power <= nodes / 2]
    wanted = {tuple(sorted((node, (node + stride) % nodes))) for node in range(nodes) for stride in strides}
    assert sorted(pairs) == sorted(wanted)
    assert all(Counter(sum(pairs, ())).most_common(1)[0][1] == 1 for pairs in made)
    assert len(made) <= 4 * len(strides)


def test_one_node_has_no_one_to_meet():
    """No rounds for one node."""
    assert rounds(1) in ([], [[]])
