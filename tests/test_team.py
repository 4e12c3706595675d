"""The node that leads: whom it takes in, whom it waits for and loses, what it makes of their parts of a launch."""

import itertools
import time
from contextlib import contextmanager

import msgspec
import pytest

from bench import joint, netcheck, nodes
from bench import messages as m
from bench.case import Case
from bench.errors import UsageError
from bench.joint import Joint, dealt
from bench.launch import Progress
from bench.nodes import Team
from bench.records import Launch, Part
from bench.sameness import mine
from tests.followers import Puppet, StandInEngine, Store, good_part, member, wire
from tests.traces import trace


@contextmanager
def leading(count, limit_s=5.0, watch=lambda: None):
    """A Team of so many nodes in memory, and what it has said."""
    said = []
    with Team(wire(Store()), member(0), mine(), count, said.append, watch, limit_s) as team:
        yield team, said


@pytest.fixture
def unmeasured(monkeypatch):
    """Ways between nodes are taken as they are."""
    monkeypatch.setattr(Team, "_measured", lambda self: ())


@pytest.fixture
def hasty(monkeypatch):
    """Silence and grace are over soon."""
    for module in (nodes, joint):
        monkeypatch.setattr(module, "SILENT_S", 0.3)
    monkeypatch.setattr(nodes, "LOOK_S", 0.02)
    monkeypatch.setattr(joint, "GRACE_S", 0.1)
    monkeypatch.setattr(joint, "STOPPED_S", 0.5)


def launch(folder, count, ranks=1):
    """A launch on so many nodes."""
    case = Case(strategy="ddp", nodes=count, ranks=ranks, model="paced", data="device")
    return Launch(launch="now", case=case, scratch=str(folder), logs=str(folder), conductor_pid=1)


def run(team, folder, engine=None, count=None, ranks=1):
    """A launch on all nodes: its result, and the parts of the others."""
    asked = launch(folder, count or team.nodes, ranks)
    return team.run(engine or StandInEngine(), asked, ranks, lambda where: None)


# -- before the first cell


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
        with pytest.raises(UsageError, match=r"^node 1 \(n1\): torch 2\.9\.0, the leader has .*install the same"):
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
    assert str(caught.value).startswith("node 0 (n0) cannot reach node 1 (n1) at 127.0.0.1: 127.0.0.1 port 1: ")
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


# -- launches


def test_the_end_is_told_to_every_follower(unmeasured):
    """And they are waited for: the store ends with the leader."""
    with leading(3) as (team, _):
        puppets = [Puppet(team.wire, node) for node in (1, 2)]
        team.gather([])
    assert [puppet.kinds()[-1] for puppet in puppets] == ["End", "End"]


def test_parts_of_all_nodes_make_one_result(unmeasured, tmp_path):
    """Ranks by number over the nodes; the parts of the others come beside it."""
    with leading(3) as (team, _):
        puppets = [Puppet(team.wire, node) for node in (1, 2)]
        team.gather([])
        result, others = run(team, tmp_path, ranks=2)
    assert result.failure is None
    assert [(one.rank, one.node) for one in result.traces] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert [(part.node, part.host) for part in others] == [(1, "n1"), (2, "n2")]
    orders = [message.launch.node for puppet in puppets for message in puppet.heard if isinstance(message, m.Run)]
    assert orders == [1, 2]


def test_nodes_that_are_not_needed_wait(unmeasured, tmp_path):
    """A cell of two nodes in a study of three."""
    with leading(3) as (team, _):
        puppets = [Puppet(team.wire, node) for node in (1, 2)]
        team.gather([])
        _, others = run(team, tmp_path, count=2)
    assert [part.node for part in others] == [1]
    assert ["Run" in puppet.kinds() for puppet in puppets] == [True, False]


def test_an_answer_to_an_earlier_launch_is_not_taken_for_this_one(unmeasured, tmp_path):
    """A node that had been told to stop may be late with what it saw."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1)
        team.gather([])
        puppet.say(m.Done(launch="before", part=Part(node=1, lost="the engine died")))
        result, _ = run(team, tmp_path)
    assert result.failure is None


def test_a_silent_node_is_lost_and_the_others_go_on(unmeasured, hasty, tmp_path):
    """The launch ends as node_lost with the node's name; node 2 is told to stop, and takes the next one."""
    with leading(3) as (team, said):
        silent = Puppet(team.wire, 1, part=lambda launch: None)
        calls = itertools.count()
        other = Puppet(team.wire, 2, part=lambda launch: good_part(launch, 2) if next(calls) else None)
        team.gather([])
        silent.alive = False
        engine = StandInEngine(done=lambda: False)
        result, _ = run(team, tmp_path, engine)
        assert (result.failure.reason, result.failure.first_node) == ("node_lost", 1)
        assert result.failure.detail == "node 1 (n1): no sign of life for 0 s"
        assert engine.killed
        assert "Stop" in other.kinds()
        assert team.alive == (0, 2)
        assert said[-1].startswith("lost: node 1 (n1)")
        result, others = run(team, tmp_path, count=2)
        assert result.failure is None
        assert [part.node for part in others] == [2]
        assert [one.node for one in result.traces] == [0, 2]


