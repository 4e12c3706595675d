"""sshd in every node, and every node's user let in to every node: `ssh n2` works, by the user's own configuration.

Each home folder has the key, `known_hosts` by name and address, and a `config` that a test can write more into.
"""

import subprocess
from pathlib import Path

from tests.cluster.lab import Cluster
from tests.cluster.namespaces import until

SETTINGS = """
HostKey {key}
PidFile /run/sshd.pid
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
AcceptEnv LANG LC_*
MaxStartups 100
"""
CONFIG = """
Host *
  ConnectTimeout 5
  LogLevel ERROR
"""


def up(cluster: Cluster) -> None:
    """Start sshd in all nodes, and again in each that comes back."""
    folder = cluster.folder / "ssh"
    folder.mkdir(mode=0o700)
    user = _key(folder / "user")
    hosts = {name: _key(folder / name) for name in cluster.names}
    known = [f"{name},{cluster.address(name)} {key}\n" for name, key in hosts.items()]
    for name in cluster.names:
        _let_in(cluster.home(name) / ".ssh", folder / "user", user, known)
        (folder / f"{name}.conf").write_text(SETTINGS.format(key=folder / name))
    cluster.each(lambda node: _serve(cluster, folder, node))


def _key(file: Path) -> str:
    """A new key pair; its public half as known_hosts and authorized_keys want it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file], check=True)
    return file.with_suffix(".pub").read_text().strip()


def _let_in(settings: Path, private: Path, public: str, known: list[str]) -> None:
    settings.mkdir(mode=0o700)
    (settings / "id_ed25519").touch(0o600)
    (settings / "id_ed25519").write_bytes(private.read_bytes())
    (settings / "authorized_keys").write_text(public + "\n")
    (settings / "known_hosts").write_text("".join(known))
    (settings / "config").write_text(CONFIG)


def _serve(cluster: Cluster, folder: Path, node: str) -> None:
    cluster.run(node, ["mkdir", "-p", "/run/sshd"], check=True)
    daemon = ["/usr/sbin/sshd", "-f", folder / f"{node}.conf", "-E", folder / f"{node}.log"]
    cluster.run(node, daemon, cwd=Path("/"), check=True)
    until(lambda: 22 in cluster.listening(node), f"sshd listens in {node}")
