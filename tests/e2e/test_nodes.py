"""Several nodes by hand on this machine: who is taken in, who is refused, what is left when one of them fails."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.e2e.command import HERE, kill, ours, ranks, records, wait_for

pytestmark = pytest.mark.e2e

SUITE = """
[case]
strategy = "ddp"
ranks = 1
model = "faulty:build"
data = "own"
batch = 4
steps = {steps}
timeout_s = {limit}
[matrix]
{matrix}
"""
SECRET = "a secret for tests"


class Nodes:
    """Processes of `scalemark run` on one machine that take each other for nodes, each in a folder of its own."""

    def __init__(self, folder):
        self.folder, self.started = folder, {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.lead = f"127.0.0.1:{free.getsockname()[1]}"

    def place(self, node):
        return self.folder / f"node{node}"

    def write(self, matrix="nodes = [2]", steps=8, limit=20.0, count=2):
        for node in range(count):
            self.place(node).mkdir(exist_ok=True)
            (self.place(node) / "faulty.py").write_bytes((HERE / "faulty.py").read_bytes())
            (self.place(node) / "mine.toml").write_text(SUITE.format(matrix=matrix, steps=steps, limit=limit))

    def start(self, node, *words, count=2, secret=SECRET, out="out", **env):
        folder = self.place(node)
        command = ["run", "mine.toml", "--nodes", str(count), "--node-rank", str(node), "--lead", self.lead]
        command += ["--quick", "-o", "results/s"] if node == 0 else []
        with (folder / out).open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench", *command, *words],
                cwd=folder, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"COLUMNS": "200", "SCALEMARK_SECRET": secret} | env,
            )  # fmt: skip
        self.started[node, out] = process
        return process

    def out(self, node, out="out"):
        return (self.place(node) / out).read_text()

    def records(self):
        return records(self.place(0) / "results/s")

    def by_nodes(self):
        return {record.requested.nodes: record for record in self.records()}

    def left(self):
        return [process for node in (0, 1, 2) for process in ours(self.place(node))]

    def close(self):
        for process in self.started.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def nodes(tmp_path):
    found = Nodes(tmp_path)
    yield found
    found.close()


def test_two_nodes_train_together_whoever_starts_first(nodes):
    """The follower started first waits; both end with 0; ranks ran where asked; only node 0 has results and all logs."""
    nodes.write('nodes = [1, 2]\n"model_args.fault" = ["none"]', steps=600)
    follower = nodes.start(1)
    wait_for(lambda: "waiting for node 0" in nodes.out(1))
    leader = nodes.start(0)
    assert leader.wait(timeout=120) == 0, nodes.out(0)
    assert follower.wait(timeout=20) == 0, nodes.out(1)
    assert f"on node 1: scalemark run mine.toml --nodes 2 --node-rank 1 --lead {nodes.lead}" in nodes.out(0)
    both = nodes.by_nodes()
    assert {count: record.status for count, record in both.items()} == {1: "ok", 2: "ok"}
    assert [(rank.rank, rank.node) for rank in both[2].ranks] == [(0, 0), (1, 1)]
    assert {rank.effective.world_size for rank in both[2].ranks} == {2}
    assert not both[2].mismatches
    exchanges = [rank.network.exchanges for rank in both[2].ranks]
    assert all(exchanges)
    assert "rank 1/cpu_percent" in both[2].telemetry
    assert "node 1/cpu_percent" in both[2].telemetry
    logs = sorted(path.name for path in (nodes.place(0) / "results/s/logs" / both[2].launch).iterdir())
    assert logs == ["0.log", "1.log"]
    assert not (nodes.place(1) / "results").exists()
    assert nodes.left() == []


def test_a_node_that_does_not_come_is_named_in_time(nodes):
    """With nobody there after --node-wait, the leader says which node is missing and ends with 2."""
    nodes.write()
    assert nodes.start(0, "--node-wait", "2s").wait(timeout=60) == 2
    assert "node 1 has not come within 2 s" in nodes.out(0)
    assert "Traceback" not in nodes.out(0)


def test_another_secret_is_refused(nodes):
    """A follower with another secret ends with 2 and says why; the leader names it as the one that is missing."""
    nodes.write()
    leader = nodes.start(0, "--node-wait", "12s")
    follower = nodes.start(1, secret="another secret")
    assert follower.wait(timeout=60) == 2
    assert "has another secret than this node" in nodes.out(1)
    assert leader.wait(timeout=60) == 2
    assert "node 1 has not come within 12 s" in nodes.out(0)
    assert "another study secret was refused" in nodes.out(0)


def test_other_code_of_the_model_is_refused_by_name(nodes):
    """A node whose copy of the user's model differs stops the study before anything is measured; both say so."""
    nodes.write()
    with (nodes.place(1) / "faulty.py").open("a") as file:
        file.write("\n# edited here only\n")
    leader, follower = nodes.start(0), nodes.start(1)
    assert (leader.wait(timeout=60), follower.wait(timeout=60)) == (2, 2)
    for node in (0, 1):
        assert "other code of faulty:build" in nodes.out(node)
    assert not (nodes.place(0) / "results/s/launches.jsonl").exists()


