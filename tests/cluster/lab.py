"""A cluster in a box: nodes n0, n1, ... on one machine, each with its own network, name, processes and mounts.

A node has a network card `eth0`, joined to the others by a bridge in a namespace of its own, so the machine gets
no new interface. It has its own /etc/hosts, /run, /dev/shm, /sys and home folder; all other files are shared.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.cluster.namespaces import Holder, members
from tests.cluster.switch import Switch

NETWORK = "10.77.0."
NODE = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
BOOT = """
mount -t proc proc /proc
echo "$1" >/proc/sys/kernel/hostname
mount --bind "$2/$1/hosts" /etc/hosts
mount --bind "$2/passwd" /etc/passwd
mount --bind "$2/$1/home" "$2/home"
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -l /run/cgroup
rmdir /run/cgroup
ip link set lo up
"""


class Cluster:
    """`with Cluster(folder, count) as cluster`: running nodes; nothing is left of them afterwards.

    `folder` holds files of the nodes and of the services in them. Raises RuntimeError where the machine refuses.
    """

    _switch: Switch

    def __init__(self, folder: Path, count: int = 4) -> None:
        self.folder = folder
        self.names = [f"n{index}" for index in range(count)]
        self.env: dict[str, str] = {"HOME": str(folder / "home")}
        self._holders: dict[str, Holder] = {}
        self._services: list[Callable[[str], None]] = []
        self._standing: dict[str, set[int]] = {name: set() for name in self.names}

    def __enter__(self) -> Self:
        self._lay_out()
        self._switch = Switch()
        try:
            for name in self.names:
                self._boot(name)
            for name in self.names:
                self._plug(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes and everything in them."""
        for holder in self._holders.values():
            holder.kill()
            holder.sweep()
        self._holders.clear()
        self._switch.holder.kill()

    # processes

    def popen(
        self,
        node: str,
        argv: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """A process in a node, with text pipes if any; signals reach it itself, and its node's end ends it.

        `env` is added to this process's variables and `HOME`; None takes one away. `cwd`: default, that of this
        process. Other options are those of subprocess.Popen. Raises RuntimeError if the node is down.
        """
        if not self.alive(node):
            raise RuntimeError(f"{node} is down")
        both = {**os.environ, **self.env, **(env or {})}
        return self._holders[node].popen(
            ["env", "-C", cwd or Path.cwd(), *argv],
            env={name: value for name, value in both.items() if value is not None},
            **options,
        )

    def run(
        self,
        node: str,
        argv: Sequence[object],
        *,
        timeout: float = 60,
        check: bool = False,
        input: str | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a node to its end. `options` are those of `popen`.

        Raises subprocess.TimeoutExpired, after killing it; with `check`, RuntimeError with what it said.
        """
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        pipes["stdin"] = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.popen(node, argv, **pipes | options) as process:
            try:
                out, err = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        self._holders[node].started.remove(process)
        if check and process.returncode:
            raise RuntimeError(f"{node}: {' '.join(map(str, argv))}: exit {process.returncode}: {err or out}")
        return subprocess.CompletedProcess([*map(str, argv)], process.returncode, out, err)

    def processes(self, node: str) -> dict[int, str]:
        """Everything that runs in a node: process number, as this process sees it, and command line."""
        if not self.alive(node):
            return {}
        for process in self._holders[node].started:
            process.poll()  # a child that has ended is no process any more
        return members(self._holders[node].pid)

    def strays(self, node: str) -> dict[int, str]:
        """What runs in a node besides the daemons of its services."""
        running = self.processes(node)
        return {pid: line for pid, line in running.items() if pid not in self._standing[node]}

    # nodes

    def address(self, node: str) -> str:
        """Its address on the cluster's network."""
        return f"{NETWORK}{10 + self._number(node)}"

    def home(self, node: str) -> Path:
        """Where this process finds the home folder of a node; inside, it has the same path on all nodes."""
        return self.folder / node / "home"

    def alive(self, node: str) -> bool:
        """Whether the node is up."""
        return node in self._holders and self._holders[node].alive

    def kill(self, node: str) -> None:
        """The node loses power."""
        self._holders[node].kill()
        self._standing[node] = set()

    def restart(self, node: str) -> None:
        """The node comes back, empty but for its files and services, on a link as it was at first."""
        self.kill(node)
        self._holders[node].sweep()
        self._boot(node)
        self._plug(node)
        for start in self._services:
            self._start(start, node)

    def each(self, start: Callable[[str], None]) -> None:
        """A service: `start(node)` is called for every node, now and whenever the node comes back."""
        self._services.append(start)
        for name in self.names:
            self._start(start, name)

    def heal(self) -> None:
        """All nodes up, links whole and unshaped, and only services running."""
        for name in self.names:
            self._holders[name].sweep()
            if not self.alive(name):
                self.restart(name)
            if self._number(name) in self._switch.cut:
                self.mend(name)
            if self._number(name) in self._switch.shaped:
                self.unshape(name)
            for pid in self.strays(name):
                os.kill(pid, 9)

    # links

    def shape(self, node: str, rate: str) -> None:
        """Limit the node's link to a rate as tc writes it ("100mbit", "1gbit"), both ways."""
        self._switch.shape(self._number(node), self._holders[node], rate)

    def unshape(self, node: str) -> None:
        """The node's link at full speed again."""
        self._switch.unshape(self._number(node), self._holders[node])

    def cut(self, node: str) -> None:
        """Pull the node's cable at the switch; the node runs on."""
        self._switch.pull(self._number(node))

    def mend(self, node: str) -> None:
        """Put the cable back."""
        self._switch.mend(self._number(node))

    def listening(self, node: str) -> set[int]:
        """TCP ports that something in the node listens on."""
        tables = Path(f"/proc/{self._holders[node].pid}/net").glob("tcp*")
        rows = [line.split() for table in tables for line in table.read_text().splitlines()]
        return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}

    # how it is made

    def _lay_out(self) -> None:
        """Files that the nodes mount over the machine's."""
        (self.folder / "home").mkdir()
        users = Path("/etc/passwd").read_text().splitlines(keepends=True)
        (self.folder / "passwd").write_text("".join(map(self._rehomed, users)))
        hosts = ["127.0.0.1 localhost"]
        for name in self.names:  # without the mapped addresses torch warns that it finds no name for a client
            hosts += [f"{self.address(name)} {name}", f"::ffff:{self.address(name)} {name}"]
        for name in self.names:
            self.home(name).mkdir(parents=True, mode=0o700)
            (self.folder / name / "hosts").write_text("\n".join(hosts) + "\n")

    def _rehomed(self, user: str) -> str:
        fields = user.split(":")
        return ":".join([*fields[:5], self.env["HOME"], *fields[6:]]) if fields[0] == "root" else user

    def _boot(self, node: str) -> None:
        self._holders[node] = Holder(NODE, BOOT, [node, str(self.folder)])

    def _plug(self, node: str) -> None:
        self._switch.plug(self._number(node), self._holders[node], self.address(node))

    def _number(self, node: str) -> int:
        return self.names.index(node)

    def _start(self, start: Callable[[str], None], node: str) -> None:
        start(node)
        self._standing[node] |= set(self.processes(node))
