"""Nodes that go and come back, or come at a bad moment: none is locked out, each is told what becomes of it."""

import threading
import time
from contextlib import contextmanager

import msgspec
import pytest

from bench import messages as m
from bench.errors import UsageError
from bench.nodes import Team
from bench.sameness import mine
from tests.followers import Puppet, hurry, leading, until


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    """Ways between nodes are taken as they are."""
    monkeypatch.setattr(Team, "_measured", lambda self: ())


@pytest.fixture
def hasty(monkeypatch):
    """Silence is over soon."""
    hurry(monkeypatch)


@contextmanager
def gathering(team):
    """What happens while the leader waits for its nodes; they are all there in the end."""
    failed = []

    def gather():
        try:
            team.gather([])
        except UsageError as error:
            failed.append(error)

    thread = threading.Thread(target=gather, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()
    assert failed == []


def come(said, node, times=1):
    """Whether a node has been taken in so many times."""
    return sum(text.startswith(f"node {node} is there") for text in said) == times


def test_a_node_stopped_while_others_are_awaited_comes_back():
    """Its last word is read at once: its line started again takes its place, and the study begins."""
    with leading(3, limit_s=10) as (team, said):
        with gathering(team):
            first = Puppet(team.wire, 1)
            until(lambda: come(said, 1))
            first.leave()
            back = Puppet(team.wire, 1)
            until(lambda: come(said, 1, 2))
            Puppet(team.wire, 2)
        assert said[1].startswith("lost: node 1 (n1): was stopped by a signal")
        assert back.kinds() == ["Welcome"]
        assert team.alive == (0, 1, 2)


def test_a_node_killed_while_others_are_awaited_comes_back(hasty):
    """Nothing is heard of its first process any more: the second waits until that one is given up, and takes its place."""
    with leading(3, limit_s=10) as (team, said):
        with gathering(team):
            first = Puppet(team.wire, 1)
            until(lambda: come(said, 1))
            first.alive = False
            first.thread.join()
            back = Puppet(team.wire, 1)
            until(lambda: come(said, 1, 2))
            Puppet(team.wire, 2)
        assert said[1].startswith("lost: node 1 (n1): no sign of life for 1 s")
        assert back.kinds() == ["Welcome"]


def test_a_node_killed_before_the_last_one_came_is_waited_for(hasty):
    """All were there, one by one: a study does not begin with one of whom nothing has been heard since."""
    with leading(3, limit_s=10) as (team, said):
        with gathering(team):
            first = Puppet(team.wire, 1)
            until(lambda: come(said, 1))
            first.alive = False
            first.thread.join()
            time.sleep(0.3)
            Puppet(team.wire, 2)
            until(lambda: come(said, 2))
            time.sleep(0.3)
            Puppet(team.wire, 1)
        assert [text.split(" (")[0].split(": n1")[0] for text in said[2:]] == [
            "lost: node 1",
            "node 1 is there",
        ]
        assert team.alive == (0, 1, 2)


def test_a_node_lost_while_others_are_awaited_is_missing_again():
    """It is named with its last word, beside the one that never came."""
    with leading(3, limit_s=1.0) as (team, said):
        first = Puppet(team.wire, 1)
        threading.Thread(target=lambda: (until(lambda: come(said, 1)), first.leave()), daemon=True).start()
        with pytest.raises(UsageError, match=r"^nodes 1, 2 have not come .*node 1 \(n1\): was stopped by"):
            team.gather([])


@pytest.mark.parametrize("way", ["left", "killed"])
def test_a_node_that_went_between_blocks_comes_back(hasty, way):
    """The next block finds who has gone before it looks at who has knocked."""
    with leading(2) as (team, said):
        first = Puppet(team.wire, 1)
        team.gather([])
        if way == "left":
            first.leave()
        else:
            first.alive = False
            first.thread.join()
        back = Puppet(team.wire, 1)
        team.admit()
        assert "Refused" not in back.kinds()
        assert come(said, 1, 2)
        team.block(1)
        until(lambda: "Block" in back.kinds())


def test_one_of_two_with_the_same_number_that_ends_makes_room(hasty):
    """The second asked while the first was frozen: the first that wakes up too late is told."""
    with leading(2) as (team, said):
        first = Puppet(team.wire, 1)
        team.gather([])
        first.frozen = True
        Puppet(team.wire, 1)
        team.admit()
        assert come(said, 1, 2)
        first.frozen = False
        until(lambda: "GivenUp" in first.kinds())


def test_a_lost_node_that_lives_is_told(hasty):
    """A frozen one reads on waking up that it was given up, and why; the leader waits for it to have read that."""
    with leading(2) as (team, _):
        frozen = Puppet(team.wire, 1)
        team.gather([])
        frozen.frozen = True
        until(lambda: team.seats.look() or team.alive == (0,))
        frozen.frozen = False
        until(lambda: frozen.wire.count("beat/1/1", 0) and not frozen.alive)
    assert frozen.heard[-1] == m.GivenUp(why="no sign of life for 1 s")


def test_a_node_that_knocks_when_the_study_ends_is_told():
    """Nobody has greeted it: it hears that the study is over, not that its leader is lost."""
    with leading(3) as (team, said):
        puppets = [Puppet(team.wire, node) for node in (1, 2)]
        team.gather([])
        puppets[0].leave()
        team.block(0)
        assert said[-1].startswith("lost: node 1")
        late = Puppet(team.wire, 1)
    assert late.heard == [m.End()]
    assert puppets[1].heard[-1] == m.End()


def test_a_node_that_knocks_when_the_study_cannot_begin_is_told_why():
    """The reason goes to those that were there and to the one that came last."""
    with pytest.raises(UsageError, match="no cells"), leading(3) as (team, _):
        late = Puppet(team.wire, 1)
        until(lambda: late.wire.there("up/1/1/0"))
        raise UsageError("no cells")
    assert late.heard == [m.End(why="the study does not start: no cells")]


def test_another_secret_is_what_is_to_be_changed():
    """Of a node whose secret is another one: not its address, and not the firewall."""
    with leading(2, limit_s=0.3) as (team, _):
        team.wire.count("/refused/1")
        with pytest.raises(UsageError) as caught:
            team.gather([])
    assert str(caught.value).startswith("node 1 has not come within 0 s; a process with another study secret")
    assert str(caught.value).endswith(": copy node 0's secret there, or set SCALEMARK_SECRET alike")


def test_of_several_missing_each_has_its_own_remedy(hasty):
    """One has another secret, one another version of the messages, of one nothing is known."""
    with leading(4, limit_s=0.5) as (team, _):
        team.wire.count("/refused/1")
        team.wire.count("seat/2")
        team.wire.put("up/2/1/0", b"\xc1")
        with pytest.raises(UsageError) as caught:
            team.gather([])
    text = str(caught.value)
    assert text.startswith(
        "nodes 1, 2, 3 have not come within 0 s; node 1: a process with another study secret"
    )
    assert "; node 2: a process was refused: another version of scalemark" in text
    assert "node 1: copy node 0's secret there" in text
    assert "node 2: install the same on every node" in text
    assert text.endswith(
        "node 3: start the line above there, and look at host name, address 10.0.0.1:29400 and firewall"
    )


def test_what_differs_is_asked_of_a_newcomer_only(hasty):
    """A second process of a number, of another version, does not stop the study while the first one lives."""
    with leading(3) as (team, said):
        with gathering(team):
            Puppet(team.wire, 1)
            until(lambda: come(said, 1))
            other = Puppet(team.wire, 1, versions=msgspec.structs.replace(mine(), torch="2.9.0"))
            until(lambda: other.heard)
            Puppet(team.wire, 2)
        assert other.kinds() == ["Refused"]
        assert "is there already" in other.heard[0].why
