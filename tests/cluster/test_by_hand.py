"""scalemark by hand on several machines: what is measured over a real link, and what becomes of lost nodes."""

import msgspec
import pytest

from bench.ring import ring_bytes, shortest_s
from tests.cluster.by_hand import ByHand
from tests.e2e.nodes import FAULTY

pytestmark = pytest.mark.cluster

MLP = """
steps = 20
model = "mlp"
data = "device"
[case.model_args]
inputs = 512
width = 512
depth = 2
[matrix]
nodes = [1, 2]
"""
DEBIAN = "127.0.0.1 localhost\n127.0.1.1 {}\n10.77.0.10 n0\n10.77.0.11 n1\n"


class Trained(msgspec.Struct):
    """What two nodes left that trained together."""

    hand: ByHand
    codes: list[int]

    @property
    def together(self):
        """The record of the cell on both."""
        return next(record for record in self.hand.records() if record.requested.nodes == 2)


@pytest.fixture(scope="module")
def trained(cluster, tmp_path_factory):
    """n0 and n1 on links of 100 Mbit/s; each one's own name stands for loopback there, as Debian's installer has it."""
    hand = ByHand(cluster, tmp_path_factory.mktemp("hand"))
    hand.write(MLP)
    files = {name: cluster.folder / name / "hosts" for name in ("n0", "n1")}
    before = {name: file.read_text() for name, file in files.items()}
    for name, file in files.items():
        file.write_text(DEBIAN.format(name))
        cluster.shape(name, "100mbit")
    codes = [process.wait(timeout=200) for process in hand.start_all()]
    for name, file in files.items():
        file.write_text(before[name])
    yield Trained(hand, codes)
    hand.close()


def test_two_machines_train_together(trained):
    """Each node's ranks run under its own name and talk over its card; node 0 has the records and all logs."""
    hand, record = trained.hand, trained.together
    assert trained.codes == [0, 0], hand.out(0) + hand.out(1)
    assert record.status == "ok"
    assert [(rank.node, rank.host) for rank in record.ranks] == [(0, "n0"), (1, "n1")]
    assert [rank.network.interfaces for rank in record.ranks] == [("eth0",), ("eth0",)]
    assert not record.mismatches
    logs = hand.place(0) / "results/s/logs" / record.launch
    assert sorted(path.name for path in logs.iterdir()) == ["0.log", "1.log"]
    assert not (hand.place(1) / "results").exists()
    hand.nothing_left(0, 1)


def test_the_study_knows_its_machines(trained):
    """Name, address, interface and clock of each node; what was measured between them is their link."""
    header = trained.hand.header()
    known = [(member.hostname, member.address, member.interface) for member in header.nodes]
    assert known == [("n0", "10.77.0.10", "eth0"), ("n1", "10.77.0.11", "eth0")]
    assert abs(header.nodes[1].clock_ahead_s) < 0.1  # the nodes share a clock
    (pair,) = header.pairs
    assert (pair.first, pair.second, pair.error) == (0, 1, None)
    assert 0.7 < pair.bits_per_s / 100e6 < 1.05
    assert not header.box


def test_exposed_communication_is_what_the_link_needs_for_the_gradients(trained):
    """What backward takes longer than on one node is the ring's bytes at the link's rate; the finding says so."""
    alone = next(record for record in trained.hand.records() if record.requested.nodes == 1)
    exposed_s = trained.together.phases_s["backward"] - alone.phases_s["backward"]
    gradient_bytes = trained.together.ranks[0].effective.gradient_bytes
    assert exposed_s == pytest.approx(shortest_s(ring_bytes(gradient_bytes, 2), 100e6), rel=0.25)
    assert "network-bound: " in trained.hand.out(0)


def test_a_host_name_that_stands_for_loopback_is_told_and_does_no_harm(trained):
    """gloo and the leader's store use the card; the finding names the node, the address and the variable."""
    out = trained.hand.out(0)
    assert "the host name of node 0 (n0) (and of 1 more) resolves to 127.0.1.1" in out
    assert "set GLOO_SOCKET_IFNAME=eth0" in out