def test_a_node_that_leaves_says_why(unmeasured, hasty, tmp_path):
    """Its last word stands in the record."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, part=lambda launch: None)
        team.gather([])
        puppet.say(m.Left(why="was stopped by a signal"))
        result, _ = run(team, tmp_path, StandInEngine(done=lambda: False))
        assert result.failure.detail == "node 1 (n1): was stopped by a signal"
        assert team.alive == (0,)


def test_a_lost_node_that_comes_back_is_taken_in(unmeasured, hasty):
    """At the next block, by the same line; its first seat stays empty."""
    with leading(2) as (team, said):
        Puppet(team.wire, 1).alive = False
        time.sleep(0.05)
        back = Puppet(team.wire, 1)
        team.gather([])
        assert (team.alive, back.seat) == ((0, 1), 2)
        back.alive = False
        while team.alive != (0,):  # its last beat may still be unread
            time.sleep(0.02)
            team.look()
        Puppet(team.wire, 1)
        team.admit()
        assert team.alive == (0, 1)
        assert said[-1].startswith("node 1 is there")


def test_a_failure_elsewhere_ends_the_launch_after_its_grace(unmeasured, hasty, tmp_path):
    """Rank 1 on node 1 failed: this node's ranks, and node 2's, which would wait for ever, are ended."""

    def failed(asked):
        error = {"error_type": "ValueError", "error": "no such width", "failed_ns": 5}
        broken = trace(1, local_rank=0, node=1, status="failed", **error)
        return Part(node=1, host="n1", traces=(broken,))

    with leading(3) as (team, _):
        Puppet(team.wire, 1, part=failed)
        other = Puppet(team.wire, 2, part=lambda launch: None)
        team.gather([])
        engine = StandInEngine(done=lambda: False)
        result, _ = run(team, tmp_path, engine)
    assert engine.killed
    assert "Stop" in other.kinds()
    assert (result.failure.reason, result.failure.first_rank) == ("exception", 1)
    assert "no such width" in result.failure.detail


def test_the_clock_of_a_node_is_read_at_each_block(unmeasured):
    """Its monotonic clock is an hour ahead: its time stamps are moved by that."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, ahead_s=3600.0)
        team.gather([])
        team.block(0)
        (seat,) = team._seats.values()
        assert abs(seat.ahead_ns / 1e9 - 3600.0) < 1
        assert puppet.kinds()[:3] == ["Welcome", "Block", "Ping"]


def test_progress_is_that_of_the_slowest_node(unmeasured, tmp_path):
    """With its name, unless it is this one."""
    shown = []
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, part=lambda launch: None)
        team.gather([])
        running = Joint(team, launch(tmp_path, 2), list(team._seats.values()), shown.append)
        for step in (3, 9):
            puppet.wire.put("where/1/1", m.encode(m.Where(state="window", step=step, steps=20)))
            running._shown_s = 0.0
            running.show(Progress(state="window", step=7, steps=20))
    assert [(where.state, where.step) for where in shown] == [("window on node 1", 3), ("window", 7)]


def test_devices_of_one_box_are_dealt_to_its_nodes():
    """In order, and again from the first where there are too few; on real nodes each has its own."""
    two = Launch(
        launch="x", case=Case(strategy="ddp", nodes=2, ranks=2), scratch="", logs="", conductor_pid=1, devices=(4, 5, 6)
    )  # fmt: skip
    assert [dealt(two, place, box=True).devices for place in (0, 1)] == [(4, 5), (6, 4)]
    assert [dealt(two, place, box=False).devices for place in (0, 1)] == [(4, 5, 6), (4, 5, 6)]
    assert dealt(msgspec.structs.replace(two, devices=None), 1, box=True).devices is None


def test_the_line_for_another_node_is_this_command():
    """Its words, the number of nodes, its own rank, and where node 0 is."""
    assert nodes.line(["run", "mine.toml"], 2, 4, "10.0.0.1:29400") == [
        *("scalemark", "run", "mine.toml", "--nodes", "4", "--node-rank", "2", "--lead", "10.0.0.1:29400")
    ]


