"""What cannot begin on several machines: each node says so in one line, with names, before anything is measured."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.by_hand import ByHand
from tests.e2e.nodes import FAULTY

pytestmark = [pytest.mark.cluster, pytest.mark.cluster_long]

ROOT = Path(__file__).parents[2]
SUITE = FAULTY + "steps = 8\n[matrix]\nnodes = [2]\n"
LISTENER = """
import socket
server = socket.create_server(("", 29400))
print("up", flush=True)
clients = [server.accept() for _ in range(3)]
"""


@pytest.fixture
def hand(cluster, tmp_path):
    """A study that cannot begin."""
    made = ByHand(cluster, tmp_path)
    made.write(SUITE, count=3)
    yield made
    made.close()


def said(hand, node):
    """The node's last line."""
    text = hand.out(node)
    assert "Traceback" not in text
    return text.splitlines()[-1]


def test_a_name_that_does_not_resolve_is_told_on_both_sides(hand):
    """The leader does not lead there, the follower does not find it; both say which name, and what to do."""
    leader = hand.start(0, lead="nowhere:29400")
    follower = hand.start(1, "--node-wait", "2s", lead="nowhere:29400")
    assert (leader.wait(timeout=60), follower.wait(timeout=60)) == (2, 2)
    assert said(hand, 0).startswith("scalemark: --lead nowhere: this node cannot resolve that name")
    assert said(hand, 1).startswith("scalemark: --lead nowhere:29400: this node cannot resolve 'nowhere'")


def test_an_address_of_another_node_is_told(hand):
    """Node 0 leads at an address of its own: the line has the one that was asked for and those that it has."""
    assert hand.start(0, lead="n2:29400").wait(timeout=60) == 2
    assert "--lead n2 is 10.77.0.12, which is no address of this node (eth0 10.77.0.10" in said(hand, 0)


def test_a_port_that_is_taken_is_told(cluster, hand):
    """The leader's line has address and port; a follower says that what answers there is no study."""
    other = cluster.popen(
        "n0", [sys.executable, "-c", LISTENER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == "up\n"
    leader, follower = hand.start(0), hand.start(1, "--node-wait", "3s")
    assert (leader.wait(timeout=60), follower.wait(timeout=60)) == (2, 2)
    assert "--lead 10.77.0.10:29400: the port is in use" in said(hand, 0)
    assert "--lead n0:29400: something answers there, but is no study's store" in said(hand, 1)


def test_two_nodes_that_cannot_reach_each_other_are_named(cluster, hand):
    """n0 reaches both, n1 and n2 do not reach each other: the pair is named, and nothing is measured."""
    route = ["ip", "route", "add", "blackhole", cluster.address("n1")]
    cluster.run("n2", route, check=True)  # n2 answers nothing that n1 says, as behind a firewall
    codes = [one.wait(timeout=60) for one in hand.start_all(count=3)]
    cluster.restart("n2")
    assert codes == [2, 2, 2], [hand.out(node) for node in range(3)]
    assert "node 1 (n1) cannot reach node 2 (n2) at 10.77.0.12: " in said(hand, 0)
    for node in (1, 2):
        assert "node 1 (n1) cannot reach node 2 (n2)" in said(hand, node)
    assert not (hand.place(0) / "results/s/launches.jsonl").exists()


def test_another_version_is_refused_by_name(hand):
    """A node with another scalemark and another torch: both sides name the node's versions and the leader's."""
    shutil.copytree(ROOT / "bench", hand.place(1) / "other/bench")
    file = hand.place(1) / "other/bench/__init__.py"
    file.write_text(file.read_text() + '\n__version__ = "0.0.9"\n')
    installed = hand.place(1) / "other/torch-1.2.3.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    leader = hand.start(0)
    follower = hand.start(1, env={"PYTHONPATH": str(hand.place(1) / "other")})
    assert (leader.wait(timeout=60), follower.wait(timeout=60)) == (2, 2)
    for node in (0, 1):
        assert "scalemark 0.0.9, the leader has " in said(hand, node)
        assert "torch 1.2.3, the leader has " in said(hand, node)
    assert "node 1 (n1)" in said(hand, 0)
