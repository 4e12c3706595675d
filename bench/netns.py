"""Nodes of one box: a network namespace each, joined by a bridge in another, behind links of any rate.

Namespaces have no names and no processes of their own: only file descriptors of this process hold them. When it
ends, however it ends, and what it started inside has ended, the kernel removes them with their interfaces.
"""

import contextlib
import ctypes
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.link import Link, tbf

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
NETWORK = "10.77.0"
FIRST = 10  # node 0 is 10.77.0.10
MOST_NODES = 254 - FIRST + 1
SYSTEM_PATH = ":/usr/sbin:/sbin"  # where `ip` and `tc` are; not on everyone's PATH
TOOLS = ("ip", "tc", "nsenter")
NETEM_PACKETS = 100_000  # on their way at once: 0.1 s at 10 Gbit/s in frames


@functools.cache
def why_not() -> str | None:
    """What is missing for namespaces and shaped links, in one line; None if nothing is."""
    if not os.path.exists("/proc/self/ns/net"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root: run it with sudo"
    if missing := [tool for tool in TOOLS if not _found(tool)]:
        return f"no {' and no '.join(missing)} on this host: install iproute2 and util-linux"
    try:
        with _Namespace() as net:
            net.ip("link add br0 type bridge", "link add p0 type veth peer name eth0")
            net.tc("qdisc add dev p0 root tbf rate 1gbit burst 256kb limit 4mb")
    except OSError as error:
        return f"the kernel refuses network namespaces or shaped links: {error.strerror or error}"
    return None


@functools.cache
def delay_why_not() -> str | None:
    """Why a link cannot have a delay here, in one line; None if it can."""
    if reason := why_not():
        return reason
    try:
        with _Namespace() as net:
            net.tc("qdisc add dev lo root netem delay 1ms")
    except OSError:
        return "this kernel has no netem: a link can have a rate, not a delay"
    return None


class Box:
    """`nodes` network namespaces, each with an eth0 on one switch and an address in 10.77.0.0/24.

    Nothing else is reached from them, neither this host nor the internet. Raises OSError where they cannot be made.
    """

    def __init__(self, nodes: int) -> None:
        assert 1 <= nodes <= MOST_NODES, nodes
        self.nodes = nodes

    def __enter__(self) -> "Box":
        with contextlib.ExitStack() as stack:
            self._outside = stack.enter_context(_Namespace(OWN))
            self._switch = stack.enter_context(_Namespace())
            self._inside = [stack.enter_context(_Namespace()) for _ in range(self.nodes)]
            self._join()
            self._held = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.enter(None)
        self._held.close()

    def _join(self) -> None:
        ports = [
            f"link add p{n} type veth peer name eth0 netns {net.path}" for n, net in enumerate(self._inside)
        ]
        joined = [f"link set p{n} master br0 up" for n in range(self.nodes)]
        self._switch.ip("link add br0 type bridge", "link set br0 up", *ports, *joined)
        for node, net in enumerate(self._inside):
            net.ip("link set lo up", f"addr add {self.address(node)}/24 dev eth0", "link set eth0 up")

    def address(self, node: int) -> str:
        """The node's address, as the other nodes reach it."""
        return f"{NETWORK}.{FIRST + node}"

    def enter(self, node: int | None) -> None:
        """Put the calling thread, and what it starts from now on, into a node's network; None: back into the host's.

        Sockets that are open, and threads that run, stay where they are.
        """
        (self._outside if node is None else self._inside[node]).enter()

    def argv(self, node: int, argv: Sequence[str]) -> list[str]:
        """A command that runs `argv` in the node's network, as long as this process lives to hold it."""
        return self._inside[node].argv(argv)

    def shape(self, link: Link | None) -> None:
        """Give every node's link this rate and delay, in both directions; None: as fast as it goes.

        The rate holds at the node's eth0 and at its port of the switch. The delay is at the port alone: once on
        the way from one node to another, and in no one's count of what a sender still has to send. Raises OSError
        if the kernel did not take it.
        """
        ports = [f"p{node}" for node in range(self.nodes)]
        _shape(self._switch, ports, link)
        limit = Link(link.rate_bits_per_s) if link else None
        for net in self._inside:
            _shape(net, ["eth0"], limit)


class _Namespace:
    """A network namespace for as long as its file descriptor is open: that of a path, else a new one."""

    def __init__(self, path: str | None = None) -> None:
        self._fd = os.open(path, os.O_RDONLY) if path else _made()
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def __enter__(self) -> "_Namespace":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def enter(self) -> None:
        _call("setns", self._fd, CLONE_NEWNET)

    def argv(self, argv: Sequence[str]) -> list[str]:
        return [_found("nsenter") or "nsenter", f"--net={self.path}", "--", *argv]

    def ip(self, *lines: str) -> None:
        self._batch("ip", lines)

    def tc(self, *lines: str) -> list[dict[str, Any]]:
        """What `qdisc show`, the last of the lines, says."""
        return json.loads(self._batch("tc", lines) or "[]")

    def _batch(self, tool: str, lines: Sequence[str]) -> str:
        """One process for all the lines; the first that fails ends it."""
        argv = self.argv([_found(tool) or tool, "-json", "-batch", "-"])
        done = subprocess.run(argv, input="\n".join(lines) + "\n", capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{tool}: {done.stderr.strip().partition(chr(10))[0]}")
        return done.stdout


def _shape(net: _Namespace, devices: Sequence[str], link: Link | None) -> None:
    """Replace what holds packets back at the devices, then see whether the kernel has it."""
    lines = [line for device in devices for line in _lines(device, link)]
    found: dict[str, list[tuple[str, float | None]]] = {device: [] for device in devices}
    for shown in net.tc(*lines, "qdisc show"):
        if shown["dev"] in found:
            found[shown["dev"]].append((shown["kind"], shown["options"].get("rate")))
    for device, there in found.items():
        if there != _wanted(link):
            raise OSError(
                f"{device} should have {link or 'no shaped link'} and has {there}: shaping did not work"
            )


def _lines(device: str, link: Link | None) -> list[str]:
    """Commands for `tc -batch`: a clean device, then the delay if there is one, then the rate."""
    lines = [f"qdisc replace dev {device} root noqueue"]
    if link is None:
        return lines
    parent = "root"
    if link.delay_s is not None:
        lines.append(
            f"qdisc replace dev {device} root handle 1: netem delay {link.delay_s * 1e6:.3f}us limit {NETEM_PACKETS}"
        )
        parent = "parent 1:1"
    rate, burst, limit = tbf(link)
    lines.append(
        f"qdisc replace dev {device} {parent} handle 10: tbf rate {rate} burst {burst} limit {limit}"
    )
    return lines


def _wanted(link: Link | None) -> list[tuple[str, float | None]]:
    """Kind and rate in bytes a second of what `qdisc show` lists for a device, from its root down."""
    if link is None:
        return [("noqueue", None)]
    rate = ("tbf", link.rate_bits_per_s // 8)
    return [rate] if link.delay_s is None else [("netem", None), rate]


def _made() -> int:
    """A descriptor of a new namespace, made in a thread: where none may come back, only the thread is lost."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_there_and_back).result()


def _there_and_back() -> int:
    outside = os.open(OWN, os.O_RDONLY)
    try:
        _call("unshare", CLONE_NEWNET)
        inside = os.open(OWN, os.O_RDONLY)
        try:
            _call("setns", outside, CLONE_NEWNET)  # as leaving a box will have to
        except OSError:
            os.close(inside)
            raise
        return inside
    finally:
        os.close(outside)


def _call(name: str, *arguments: int) -> None:
    """A function of the C library: Python 3.11 has neither setns nor unshare."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _found(tool: str) -> str | None:
    return shutil.which(tool, path=os.environ.get("PATH", os.defpath) + SYSTEM_PATH)
