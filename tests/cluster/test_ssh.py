"""--hosts over real ssh: this machine leads or the first host does; nothing stays behind, however it ends."""

import signal
import subprocess
import time

import pytest

from tests.cluster.namespaces import until
from tests.cluster.study import SCALEMARK, check_two_nodes, folder, shared_cache

pytestmark = pytest.mark.cluster


def test_the_first_host_leads_and_its_results_are_fetched(ssh_cluster):
    """From a machine that is none of the hosts: node 0 runs on the first, and the study lies here in the end."""
    place = folder(ssh_cluster, "away")
    done = ssh_cluster.run(
        "n0",
        [SCALEMARK, "run", "mine.toml", "--hosts", "n1,n2", "--quick", "-o", "results/s"],
        cwd=place,
        env=shared_cache(),
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_two_nodes(place / "results/s", ["n1", "n2"])
    assert "node 1 is there: n2" in done.stdout
    assert "report: scalemark report results/s\n" in done.stdout  # not the folder there, which is gone
    assert "/tmp/scalemark-" not in done.stdout
    assert [ssh_cluster.strays(node) for node in ("n0", "n1", "n2")] == [{}, {}, {}]


def test_a_client_that_is_killed_leaves_nothing_on_any_node(ssh_cluster):
    """kill -9 of the command while ranks run on another host: engines, ranks and samplers end on all of them."""
    place = folder(ssh_cluster, "killed", nodes="[2]", steps=100_000)
    client = ssh_cluster.popen(
        "n0",
        [SCALEMARK, "run", "mine.toml", "--hosts", "n0,n1", "--quick", "-o", "results/s"],
        cwd=place,
        env=shared_cache(),
    )
    until(lambda: len(ssh_cluster.strays("n1")) >= 5, "ranks on n1", seconds=60)
    client.send_signal(signal.SIGKILL)
    client.wait()
    until(lambda: not ssh_cluster.strays("n0") and not ssh_cluster.strays("n1"), "nothing left", seconds=40)


@pytest.mark.cluster_long
def test_a_study_led_elsewhere_that_is_stopped_is_brought_and_goes_on(ssh_cluster):
    """Ctrl-C at the client: all nodes stop, what was measured lies here, and the line goes on with it."""
    place = folder(ssh_cluster, "stopped", nodes="[2]", steps=100_000)
    words = [SCALEMARK, "run", "mine.toml", "--hosts", "n1,n2", "--quick", "-o", "results/s"]
    with (place / "out").open("w") as out:
        client = ssh_cluster.popen(
            "n0", words, cwd=place, env=shared_cache(), stdout=out, stderr=subprocess.STDOUT
        )
        until(lambda: len(ssh_cluster.strays("n2")) >= 5, "ranks on n2", seconds=60)
        client.send_signal(signal.SIGINT)
        assert client.wait(60) == 130
    said = (place / "out").read_text()
    assert (
        "results of n1 are here: results/s\nstopped; everything measured is kept. Go on with: scalemark"
        in said
    )
    assert "run mine.toml --hosts n1,n2 --quick -o results/s --resume\n" in said
    assert (place / "results/s/study.json").exists()
    assert [ssh_cluster.strays(node) for node in ("n0", "n1", "n2")] == [{}, {}, {}]


@pytest.mark.cluster_long
def test_this_machine_leads_if_it_is_the_first_host(ssh_cluster):
    """The first host's name is this machine's: it leads here, and writes its results here."""
    place = folder(ssh_cluster, "here")
    (place / "hosts").write_text("n0 slots=1\nroot@n3:22 slots=1  # another name for a user\n")
    done = ssh_cluster.run(
        "n0",
        [SCALEMARK, "run", "mine.toml", "--hostfile", "hosts", "--quick", "-o", "results/s"],
        cwd=place,
        env=shared_cache(),
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_two_nodes(place / "results/s", ["n0", "n3"])


@pytest.mark.cluster_long
@pytest.mark.parametrize(
    ("hosts", "said"),
    [("n0,nowhere", "nowhere: this machine does not know by which"), ("n0,n1", "n1 (node 1): exit code 127")],
)
def test_a_host_that_cannot_begin_is_named(ssh_cluster, hosts, said):
    """No such host, or no such Python there: one line with the host, exit 2, before anything is measured."""
    place = folder(ssh_cluster, f"bad-{hosts[-3:]}")
    names = hosts.split(",")
    (place / "hosts").write_text(f"{names[0]}\n{names[1]} python=/no/such/python\n")
    began = time.monotonic()
    done = ssh_cluster.run(
        "n0",
        [SCALEMARK, "run", "mine.toml", "--hostfile", "hosts", "--quick", "-o", "results/s"],
        cwd=place,
        env=shared_cache(),
        timeout=120,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert time.monotonic() - began < 100  # not the time that nodes are waited for
    assert not (place / "results/s/launches.jsonl").exists()
