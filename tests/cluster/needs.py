"""What a machine must have for the cluster in a box, and what it says where it has not."""

import os
import shutil
import subprocess

import pytest

from tests.browser import missing
from tests.cluster.lab import NODE

PACKAGES = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "tc": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "srun": "slurm-wlm",
}
LAB = ("unshare", "nsenter", "ip", "tc")
SSH = ("ssh", "ssh-keygen", "sshd")
SLURM = ("munged", "slurmctld", "slurmd", "srun")
TRIAL = """mount -t sysfs sysfs /sys && ip link add br0 type bridge &&
tc qdisc add dev br0 root tbf rate 1mbit burst 32kb limit 1mb"""


def require(*programs: str) -> None:
    """Skip the test, with the reason, where it cannot run; under CI, as root, a missing package fails it."""
    if os.geteuid():
        pytest.skip("the cluster in a box needs root")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    lacking = [program for program in programs if not shutil.which(program, path=path)]
    if lacking:
        packages = " ".join(sorted({PACKAGES[program] for program in lacking}))
        missing(f"no {', '.join(lacking)} here (Debian: apt-get install {packages})")


def require_namespaces() -> None:
    """Skip the test where root may not make namespaces, bridges or shaped links, as in most containers."""
    require(*LAB)
    trial = subprocess.run(["unshare", *NODE, "sh", "-c", TRIAL], capture_output=True, text=True)
    if trial.returncode:
        pytest.skip(f"this machine makes no cluster in a box: {trial.stderr.strip()}")
