"""The node that leads, before the first cell: whom it takes in, whom it refuses, whom it waits for in vain."""

import msgspec
import pytest

from bench import messages as m
from bench import netcheck
from bench.case import Case
from bench.errors import UsageError
from bench.nodes import Team
from bench.sameness import mine
from tests.followers import Puppet, Store, leading, member, wire


@pytest.fixture
def unmeasured(monkeypatch):
    """Ways between nodes are taken as they are."""
    monkeypatch.setattr(Team, "_measured", lambda self: ())


def test_nodes_come_in_any_order(unmeasured):
    """Each is told of; the study has them by number."""
    with leading(4) as (team, said):
        for node in (3, 1, 2):
            Puppet(team.wire, node)
        team.gather([])
        assert [one.hostname for one in team.members] == ["n0", "n1", "n2", "n3"]
        assert team.alive == (0, 1, 2, 3)
        assert sorted(said) == [f"node {n} is there: n{n} at 127.0.0.1 on lo" for n in (1, 2, 3)]


def test_a_node_that_does_not_come_is_named():
    """Within its time limit, with the address that it should have reached."""
    with leading(4, limit_s=0.6) as (team, _):
        Puppet(team.wire, 2)
        with pytest.raises(UsageError, match=r"^nodes 1, 3 have not come within 1 s: .*10\.0\.0\.1:29400"):
            team.gather([])


def test_what_is_known_of_a_missing_node_is_said():
    """A process that has another secret came in its place: the name of the node, and why."""
    with leading(2, limit_s=0.3) as (team, said):
        Puppet(team.wire, 1, secret=b"another secret")
        with pytest.raises(UsageError, match=r"^node 1 has not come within 0 s; a process was refused: "):
            team.gather([])
        assert "not signed with this study's secret" in said[0]


def test_a_follower_that_sees_the_other_secret_first_is_told_of():
    """It cannot read the leader's first word, and takes no seat."""
    with leading(2, limit_s=0.3) as (team, said):
        team.wire.count("/refused/1")
        with pytest.raises(UsageError, match="node 1 has not come"):
            team.gather([])
        assert said == ["node 1: a process with another study secret was refused"]


def test_waiting_ends_when_a_node_cannot_come_any_more():
    """On one box the leader has started it, and knows that it has ended."""

    def ended():
        raise UsageError("node 1 on this machine ended: no torch")

    with leading(2, limit_s=60, watch=ended) as (team, _), pytest.raises(UsageError, match="ended: no torch"):
        team.gather([])


def test_a_node_that_differs_is_refused_by_name():
    """Before anything is measured; it is told why, and the others that the study does not start."""
    with leading(3) as (team, _):
        old = msgspec.structs.replace(mine(), torch="2.9.0")
        first = Puppet(team.wire, 1, versions=old)
        with pytest.raises(
            UsageError, match=r"^node 1 \(n1\): torch 2\.9\.0, the leader has .*install the same"
        ):
            team.gather([])
        first.thread.join(2)
        assert first.kinds() == ["Refused"]
        assert first.heard[0].why.startswith("torch 2.9.0, the leader has ")


def test_a_model_of_another_version_is_refused_once_it_is_known(unmeasured, tmp_path, monkeypatch):
    """A follower learns from the Welcome which files of the user's count, and tells what it has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_model.py").write_text("width = 8\n")
    cases = [Case(model="their_model:build")]
    ours = mine(cases)
    with Team(wire(Store()), member(0), ours, 2, lambda text: None) as team:
        theirs = msgspec.structs.replace(ours, code={"their_model:build": "0123456789"})
        Puppet(team.wire, 1, versions=theirs)
        with pytest.raises(UsageError, match=r"other code of their_model:build \(0123456789\)"):
            team.gather(cases)


def test_a_node_that_comes_twice_is_refused_and_the_first_stays(unmeasured):
    """It says which host has the number already; the first one's launches go on."""
    with leading(2) as (team, said):
        first = Puppet(team.wire, 1)
        team.gather([])
        second = Puppet(team.wire, 1)
        team.admit()
        second.thread.join(2)
        assert second.heard == [
            m.Refused(why="node 1 is there already: n1; give each node a --node-rank of its own")
        ]
        assert said[-1] == "node 1 came twice: n1 was refused, n1 stays"
        assert first.alive
        assert team.alive == (0, 1)


def test_nodes_that_do_not_reach_each_other_are_named():
    """Nobody answers at the port that node 1 named: who, where, and what to look at."""
    with leading(2) as (team, _):
        Puppet(team.wire, 1, port=1)
        with pytest.raises(UsageError) as caught:
            team.gather([])
    assert str(caught.value).startswith(
        "node 0 (n0) cannot reach node 1 (n1) at 127.0.0.1: 127.0.0.1 port 1: "
    )
    assert "routes and firewalls" in str(caught.value)
    assert "--interface" in str(caught.value)


def test_pairs_are_kept_with_the_study(monkeypatch):
    """What was measured goes into its header; the other's wall clock stays with its node."""
    monkeypatch.setattr(netcheck, "RAMP_S", 0.001)
    with netcheck.Responder("127.0.0.1", b"t") as responder, leading(2) as (team, _):
        Puppet(team.wire, 1, port=responder.port)
        team.gather([])
        (pair,) = team.pairs
        assert (pair.first, pair.second, pair.error) == (0, 1, None)
        assert pair.bits_per_s > 0
        assert abs(team.members[1].clock_ahead_s) < 1


def test_the_end_is_told_to_every_follower(unmeasured):
    """And they are waited for: the store ends with the leader."""
    with leading(3) as (team, _):
        puppets = [Puppet(team.wire, node) for node in (1, 2)]
        team.gather([])
    assert [puppet.kinds()[-1] for puppet in puppets] == ["End", "End"]
