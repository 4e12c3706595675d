"""The switch: a bridge in a network namespace of its own, a port for each node, and what may happen to a cable."""

import subprocess

from tests.cluster.namespaces import Holder

SWITCH = """
ip link add br0 type bridge
ip link set br0 up
"""
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class Switch:
    """Ports p0, p1, ... for nodes 0, 1, ...; `node` is always the namespaces of the node at that port."""

    def __init__(self) -> None:
        self.holder = Holder(["--net"], SWITCH)
        self.shaped: set[int] = set()
        self.cut: set[int] = set()

    def plug(self, number: int, node: Holder, address: str) -> None:
        """A new cable to the node's eth0. The card keeps its number, so that neighbours know it again."""
        port = f"p{number}"
        card = f"eth0 address 02:00:00:00:00:{number:02x} netns {node.pid}"
        self._run(
            "sh", "-c", f"ip link del {port} 2>/dev/null; ip link add {port} type veth peer name {card}"
        )
        self._run("ip", "link", "set", port, "master", "br0", "up")
        _finish(node, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        _finish(node, "ip", "link", "set", "eth0", "up")
        self.shaped.discard(number)
        self.cut.discard(number)

    def shape(self, number: int, node: Holder, rate: str) -> None:
        """Hold both directions to a rate: what the node sends at its card, what it gets at the port."""
        per_s = float(rate[:-4]) * UNITS[rate[-4:]] / 8
        burst, limit = max(32_000, 2e-3 * per_s), max(1_000_000, 32e-3 * per_s)  # 2 ms and 32 ms of traffic
        bucket = ["root", "tbf", "rate", rate, "burst", f"{burst:.0f}", "limit", f"{limit:.0f}"]
        self._at_both_ends(number, node, "replace", bucket)
        self.shaped.add(number)

    def unshape(self, number: int, node: Holder) -> None:
        """At full speed again."""
        self._at_both_ends(number, node, "del", ["root"])
        self.shaped.discard(number)

    def pull(self, number: int) -> None:
        """Nothing goes through the port."""
        self._run("ip", "link", "set", f"p{number}", "down")
        self.cut.add(number)

    def mend(self, number: int) -> None:
        """Everything does again."""
        self._run("ip", "link", "set", f"p{number}", "up")
        self.cut.discard(number)

    def _at_both_ends(self, number: int, node: Holder, verb: str, bucket: list[str]) -> None:
        _finish(node, "tc", "qdisc", verb, "dev", "eth0", *bucket)
        self._run("tc", "qdisc", verb, "dev", f"p{number}", *bucket)

    def _run(self, *argv: str) -> None:
        _finish(self.holder, *argv)


def _finish(holder: Holder, *argv: str) -> None:
    """Run a command in there. Raises RuntimeError with what it said if it fails."""
    process = holder.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate()
    holder.started.remove(process)
    if process.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {said}")
