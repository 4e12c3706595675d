"""A launch on several nodes: what is made of their parts, who is lost on the way, whose clock counts."""

import itertools
import time

import msgspec
import pytest

from bench import messages as m
from bench import seats
from bench.case import Case
from bench.joint import Joint, dealt, ordinals
from bench.launch import Progress
from bench.nodes import Team
from bench.records import Launch, Outcome, Part
from tests.followers import Puppet, StandInEngine, good_part, hurry, leading
from tests.hosts import cpu_host, gpu_host
from tests.traces import trace


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    """Ways between nodes are taken as they are."""
    monkeypatch.setattr(Team, "_measured", lambda self: ())


@pytest.fixture
def hasty(monkeypatch):
    """Silence and grace are over soon."""
    hurry(monkeypatch)


def launch(folder, count, ranks=1):
    """A launch on so many nodes."""
    case = Case(strategy="ddp", nodes=count, ranks=ranks, model="paced", data="device")
    return Launch(launch="now", case=case, scratch=str(folder), logs=str(folder), conductor_pid=1)


def run(team, folder, engine=None, count=None, ranks=1):
    """A launch on all nodes: its result, and the parts of the others."""
    asked = launch(folder, count or team.nodes, ranks)
    return team.run(engine or StandInEngine(), asked, ranks, lambda where: None)


def test_parts_of_all_nodes_make_one_result(tmp_path):
    """Ranks by number over the nodes; the parts of the others come beside it."""
    with leading(3) as (team, _):
        puppets = [Puppet(team.wire, node) for node in (1, 2)]
        team.gather([])
        result, others = run(team, tmp_path, ranks=2)
    assert result.failure is None
    assert [(one.rank, one.node) for one in result.traces] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert [(part.node, part.host) for part in others] == [(1, "n1"), (2, "n2")]
    orders = [
        message.launch.node for puppet in puppets for message in puppet.heard if isinstance(message, m.Run)
    ]
    assert orders == [1, 2]


def test_nodes_that_are_not_needed_wait(tmp_path):
    """A cell of two nodes in a study of three."""
    with leading(3) as (team, _):
        puppets = [Puppet(team.wire, node) for node in (1, 2)]
        team.gather([])
        _, others = run(team, tmp_path, count=2)
    assert [part.node for part in others] == [1]
    assert ["Run" in puppet.kinds() for puppet in puppets] == [True, False]


def test_an_answer_to_an_earlier_launch_is_not_taken_for_this_one(tmp_path):
    """A node that had been told to stop may be late with what it saw."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1)
        team.gather([])
        puppet.say(m.Done(launch="before", part=Part(node=1, lost="the engine died")))
        result, _ = run(team, tmp_path)
    assert result.failure is None


def test_a_silent_node_is_lost_and_the_others_go_on(hasty, tmp_path):
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
        assert result.failure.detail == "node 1 (n1): no sign of life for 1 s"
        assert engine.killed
        assert "Stop" in other.kinds()
        assert team.alive == (0, 2)
        assert said[-1].startswith("lost: node 1 (n1)")
        result, others = run(team, tmp_path, count=2)
        assert result.failure is None
        assert [part.node for part in others] == [2]
        assert [one.node for one in result.traces] == [0, 2]


class CutOffEngine(StandInEngine):
    """Its ranks end at once, and leave nothing: a connection to another node was closed."""

    def ask(self, launch, tick):
        """No trace."""
        return Outcome(launch=launch.launch)


def test_a_node_that_dies_costs_one_launch(hasty, tmp_path):
    """The others' ranks fail at once of a closed connection; the dead node is found before the next launch."""
    with leading(2) as (team, _):
        dead = Puppet(team.wire, 1, part=lambda launch: None)
        team.gather([])
        dead.alive = False
        result, _ = run(team, tmp_path, CutOffEngine())
        assert (result.failure.reason, result.failure.first_node) == ("node_lost", 1)
        assert result.failure.detail == "node 1 (n1): no sign of life for 1 s"
        assert team.alive == (0,)


def test_a_node_that_lives_and_does_not_answer_is_given_up(hasty, tmp_path):
    """It was told to stop, and says nothing though it beats: it takes no further launch."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, part=lambda launch: None)
        puppet.stop = False
        team.gather([])
        result, _ = run(team, tmp_path, CutOffEngine())
        assert result.failure.detail == "node 1 (n1): no answer to the launch"
        assert team.alive == (0,)


def test_a_launch_waits_for_engines_that_the_last_one_cost(tmp_path):
    """A node whose engine was killed is asked whether it stands before its next launch begins, and only then."""
    lost = itertools.chain([Part(node=1, host="n1", lost="the engine died")], itertools.repeat(None))
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, part=lambda launch: next(lost) or good_part(launch, 1))
        team.gather([])
        for _ in range(3):
            run(team, tmp_path)
    launches = "".join(kind[0] for kind in puppet.kinds() if kind in ("Run", "Ping"))
    assert launches == "R" + "P" * seats.PINGS + "RR"


def test_a_node_that_leaves_says_why(hasty, tmp_path):
    """Its last word stands in the record."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, part=lambda launch: None)
        team.gather([])
        puppet.say(m.Left(why="was stopped by a signal"))
        result, _ = run(team, tmp_path, StandInEngine(done=lambda: False))
        assert result.failure.detail == "node 1 (n1): was stopped by a signal"
        assert team.alive == (0,)


