"""A node that follows, and what it is told: real on both sides, but for the store, which is in memory, and ranks."""

import socket
import threading

import pytest

from bench import follower, leader
from bench.errors import UsageError
from bench.follower import Follower
from bench.leader import GivenUp
from bench.nodes import Team
from tests.followers import hurry, leading, member, until, wire
from tests.hosts import cpu_host


class Served:
    """A follower in a thread: what it has said, and how it ended."""

    def __init__(self, team, monkeypatch):
        monkeypatch.setattr(Follower, "_stand", lambda self: None)  # no engine: nothing is run
        self.said, self.error = [], None
        self.follower = Follower(wire(team.wire._store), member(1), cpu_host(), self.said.append)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        try:
            self.follower.serve()
        except Exception as error:
            self.error = error

    def ended(self):
        """Wait for it; how it ended: None where all was well."""
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.error


@pytest.fixture
def served(monkeypatch):
    """A follower of a team; nothing is late."""
    hurry(monkeypatch)
    monkeypatch.setattr(leader, "LOOK_S", 0.05)
    monkeypatch.setattr(follower, "LOOK_S", 0.05)
    return lambda team: Served(team, monkeypatch)


def test_a_follower_is_measured_until_the_study_begins(served):
    """Its port answers while nodes are gathered; the first block closes it."""
    with leading(2) as (team, _):
        one = served(team)
        team.gather([])
        assert team.pairs[0].error is None
        port = team.seats.by_node[1].port
        socket.create_connection(("127.0.0.1", port), 2).close()
        team.block(0)
        until(lambda: one.follower._responder is None)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 2)
    assert one.ended() is None


def test_a_follower_that_comes_during_a_block_says_that_it_waits(served):
    """At once, and then that it follows; one that is greeted at once says only that."""
    with leading(2) as (team, _):
        one = served(team)
        until(lambda: one.said)
        assert one.said == [
            "node 1 waits for the leader at 10.0.0.1:29400 to take it in: when the running block ends, or an earlier"
            " node 1 is given up"
        ]
        team.admit()
        until(lambda: len(one.said) == 2)
        assert one.said[1] == "node 1 follows 10.0.0.1:29400"
    assert one.ended() is None


def test_a_follower_that_nobody_greeted_hears_that_the_study_is_over(served):
    """It ends well, in one line."""
    with leading(2) as (team, _):
        one = served(team)
        until(lambda: one.follower._leader._sent)
    assert one.ended() is None
    assert one.said[-1] == "node 1: the study at 10.0.0.1:29400 is over; nothing was left to run here"


def test_a_follower_that_nobody_greeted_hears_why_the_study_does_not_start(served):
    """As those do that are there already."""
    with pytest.raises(UsageError), leading(2) as (team, _):
        one = served(team)
        until(lambda: one.follower._leader._sent)
        raise UsageError("no cells")
    assert str(one.ended()) == "node 1: the study does not start: no cells"


def test_a_follower_that_was_given_up_says_so(served, monkeypatch):
    """What its leader had against it, and how it comes back; exit code 1."""
    monkeypatch.setattr(Team, "_measured", lambda self: ())
    with leading(2) as (team, _):
        one = served(team)
        team.gather([])
        team.seats.lose(team.seats.by_node[1], "no sign of life for 10 s")
        error = one.ended()
    assert isinstance(error, GivenUp)
    assert error.exit_code == 1
    assert str(error) == (
        "node 1 was given up by the leader at 10.0.0.1:29400: no sign of life for 10 s; start it again to come back"
    )
