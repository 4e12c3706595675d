"""Slurm over the nodes: slurmctld in n0, slurmd in the others, munge's daemon beside slurmctld."""

import os
import stat
from pathlib import Path

from tests.cluster.lab import Cluster
from tests.cluster.namespaces import until

# State of a node lies in its /run: paths of sockets are short there, and gone when the node is.
SETTINGS = """
ClusterName=box
SlurmctldHost=n0
SlurmUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir=/run/slurmd
SlurmdPidFile=/run/slurmd.pid
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=3
ReturnToService=2
GresTypes=gpu
NodeName={workers} CPUs=16 Gres=gpu:8 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={workers} Default=YES MaxTime=INFINITE State=UP
"""


def up(cluster: Cluster) -> None:
    """Start Slurm, wait until all of its nodes are idle, and set SLURM_CONF in the cluster's `env`.

    A node that comes back is taken in again. Raises TimeoutError with what its daemons wrote.
    """
    folder = cluster.folder / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "munge").mkdir(mode=0o755)
    (folder / "munge.key").touch(0o400)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
    for number in range(8):  # to be asked for; no program sees a device by them
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder, workers=_range(cluster.names[1:])))
    cluster.env["SLURM_CONF"] = str(folder / "slurm.conf")
    cluster.each(lambda node: _serve(cluster, folder, node))
    try:
        until(lambda: idle(cluster) == cluster.names[1:], "all nodes of Slurm idle", seconds=30)
    except TimeoutError as error:
        written = "".join(file.read_text()[-2000:] for file in sorted(folder.glob("*.log")))
        raise TimeoutError(f"{error}\n{written}") from None


def idle(cluster: Cluster) -> list[str]:
    """Nodes that wait for a job."""
    return sorted(cluster.run("n0", ["sinfo", "-hN", "-t", "idle", "-o", "%N"]).stdout.split())


def jobs(cluster: Cluster) -> dict[str, str]:
    """Jobs that are waiting, running or ending: number and state."""
    told = cluster.run("n0", ["squeue", "-h", "-o", "%i %T"], check=True).stdout
    return dict(line.split() for line in told.splitlines())


def clear(cluster: Cluster) -> None:
    """End all jobs and wait until all nodes are idle."""
    cluster.run("n0", ["scancel", "--user", "root"], check=True)
    until(lambda: not jobs(cluster) and idle(cluster) == cluster.names[1:], "Slurm is idle again", seconds=30)


def _range(names: list[str]) -> str:
    return f"n[{names[0][1:]}-{names[-1][1:]}]"


def _serve(cluster: Cluster, folder: Path, node: str) -> None:
    # One daemon vouches for users on all nodes: they have its socket at the usual place.
    cluster.run(node, ["mkdir", "-p", "/run/munge"], check=True)
    cluster.run(node, ["mount", "--bind", folder / "munge", "/run/munge"], check=True)
    if node == cluster.names[0]:
        files = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "log", "seed")]
        _daemon(cluster, node, ["munged", "--force", *files])
        _daemon(cluster, node, ["slurmctld"], port=6817)
    else:
        _daemon(cluster, node, ["slurmd", "-N", node], port=6818)


def _daemon(cluster: Cluster, node: str, argv: list[str], port: int | None = None) -> None:
    cluster.run(node, argv, cwd=Path("/"), check=True)
    if port is not None:
        until(lambda: port in cluster.listening(node), f"{argv[0]} listens in {node}")