def test_a_lost_node_that_comes_back_is_taken_in(hasty):
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
            team.seats.look()
        Puppet(team.wire, 1)
        team.admit()
        assert team.alive == (0, 1)
        assert said[-1].startswith("node 1 is there")


def test_a_failure_elsewhere_ends_the_launch_after_its_grace(hasty, tmp_path):
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


def test_the_clock_of_a_node_is_read_at_each_block():
    """Its monotonic clock is an hour ahead: its time stamps are moved by that."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, ahead_s=3600.0)
        team.gather([])
        team.block(0)
        team.clocks()
        (seat,) = team.seats.by_node.values()
        assert abs(seat.ahead_ns / 1e9 - 3600.0) < 1
        assert puppet.kinds()[:3] == ["Welcome", "Block", "Ping"]


def test_progress_is_that_of_the_slowest_node(tmp_path):
    """With its name, unless it is this one."""
    shown = []
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, part=lambda launch: None)
        team.gather([])
        running = Joint(team.seats, launch(tmp_path, 2), list(team.seats.by_node.values()), shown.append)
        for step in (3, 9):
            puppet.wire.put("where/1/1", m.encode(m.Where(state="window", step=step, steps=20)))
            running._shown_s = 0.0
            running.show(Progress(state="window", step=7, steps=20))
    assert [(where.state, where.step) for where in shown] == [("window on node 1", 3), ("window", 7)]


@pytest.mark.parametrize("words", [b"x" * 50, b"", bytes(32) + b"\0\0\0\2" + b"y"])
def test_progress_that_nobody_signed_is_not_shown(tmp_path, words):
    """Whoever reaches the port can write there: it costs no node and no launch."""
    shown = []
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1, part=lambda launch: None)
        team.gather([])
        running = Joint(team.seats, launch(tmp_path, 2), list(team.seats.by_node.values()), shown.append)
        puppet.wire._store.set(f"scalemark/{team.wire.session}/where/1/1", words)
        running.show(Progress(state="window", step=7, steps=20))
        assert team.alive == (0, 1)
    assert [(where.state, where.step) for where in shown] == [("window", 7)]


def test_a_node_that_leaves_while_its_clock_is_read_is_lost():
    """Its last word counts there as anywhere."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1)
        team.gather([])
        team.block(0)
        puppet.leave()
        team.clocks()
        assert team.alive == (0,)
        assert team.seats.lost(1) == "node 1 (n1): was stopped by a signal"


def test_a_node_whose_clock_nobody_signed_is_lost():
    """The block goes on without it; no error reaches the study."""
    with leading(2) as (team, _):
        puppet = Puppet(team.wire, 1)
        team.gather([])
        puppet.frozen = True
        key = f"scalemark/{team.wire.session}/up/1/1/{puppet._sent}"
        puppet.wire._store.set(key, b"whoever")
        team.clocks()
        assert team.alive == (0,)
        assert "not signed with this study's secret" in team.seats.lost(1)
        puppet.frozen = False  # it hears of it


def test_devices_of_one_box_are_dealt_to_its_nodes():
    """In order, and again from the first where there are too few; on real nodes each has its own."""
    two = Launch(
        launch="x", case=Case(strategy="ddp", nodes=2, ranks=2), scratch="", logs="", conductor_pid=1, devices=(4, 5, 6)
    )  # fmt: skip
    assert [dealt(two, place, box=True).devices for place in (0, 1)] == [(4, 5), (6, 4)]
    assert [dealt(two, place, box=False).devices for place in (0, 1)] == [(4, 5, 6), (4, 5, 6)]
    assert dealt(msgspec.structs.replace(two, devices=None), 1, box=True).devices is None


def test_all_devices_are_named_for_the_nodes_of_one_box():
    """Where none is chosen, the nodes of one box are given names to be dealt; nobody else is."""
    host, bare = gpu_host(2), cpu_host()
    two, one = Case(strategy="ddp", nodes=2, ranks=1), Case(strategy="ddp", ranks=2)
    assert ordinals(None, two, host, box=True) == (0, 1)
    assert ordinals((1,), two, host, box=True) == (1,)
    assert [ordinals(None, two, host, box=False), ordinals(None, one, host, box=True)] == [None, None]
    assert ordinals(None, two, bare, box=True) is None
