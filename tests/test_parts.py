"""Parts of a launch from several nodes: one table of telemetry, the study's numbers of nodes, one clock."""

import pytest

from bench.failures import Verdict
from bench.launch import Result
from bench.parts import merged, part_ok, with_nodes
from bench.records import Ended, Member, Outcome, Part
from bench.seat import Seat, shifted
from tests.traces import trace


def part(node, *subjects, reasons=None):
    """A node's telemetry: one reading of each subject, at its own place in the launch."""
    rows = {
        "time_s": [10.0 * node + i for i in range(len(subjects))],
        "node": [0] * len(subjects),
        "subject": list(subjects),
        "measure": ["cpu"] * len(subjects),
        "value": [float(node)] * len(subjects),
    }
    return Part(node=node, readings=rows, reasons=reasons or {})


def test_telemetry_of_all_nodes_is_one_table():
    """Node 0 keeps its names, ranks have their own; all else is named by its node."""
    rows, _ = merged([part(0, "node", "eth0", "rank 0"), part(2, "node", "eth0", "gpu 1", "rank 5")])
    assert rows["subject"] == ["node", "eth0", "rank 0", "node 2", "node 2 eth0", "node 2 gpu 1", "rank 5"]
    assert rows["node"] == [0, 0, 0, 2, 2, 2, 2]
    assert rows["value"] == [0.0] * 3 + [2.0] * 4
    assert len({len(column) for column in rows.values()}) == 1


def test_reasons_are_named_alike():
    """Why something is null on one node is not said of another; a reason for all of a subject has no slash."""
    _, reasons = merged(
        [
            part(0, reasons={"node/energy": "no meter", "sampler": "ended early"}),
            part(1, reasons={"node/energy": "not root", "gpu 0/power": "no driver", "rank 3/rss": "gone"}),
        ]
    )
    assert reasons == {
        "node/energy": "no meter",
        "sampler": "ended early",
        "node 1/energy": "not root",
        "node 1 gpu 0/power": "no driver",
        "rank 3/rss": "gone",
    }


def test_a_node_without_telemetry_changes_nothing():
    """One that was lost left none."""
    rows, reasons = merged([part(0, "node"), Part(node=1)])
    assert rows["subject"] == ["node"]
    assert reasons == {}


def result(failure=None):
    """A launch on two places of two ranks."""
    traces = tuple(trace(rank, node=rank // 2) for rank in range(4))
    return Result(traces=traces, failure=failure, timed_out=False, wall_s=1.0)


def test_places_of_a_launch_become_nodes_of_the_study():
    """Node 1 was lost: the launch's second place is node 2."""
    found = with_nodes(result(), (0, 2), 2)
    assert [one.node for one in found.traces] == [0, 0, 2, 2]
    assert found.failure is None


@pytest.mark.parametrize(
    ("first_rank", "first_node", "named"),
    [(3, None, 5), (1, None, 0), (None, 1, 5), (None, None, None), (1, 1, 5)],
)
def test_a_failure_names_the_node_of_its_rank(first_rank, first_node, named):
    """The node that was lost; else that of the rank that failed first; else nobody."""
    verdict = Verdict(reason="signal", first_rank=first_rank, first_node=first_node, detail="x")
    found = with_nodes(result(verdict), (0, 5), 2).failure
    assert (found.first_node, found.first_rank) == (named, first_rank)


@pytest.mark.parametrize(
    ("changes", "ok"),
    [
        ({}, True),
        ({"lost": "the engine died"}, False),
        ({"stopped": True}, False),
        ({"outcome": Outcome(error="no port")}, False),
        ({"traces": ()}, False),
        ({"traces": (trace(0), trace(1, status="failed"))}, False),
    ],
)
def test_a_part_is_good_when_all_of_it_is(changes, ok):
    """Engine, agent and every rank."""
    assert part_ok(Part(**{"traces": (trace(0), trace(1))} | changes)) is ok


def test_times_of_another_node_go_by_the_clock_of_the_one_that_leads():
    """A follower that was started 100 s later: its monotonic clock is 100 s behind; what it did not stamp stays null."""
    seat = Seat(None, 1, 1)
    seat.ahead_ns = -100 * 10**9
    there = Part(
        node=1,
        traces=(trace(0, window_start_ns=5 * 10**9, window_end_ns=6 * 10**9), trace(1, failed_ns=7 * 10**9)),
        outcome=Outcome(
            ranks=(
                Ended(local_rank=0, pid=1, exitcode=0, died_ns=8 * 10**9),
                Ended(local_rank=1, pid=2, exitcode=1, died_ns=None),
            )
        ),
        readings=part(0, "node", "eth0").readings,
    )
    here = shifted(there, seat)
    assert [(one.window_start_ns, one.window_end_ns, one.failed_ns) for one in here.traces] == [
        (105 * 10**9, 106 * 10**9, None),
        (None, None, 107 * 10**9),
    ]
    assert [end.died_ns for end in here.outcome.ranks] == [108 * 10**9, None]
    assert here.readings["time_s"] == [100.0, 101.0]
    assert there.readings["time_s"] == [0.0, 1.0]


def test_a_wall_clock_that_is_off_is_kept_with_its_node():
    """It moves no time stamp: it is told."""
    seat = Seat(None, 1, 1)
    seat.member = Member(node=1, hostname="n1")
    seat.set_clock(0.25)
    assert seat.member.clock_ahead_s == 0.25
    assert seat.ahead_ns == 0
