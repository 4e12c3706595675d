"""Several nodes by hand on this machine: who is taken in, who is refused, what is left when one of them fails."""

import signal

import pytest

from tests.e2e.command import kill, ours, ranks, wait_for
from tests.e2e.nodes import FAULTY, Nodes

pytestmark = pytest.mark.e2e

TWO = FAULTY + "steps = 10\n[matrix]\nnodes = [2]\n"


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Nodes with a suite, in a folder of their own."""
    made = []

    def nodes(suite, count=2):
        made.append(Nodes(tmp_path_factory.mktemp("nodes")))
        made[-1].write(suite, count)
        return made[-1]

    yield nodes
    for one in made:
        one.close()


def left(nodes, *numbers):
    """What runs in the folders of these nodes."""
    return [process for node in numbers for process in ours(nodes.place(node))]


@pytest.mark.cluster_long
def test_two_nodes_train_together_whoever_starts_first(make):
    """The follower started first waits; both end with 0; ranks ran where asked; only node 0 has results and all logs."""
    nodes = make(FAULTY + "steps = 600\n[matrix]\nnodes = [1, 2]\n")
    follower = nodes.start(1)
    wait_for(lambda: "waiting for node 0" in nodes.out(1))
    leader = nodes.start(0)
    assert leader.wait(timeout=120) == 0, nodes.out(0)
    assert follower.wait(timeout=20) == 0, nodes.out(1)
    assert f"on node 1: scalemark run mine.toml --nodes 2 --node-rank 1 --lead {nodes.lead}" in nodes.out(0)
    both = {record.requested.nodes: record for record in nodes.records()}
    assert {count: record.status for count, record in both.items()} == {1: "ok", 2: "ok"}
    assert [(rank.rank, rank.node) for rank in both[2].ranks] == [(0, 0), (1, 1)]
    assert {rank.effective.world_size for rank in both[2].ranks} == {2}
    assert not both[2].mismatches
    assert all(rank.network.exchanges for rank in both[2].ranks)
    assert "rank 1/cpu_percent" in both[2].telemetry
    assert "node 1/cpu_percent" in both[2].telemetry
    logs = nodes.place(0) / "results/s/logs" / both[2].launch
    assert sorted(path.name for path in logs.iterdir()) == ["0.log", "1.log"]
    assert not (nodes.place(1) / "results").exists()
    assert left(nodes, 0, 1) == []


@pytest.mark.cluster_long
def test_nodes_that_do_not_come_or_have_another_secret_are_named(make):
    """After --node-wait the leader says who is missing, and who was refused; the refused one says why."""
    nodes = make(TWO, count=3)
    leader = nodes.start(0, "--node-wait", "8s", count=3)
    follower = nodes.start(1, count=3, env={"SCALEMARK_SECRET": "another secret"})
    assert follower.wait(timeout=60) == 2
    assert "has another secret than this node" in nodes.out(1)
    assert leader.wait(timeout=60) == 2
    assert "nodes 1, 2 have not come within 8 s; node 1: a process with another study secret" in nodes.out(0)
    assert "node 1: copy node 0's secret there, or set SCALEMARK_SECRET alike; node 2: start " in nodes.out(0)
    assert "Traceback" not in nodes.out(0) + nodes.out(1)


def test_other_code_of_the_model_is_refused_by_name(make):
    """A node whose copy of the user's model differs stops the study before anything is measured; both say so."""
    nodes = make(TWO)
    with (nodes.place(1) / "faulty.py").open("a") as file:
        file.write("\n# edited here only\n")
    leader, follower = nodes.start_all()
    assert (leader.wait(timeout=60), follower.wait(timeout=60)) == (2, 2)
    for node in (0, 1):
        assert "other code of faulty:build" in nodes.out(node)
    assert not (nodes.place(0) / "results/s/launches.jsonl").exists()


@pytest.fixture(scope="module")
def faults(make):
    """Exit codes and records of a study in which one thing goes wrong on node 1 in every launch but one."""
    levels = '"model_args.fault" = ["none", "raise", "kill", "hang", "patient"]\n'
    nodes = make(TWO.replace("steps", "timeout_s = 8.0\nsteps") + levels)
    leader, follower = nodes.start_all()
    nodes.stepping(1)
    kill(ranks(nodes.place(1))[1].parent().parent())  # the engine
    codes = leader.wait(timeout=150), follower.wait(timeout=20)
    return nodes, codes, {record.requested.model_args["fault"]: record for record in nodes.records()}


@pytest.mark.parametrize(
    ("fault", "reason", "rank"),
    [("raise", "exception", 1), ("kill", "signal", 1), ("hang", "hang", 1), ("patient", "engine_lost", None)],
)
def test_what_fails_on_another_node_is_named(faults, fault, reason, rank):
    """The record has class, rank and node of the rank that failed first, or of the engine that was killed."""
    record = faults[2][fault]
    assert (record.reason, record.first_rank, record.first_node) == (reason, rank, 1), record.detail


def test_a_failed_launch_stops_no_other(faults):
    """The healthy cell has its numbers, the follower stays to the end, and nothing is left."""
    nodes, codes, records = faults
    assert codes == (1, 0), nodes.out(0) + nodes.out(1)
    assert records["none"].status == "ok"
    assert left(nodes, 0, 1) == []