PATIENT = (
    FAULTY
    + """
steps = 10
[case.model_args]
fault = "patient"
[matrix]
nodes = [1, 2]
"""
)
LOST = (
    PATIENT
    + """
batch = [4, 5]
[[exclude]]
nodes = 1
batch = 5
"""
)


@pytest.fixture
def hand(cluster, tmp_path):
    """A study that is about to begin."""
    made = ByHand(cluster, tmp_path)
    yield made
    made.close()


def test_machines_that_are_lost_cost_their_launch_and_resume_runs_it_again(cluster, hand):
    """One killed, then one cut off: node_lost with its name, the rest goes on, what is cut off ends by itself."""
    hand.write(LOST, count=3)
    leader, _, second = hand.start_all(count=3)
    hand.stepping(1)
    cluster.kill("n1")
    hand.stepping(2)  # in the place of node 1
    cluster.cut("n2")
    assert leader.wait(timeout=120) == 1, hand.out(0)
    assert second.wait(timeout=60) == 1, hand.out(2)
    assert "node 2: the leader at n0:29400 is lost: no answer for 10 s" in hand.out(2)
    lost = [record for record in hand.records() if record.requested.nodes == 2]
    assert [(record.reason, record.first_node) for record in lost] == [("node_lost", 1), ("node_lost", 2)]
    assert [record.detail for record in lost] == [
        f"node {n} (n{n}): no sign of life for 10 s" for n in (1, 2)
    ]
    assert all(record.wall_s < record.requested.timeout_s for record in lost)
    assert [record.status for record in hand.records() if record.requested.nodes == 1] == ["ok"]
    hand.nothing_left(0, 2)
    assert hand.temporary(2) == []

    cluster.restart("n1")
    cluster.mend("n2")
    assert [one.wait(timeout=120) for one in hand.start_all("--resume", count=3)] == [0, 0, 0], hand.out(0)
    again = [record for record in hand.records() if record.requested.nodes == 2][2:]
    assert [(record.status, record.launch[:4]) for record in again] == [("ok", "b01-")] * 2
    assert not any("Traceback" in hand.out(node) for node in range(3))
    hand.nothing_left(0, 1, 2)


@pytest.mark.cluster_long
def test_nodes_that_a_cell_does_not_need_wait(hand):
    """1, 2 and 4 of four nodes in one study: the first ones run, the others wait and run later cells."""
    hand.write(FAULTY + "steps = 20\n[matrix]\nnodes = [1, 2, 4]\n", count=4)
    assert [one.wait(timeout=200) for one in hand.start_all(count=4)] == [0] * 4, hand.out(0)
    hosts = {record.requested.nodes: [rank.host for rank in record.ranks] for record in hand.records()}
    assert hosts == {1: ["n0"], 2: ["n0", "n1"], 4: ["n0", "n1", "n2", "n3"]}
    pairs = [(pair.first, pair.second) for pair in hand.header().pairs]
    assert sorted(pairs) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    hand.nothing_left(0, 1, 2, 3)


@pytest.mark.cluster_long
@pytest.mark.parametrize("lost", ["killed", "cut off"])
def test_followers_end_when_the_leader_is_lost(cluster, hand, lost):
    """In the middle of a launch: each says so in one line, ends with 1, and leaves nothing."""
    hand.write(PATIENT, count=3)
    _, *followers = hand.start_all("--seed", "0", count=3)
    hand.stepping(1)
    if lost == "killed":
        cluster.kill("n0")
    else:
        cluster.cut("n0")
    assert [one.wait(timeout=60) for one in followers] == [1, 1], hand.out(1) + hand.out(2)
    for node in (1, 2):
        assert f"node {node}: the leader at n0:29400 is lost: " in hand.out(node)
        assert "Traceback" not in hand.out(node)
        assert hand.temporary(node) == []
    hand.nothing_left(1, 2)
