"""The cluster in a box: separate nodes, links of a given rate, failures on demand, and nothing left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster import lab, needs, slurm, sshd
from tests.cluster.lab import Cluster
from tests.cluster.namespaces import until

pytestmark = [pytest.mark.cluster, pytest.mark.cluster_long]
ROOT = Path(__file__).parents[2]
SERVER = """
import socket
server = socket.create_server(("", 5000))
print("up", flush=True)
server.accept()[0].sendall(socket.gethostname().encode())
"""
CLIENT = "import socket, sys; print(socket.create_connection((sys.argv[1], 5000), 1).recv(99).decode())"
SINK = """
import socket, time
server = socket.create_server(("", 5001))
print("up", flush=True)
link, _ = server.accept()
def received(seconds):
    end, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        count += len(link.recv(1 << 20))
    return count
received(0.3)
start = time.perf_counter()
print(received(1) * 8 / (time.perf_counter() - start))
"""
SOURCE = """
import contextlib, socket, sys
with contextlib.suppress(OSError):
    link = socket.create_connection((sys.argv[1], 5001))
    while True:
        link.sendall(bytes(1 << 16))
"""
TILL_KILLED = """
import pathlib, sys, psutil
from tests.cluster.lab import Cluster
with Cluster(pathlib.Path(sys.argv[1]), 2) as cluster:
    cluster.popen("n1", ["sleep", 1000])
    print(*[process.pid for process in psutil.Process().children(recursive=True)], flush=True)
    sys.stdin.read()