LOST = """
steps = 10
[case.model_args]
fault = "patient"
[matrix]
nodes = [1, 2]
batch = [4, 5, 6]
[[exclude]]
nodes = 1
batch = 5
[[exclude]]
nodes = 1
batch = 6
"""


@pytest.fixture(scope="module")
def lost(make):
    """A study with three followers that are lost one after the other, each in a launch; then they are continued."""
    nodes = make(FAULTY + LOST, count=4)
    leader, first = nodes.start(0, count=4), nodes.start(1, count=4)
    wait_for(lambda: "node 1 is there" in nodes.out(0))
    twice = nodes.start(1, count=4, out="twice")
    second, third = nodes.start(2, count=4), nodes.start(3, count=4)
    nodes.stepping(1)
    kill(first)
    nodes.stepping(2)
    kill(second, signal.SIGTERM)
    nodes.stepping(3)
    frozen = [third, ranks(nodes.place(3))[1]]
    for process in frozen:
        kill(process, signal.SIGSTOP)
    code = leader.wait(timeout=60)
    for process in frozen:
        kill(process, signal.SIGCONT)
    return nodes, code, [process.wait(timeout=30) for process in (twice, first, second, third)]


@pytest.mark.cluster_long
def test_followers_that_are_lost_cost_their_launch(lost):
    """Killed, stopped or frozen: node_lost names the node and how; the cell that needs no other node has its numbers."""
    nodes, code, _ = lost
    assert code == 1, nodes.out(0)
    found = [record for record in nodes.records() if record.requested.nodes == 2]
    assert [(record.reason, record.first_node) for record in found] == [("node_lost", n) for n in (1, 2, 3)]
    ways = ["no sign of life for 10 s", "was stopped by a signal", "no sign of life for 10 s"]
    assert [record.detail.partition("): ")[2] for record in found] == ways
    assert [record.status for record in nodes.records() if record.requested.nodes == 1] == ["ok"]


@pytest.mark.cluster_long
def test_lost_followers_leave_nothing(lost):
    """Whatever ended them, their ranks and engines have ended too; one that was frozen wakes up when all is over."""
    nodes, _, (_, killed, stopped, frozen) = lost
    assert (killed, stopped) == (-9, 130)
    assert frozen in (1, 2)
    wait_for(lambda: not left(nodes, 0, 1, 2, 3), limit_s=10)


@pytest.mark.cluster_long
def test_a_node_that_comes_twice_is_refused(lost):
    """The second follower with the same number ends with 2 and names the first, which goes on."""
    nodes, _, (twice, *_) = lost
    assert twice == 2
    assert "node 1 is there already" in nodes.out(1, "twice")
    assert "node 1 came twice" in nodes.out(0)


@pytest.mark.cluster_long
def test_a_follower_that_wakes_up_is_told_that_it_was_given_up(make):
    """Frozen in a launch for longer than it takes to be lost, while the study goes on: one line, exit code 1."""
    nodes = make(FAULTY + LOST.replace("steps = 10", "steps = 30").partition("[[exclude]]")[0])
    leader, follower = nodes.start_all("--seed", "0", "--no-verify")
    nodes.stepping(1)
    kill(follower, signal.SIGSTOP)
    wait_for(lambda: "lost: node 1" in nodes.out(0), 60)
    assert leader.poll() is None
    kill(follower, signal.SIGCONT)
    assert follower.wait(timeout=60) == 1
    assert (
        nodes.out(1)
        .splitlines()[-1]
        .endswith(
            f"node 1 was given up by the leader at {nodes.lead}: no sign of life for 10 s; start it again to come back"
        )
    )
    wait_for(lambda: not left(nodes, 1), limit_s=10)


@pytest.mark.cluster_long
def test_followers_that_go_while_others_are_awaited_come_back(make):
    """Ctrl-C, then SIGKILL: the same line started again takes the place, and the study begins when all are there."""
    nodes = make(FAULTY + "steps = 8\n[matrix]\nnodes = [3]\n", count=3)
    leader = nodes.start(0, count=3)
    for times, (out, number) in enumerate([("first", signal.SIGINT), ("second", signal.SIGKILL)], start=1):
        follower = nodes.start(1, count=3, out=out)
        wait_for(lambda times=times: nodes.out(0).count("node 1 is there") == times)
        kill(follower, number)
        follower.wait(timeout=20)
    followers = [nodes.start(1, count=3), nodes.start(2, count=3)]
    assert leader.wait(timeout=120) == 0, nodes.out(0)
    assert [one.wait(timeout=20) for one in followers] == [0, 0], nodes.out(1)
    assert "lost: node 1" in nodes.out(0)
    assert left(nodes, 0, 1, 2) == []


@pytest.mark.cluster_long
def test_a_killed_leader_takes_its_followers_along(make):
    """SIGKILL of the leader: the follower says that it is lost, ends with 1, and nothing is left on either node."""
    nodes = make(FAULTY + LOST)
    leader, follower = nodes.start_all("--set", "nodes=2", "--set", "batch=4")
    nodes.stepping(1)
    kill(leader)
    assert follower.wait(timeout=30) == 1
    assert "is lost" in nodes.out(1)
    assert "Traceback" not in nodes.out(1)
    wait_for(lambda: not left(nodes, 0, 1), limit_s=10)