def test_a_node_that_comes_twice_is_refused(nodes):
    """The second follower with the same number ends with 2 and names the first; the study goes on."""
    nodes.write('"model_args.fault" = ["none"]\nnodes = [2, 3]', count=3)
    leader, first = nodes.start(0, count=3), nodes.start(1, count=3)
    wait_for(lambda: "node 1 is there" in nodes.out(0))
    twice = nodes.start(1, count=3, out="twice")
    assert twice.wait(timeout=60) == 2
    assert "node 1 is there already" in nodes.out(1, "twice")
    last = nodes.start(2, count=3)
    assert leader.wait(timeout=120) == 0, nodes.out(0)
    assert (first.wait(timeout=20), last.wait(timeout=20)) == (0, 0)


@pytest.mark.parametrize(("fault", "reason"), [("raise", "exception"), ("kill", "signal"), ("hang", "hang")])
def test_a_rank_that_fails_on_another_node_is_named(nodes, fault, reason):
    """The record has class, rank and node of the rank that failed first, and the other cell still runs."""
    nodes.write(f'"model_args.fault" = ["{fault}", "none"]\nnodes = [2]', limit=15.0)
    leader, follower = nodes.start(0), nodes.start(1)
    assert leader.wait(timeout=120) == 1, nodes.out(0)
    assert follower.wait(timeout=20) == 0, nodes.out(1)
    found = {record.requested.model_args["fault"]: record for record in nodes.records()}
    assert found["none"].status == "ok"
    bad = found[fault]
    assert (bad.reason, bad.first_rank, bad.first_node) == (reason, 1, 1), bad.detail
    assert nodes.left() == []


def running(nodes, node, rank):
    """The rank's process once its launch is in its steps."""
    return wait_for(lambda: ranks(nodes.place(node)).get(rank))


SLOW = '"model_args.fault" = ["slow"]\nnodes = [1, 2]'


def test_a_node_killed_in_a_launch_is_lost_and_the_rest_goes_on(nodes):
    """SIGKILL of a follower: the launch is node_lost and names node 1, cells of one node run, --resume does the rest."""
    nodes.write('"model_args.fault" = ["slow"]\nnodes = [2, 1]', steps=12, limit=60.0)
    leader, follower = nodes.start(0, "--seed", "1"), nodes.start(1)
    running(nodes, 1, 1)
    kill(follower)
    assert leader.wait(timeout=120) == 1, nodes.out(0)
    found = nodes.by_nodes()
    assert (found[2].reason, found[2].first_node) == ("node_lost", 1), found[2].detail
    assert found[1].status == "ok"
    follower.wait()
    assert nodes.left() == []

    leader, follower = nodes.start(0, "--resume"), nodes.start(1)
    assert leader.wait(timeout=120) == 0, nodes.out(0)
    assert follower.wait(timeout=20) == 0
    assert [r.status for r in nodes.records() if r.requested.nodes == 2] == ["failed", "ok"]


def test_an_engine_killed_on_another_node_is_named(nodes):
    """SIGKILL of a follower's engine: engine_lost on node 1; the follower stays and runs the next launch."""
    nodes.write('"model_args.fault" = ["slow"]\nbatch = [4, 5]\nnodes = [2]', steps=8, limit=60.0)
    leader, follower = nodes.start(0), nodes.start(1)
    rank = running(nodes, 1, 1)
    kill(rank.parent().parent())
    assert leader.wait(timeout=120) == 1, nodes.out(0)
    assert follower.wait(timeout=20) == 0, nodes.out(1)
    found = nodes.records()
    assert [(r.status, r.reason, r.first_node) for r in found] == [
        ("failed", "engine_lost", 1),
        ("ok", None, None),
    ], [r.detail for r in found]


def test_a_killed_leader_takes_its_followers_along(nodes):
    """SIGKILL of the leader: the follower says that it is lost, ends with 1, and nothing is left on either node."""
    nodes.write('"model_args.fault" = ["slow"]\nnodes = [2]', steps=20, limit=60.0)
    leader, follower = nodes.start(0), nodes.start(1)
    running(nodes, 1, 1)
    kill(leader)
    leader.wait()
    assert follower.wait(timeout=30) == 1
    assert "is lost" in nodes.out(1)
    assert "Traceback" not in nodes.out(1)
    wait_for(lambda: not nodes.left(), limit_s=10)


def test_a_stopped_follower_says_so(nodes):
    """SIGTERM of a follower: the launch is node_lost at once, in the follower's own words."""
    nodes.write('"model_args.fault" = ["slow"]\nnodes = [2]', steps=20, limit=60.0)
    leader, follower = nodes.start(0), nodes.start(1)
    running(nodes, 1, 1)
    began = time.monotonic()
    kill(follower, signal.SIGTERM)
    assert follower.wait(timeout=20) == 130
    assert leader.wait(timeout=60) == 4, nodes.out(0)
    assert time.monotonic() - began < 20
    (record,) = nodes.records()
    assert record.reason == "node_lost"
    assert "was stopped by a signal" in record.detail


def test_a_frozen_follower_is_lost_within_its_limit(nodes):
    """SIGSTOP of a follower and its ranks: no sign of life is enough to go on without it."""
    nodes.write('"model_args.fault" = ["slow"]\nnodes = [2]', steps=20, limit=60.0)
    leader, follower = nodes.start(0), nodes.start(1)
    rank = running(nodes, 1, 1)
    for process in (follower, rank):
        kill(process, signal.SIGSTOP)
    assert leader.wait(timeout=60) == 4, nodes.out(0)
    (record,) = nodes.records()
    assert (record.reason, record.first_node) == ("node_lost", 1)
    assert "no sign of life" in record.detail
    for process in (follower, rank):
        kill(process, signal.SIGCONT)
    assert follower.wait(timeout=30) in (1, 2)
    wait_for(lambda: not nodes.left(), limit_s=10)