"""


def served(cluster, node, program):
    """A Python program that listens in a node, once it does."""
    process = cluster.popen(node, [sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    return process


def greeted(cluster, source, target):
    """What the machine called `target` on the network of `source` says its name is; None without an answer."""
    with served(cluster, target, SERVER) as server:
        told = cluster.run(source, [sys.executable, "-c", CLIENT, target]).stdout.strip()
        server.kill()
    return told or None


def measured_rate(cluster, source, target):
    """Bits a second of one TCP stream, as they arrive."""
    sink = served(cluster, target, SINK)
    cluster.popen(source, [sys.executable, "-c", SOURCE, target])
    return float(sink.communicate(timeout=30)[0])


def descendants():
    return psutil.Process().children(recursive=True)


def runs(process):
    """Whether it does; one that has ended and that nobody has waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def open_namespaces():
    """Descriptors that would keep a namespace alive."""
    links = (os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
    return [link for link in links if link.startswith(("net:", "pid:", "mnt:", "uts:"))]


@pytest.mark.parametrize(("source", "target"), [("n0", "n3"), ("n3", "n0"), ("n1", "n2")])
def test_nodes_reach_each_other_by_name(cluster, source, target):
    """A node's name leads to that node, from any other."""
    assert greeted(cluster, source, target) == target


def test_each_node_is_a_machine_of_its_own(cluster):
    """Name, address, processes, /run, /dev/shm, interfaces and home folder are the node's; other files are shared."""
    marks = ["/run/mark", "/dev/shm/mark", "$HOME/mark", f"{cluster.folder}/mark"]
    cluster.run("n1", ["sh", "-c", f"touch {' '.join(marks)}"], check=True)
    look = f"ls {' '.join(marks)} 2>/dev/null; hostname; ls /sys/class/net; getent hosts n2; ps -e | wc -l"
    told = cluster.run("n2", ["sh", "-c", look]).stdout.split()
    assert told[:4] == [f"{cluster.folder}/mark", "n2", "eth0", "lo"]
    assert told[4].endswith(cluster.address("n2"))
    assert int(told[-1]) < 10
    assert (cluster.home("n1") / "mark").exists()
    assert not (cluster.home("n2") / "mark").exists()


def test_signals_and_variables_reach_the_process_itself(cluster):
    """`popen` is the process in the node, not one beside it; variables are added, or taken away by None."""
    told = "trap 'echo $A${HOME:-none}; exit 3' TERM; echo up; while :; do sleep 0.01; done"
    process = cluster.popen("n1", ["sh", "-c", told], env={"A": "b", "HOME": None}, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    assert process.pid in cluster.processes("n1")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=10) == ("bnone\n", None)
    assert process.returncode == 3


def test_orphans_leave_no_zombies(cluster):
    """What outlives its parent is adopted by the node and gone when it ends."""
    cluster.run("n1", ["sh", "-c", "sleep 2 >/dev/null 2>&1 &"], check=True)
    until(lambda: list(cluster.strays("n1").values()) == ["sleep 2"], "the orphan sleeps")
    until(lambda: not cluster.strays("n1"), "the orphan is gone")


def test_a_command_that_takes_too_long_is_killed(cluster):
    """`run` raises after its timeout, and the process is gone."""
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("n1", ["sleep", 100], timeout=0.2)
    assert not cluster.strays("n1")


@pytest.mark.parametrize(
    ("rate", "mbit_per_s"),
    [
        ("100mbit", 100),
        pytest.param("20mbit", 20, marks=pytest.mark.cluster_long),
        pytest.param("1gbit", 1000, marks=pytest.mark.cluster_long),
    ],
)
@pytest.mark.parametrize(("source", "target"), [("n1", "n0"), ("n0", "n1")])
def test_a_shaped_link_has_the_rate_asked_for(cluster, rate, mbit_per_s, source, target):
    """A stream from and to a shaped node runs at its rate, headers aside."""
    cluster.shape("n1", rate)
    assert measured_rate(cluster, source, target) == pytest.approx(mbit_per_s * 1e6, rel=0.15)


def test_links_are_shaped_one_by_one_and_released(cluster):
    """Other nodes are faster than a shaped one, and it is as they are afterwards."""
    cluster.shape("n1", "20mbit")
    assert measured_rate(cluster, "n2", "n3") > 100e6
    cluster.unshape("n1")
    assert measured_rate(cluster, "n1", "n0") > 100e6


def test_a_killed_node_is_gone_and_comes_back(cluster):
    """Its processes end, the others still talk, nothing starts in it; after a restart it answers as before."""
    running = cluster.popen("n2", ["sleep", 100])
    cluster.kill("n2")
    assert running.returncode == -signal.SIGKILL
    assert not cluster.alive("n2") and not cluster.processes("n2")
    assert greeted(cluster, "n1", "n3") == "n3"
    with pytest.raises(RuntimeError, match="n2 is down"):
        cluster.run("n2", ["true"])
    cluster.restart("n2")
    assert greeted(cluster, "n1", "n2") == "n2"


def test_a_cut_node_runs_on_and_answers_when_mended(cluster):
    """Without its cable a node is out of reach, its processes live; with it, it is there again."""
    cluster.cut("n3")
    assert greeted(cluster, "n0", "n3") is None
    assert greeted(cluster, "n3", "n3") == "n3"
    assert greeted(cluster, "n0", "n1") == "n1"
    cluster.heal()
    assert greeted(cluster, "n0", "n3") == "n3"


def test_heal_puts_everything_right(cluster):
    """Nodes are up, links whole and unshaped, and only services run."""
    cluster.shape("n0", "20mbit")
    cluster.cut("n1")
    cluster.kill("n2")
    cluster.run("n3", ["sh", "-c", "sleep 100 >/dev/null 2>&1 &"])
    assert cluster.strays("n3")
    cluster.heal()
    until(lambda: not cluster.strays("n3"), "the stray is gone")
    assert greeted(cluster, "n1", "n2") == "n2"
    assert "tbf" not in cluster.run("n0", ["tc", "qdisc", "show", "dev", "eth0"]).stdout


def test_ssh_goes_from_any_node_to_any_other(ssh_cluster):
    """Plain `ssh NODE` runs a command there, by the configuration in the user's home; also after a restart."""
    assert ssh_cluster.run("n0", ["ssh", "n2", "hostname"], check=True).stdout == "n2\n"
    ssh_cluster.restart("n2")
    assert ssh_cluster.run("n2", ["ssh", ssh_cluster.address("n3"), "hostname"], check=True).stdout == "n3\n"
    assert ssh_cluster.run("n0", ["ssh", "n2", "hostname"], check=True).stdout == "n2\n"
    with (ssh_cluster.home("n0") / ".ssh/config").open("a") as config:
        config.write("Host other\n  HostName n1\n  HostKeyAlias n1\n")
    assert ssh_cluster.run("n0", ["ssh", "other", "hostname"], check=True).stdout == "n1\n"


def test_srun_runs_on_two_nodes(slurm_cluster):
    """Two tasks on two nodes are on two nodes, numbered."""
    command = ["srun", "-N2", "sh", "-c", "hostname; echo $SLURM_NODEID"]
    told = slurm_cluster.run("n0", command, check=True).stdout.split()
    assert len(set(told) & {"n1", "n2", "n3"}) == 2
    assert set(told) >= {"0", "1"}


def test_slurm_gives_each_task_a_device_of_its_own(slurm_cluster):
    """Tasks that ask for one accelerator each are told different ones, though there is none to be used."""
    command = ["srun", "-N1", "-n2", "--gpus-per-task=1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert sorted(slurm_cluster.run("n0", command, check=True).stdout.split()) == ["0", "1"]


def test_slurm_goes_on_without_a_node_and_takes_it_back(slurm_cluster):
    """The others run jobs while a node is down; it runs some when it is back."""
    slurm_cluster.kill("n1")
    where = ["srun", "-N2", "-w", "n2,n3", "hostname"]
    assert sorted(slurm_cluster.run("n0", where, check=True).stdout.split()) == ["n2", "n3"]
    slurm_cluster.restart("n1")
    until(lambda: "n1" in slurm.idle(slurm_cluster), "n1 is idle", seconds=30)
    assert slurm_cluster.run("n0", ["srun", "-w", "n1", "hostname"], check=True).stdout == "n1\n"


def test_clear_ends_jobs(slurm_cluster):
    """A job that was left running is ended, and all nodes wait for the next."""
    slurm_cluster.run("n0", ["sbatch", "-N3", "-o/dev/null", "--wrap", "srun sleep 1000"], check=True)
    until(lambda: list(slurm.jobs(slurm_cluster).values()) == ["RUNNING"], "the job runs")
    slurm.clear(slurm_cluster)
    until(lambda: not any(map(slurm_cluster.strays, slurm_cluster.names)), "nothing of the job runs")


def test_nothing_is_left_after_the_end(_namespaces, tmp_path):
    """No process, mount, interface or open namespace remains of a cluster with services and running commands."""
    needs.require(*needs.SSH, *needs.SLURM)
    before = set(descendants())
    with Cluster(tmp_path, 2) as cluster:
        sshd.up(cluster)
        slurm.up(cluster)
        cluster.popen("n0", ["ssh", "n1", "sleep 1000"])
        until(lambda: "sleep 1000" in cluster.strays("n1").values(), "the command runs over ssh")
        inside = set(descendants()) - before
    assert len(inside) > 10
    assert not list(filter(runs, inside))
    assert not open_namespaces()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not {"br0", "p0", "p1"} & {entry.name for entry in Path("/sys/class/net").iterdir()}


def test_nothing_is_left_when_the_test_process_is_killed(_namespaces, tmp_path):
    """kill -9 of the process that made a cluster ends the cluster."""
    command = [sys.executable, "-c", TILL_KILLED, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        inside = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(inside) >= 6
    try:
        until(lambda: not any(map(runs, inside)), "all nodes are gone")
    finally:
        for one in filter(runs, inside):
            one.kill()


def test_a_node_that_cannot_be_made_is_told(_namespaces, tmp_path, monkeypatch):
    """Making a cluster raises with what went wrong, and nothing is left of the other nodes."""
    before = set(descendants())
    monkeypatch.setattr(lab, "BOOT", lab.BOOT + '[ "$1" = n0 ] || { echo no power; exit 1; }')
    with pytest.raises(RuntimeError, match="no power"):
        Cluster(tmp_path, 2).__enter__()
    assert set(descendants()) == before
