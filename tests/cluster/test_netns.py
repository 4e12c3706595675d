"""Nodes of one box: who reaches whom, how fast, and that nothing of it is left."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from bench import interfaces, netcheck, netns
from bench.link import Link, parse
from bench.netns import Box

TOKEN = b"a token"
REASON = netns.why_not()
needs_box = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.fixture
def box():
    """Two nodes."""
    with Box(2) as made:
        yield made


def measured(box, source, sink, times=1):
    """What `sink` measures of what comes from `source`."""
    box.enter(source)
    with netcheck.Responder(box.address(source), TOKEN) as responder:
        box.enter(sink)
        found = [netcheck.measure(responder.address, responder.port, TOKEN, 0.2) for _ in range(times)]
    box.enter(None)
    return found


def goodput(box, source, sink):
    """Bits a second: the best of three, as other work of this host can only lower it."""
    return max(found.bits_per_s for found in measured(box, source, sink, times=3))


def namespace_of(box, node):
    """What the kernel calls the network namespace of a node."""
    return subprocess.run(
        box.argv(node, ["readlink", "/proc/self/ns/net"]), capture_output=True, text=True
    ).stdout.strip()


def holders(namespaces):
    """Processes that are in one of these namespaces or hold one open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            links = [process / "ns/net", *(process / "fd").iterdir()]
            for link in links:
                with contextlib.suppress(OSError):
                    found |= {process.name} if os.readlink(link) in namespaces else set()
    return found


@needs_box
def test_a_node_has_lo_and_eth0_with_its_address(box):
    """And nothing else; a command in it and a thread that entered it see the same."""
    for node in (0, 1):
        box.enter(node)
        inside = {name: entries[0].address for name, entries in psutil.net_if_addrs().items()}
        box.enter(None)
        assert inside == {"lo": "127.0.0.1", "eth0": box.address(node)}
        shown = subprocess.run(
            box.argv(node, ["ip", "-json", "address"]), capture_output=True, text=True
        ).stdout
        local = {entry["ifname"]: entry["addr_info"][0]["local"] for entry in json.loads(shown)}
        assert local == inside


@needs_box
def test_nodes_reach_each_other_and_nothing_else(box):
    """At once, both ways; this host and the internet have no route."""
    before = set(psutil.net_if_addrs())
    assert measured(box, 0, 1)[0].bits_per_s > 1e8
    assert measured(box, 1, 0)[0].bits_per_s > 1e8
    box.enter(0)
    with pytest.raises(OSError, match="no interface leads to"):
        interfaces.towards("192.0.2.1", 80)
    assert interfaces.towards(box.address(1), 80) == ("eth0", box.address(0))
    box.enter(None)
    assert set(psutil.net_if_addrs()) == before


@needs_box
def test_what_a_process_uses_is_seen_by_its_connections(box):
    """A connection to the other node is eth0's; one to the own address is no interface's."""
    box.enter(1)
    theirs = socket.create_server((box.address(1), 0))
    box.enter(0)
    ours = socket.create_server((box.address(0), 0))
    with ours, theirs, socket.create_connection(ours.getsockname()):
        assert interfaces.used() == ()
        with socket.create_connection(theirs.getsockname()):
            assert interfaces.used() == ("eth0",)
            assert interfaces.used(other_than=[theirs.getsockname()[1]]) == ()
    box.enter(None)


@needs_box
@pytest.mark.parametrize("text", ["100mbit", "1gbit"])
def test_a_shaped_link_carries_its_rate(box, text):
    """Nearly all of it as TCP's own bytes, in both directions: 95.6 % on a host with nothing else to do."""
    link = parse(text)
    box.shape(link)
    for source, sink in ((0, 1), (1, 0)):
        share = goodput(box, source, sink) / link.rate_bits_per_s
        assert 0.85 < share < 1.05, (source, sink)


@needs_box
def test_the_last_shape_holds(box):
    """Shaping again is fine, with the same link or another; without one the network is as it was."""
    for text in ("100mbit", "100mbit", "50mbit"):
        box.shape(parse(text))
    assert 0.85 < goodput(box, 0, 1) / 50e6 < 1.05
    box.shape(None)
    box.shape(None)
    assert goodput(box, 0, 1) > 500e6


def pour(listener):
    """Send to whoever connects, until it hangs up."""
    with contextlib.suppress(OSError), listener.accept()[0] as connection:
        while True:
            connection.sendall(bytes(1 << 16))


def drain(connection, counted):
    """Count the bytes that arrive, until the connection is shut down."""
    while data := connection.recv(1 << 16):
        counted[connection] += len(data)


@needs_box
@pytest.mark.parametrize("flows", [((0, 2), (1, 2)), ((0, 1), (0, 2))], ids=["into one", "out of one"])
def test_a_node_has_one_link_for_all_that_it_receives_and_all_that_it_sends(flows):
    """Two streams that share a node's link, in either direction, get its rate between them."""
    counted = Counter()
    with Box(3) as box, ThreadPoolExecutor(4) as pool, contextlib.ExitStack() as stack:
        box.shape(parse("100mbit"))
        for source, sink in flows:
            box.enter(source)
            listener = stack.enter_context(socket.create_server((box.address(source), 0)))
            box.enter(sink)
            connection = stack.enter_context(socket.create_connection(listener.getsockname()))
            pool.submit(pour, listener)
            pool.submit(drain, connection, counted)
            stack.callback(connection.shutdown, socket.SHUT_RDWR)
        time.sleep(0.3)
        before, began = counted.total(), time.perf_counter()
        time.sleep(0.7)
        bits_per_s = (counted.total() - before) * 8 / (time.perf_counter() - began)
    assert len(counted) == 2
    assert 0.85 < bits_per_s / 100e6 < 1.05


@needs_box
def test_a_delay_is_one_way_or_is_refused(box):
    """Half a round trip is longer by it where the kernel has netem; elsewhere the kernel's refusal is an error."""
    link = parse("1gbit,5ms")
    if reason := netns.delay_why_not():
        assert reason == "this kernel has no netem: a link can have a rate, not a delay"
        with pytest.raises(OSError, match=r"^tc: "):
            box.shape(link)
    else:
        box.shape(link)
        assert 0.9 < measured(box, 0, 1)[0].latency_s / 5e-3 < 1.5


@needs_box
def test_a_link_that_the_kernel_did_not_make_is_an_error(box, monkeypatch):
    """What `tc` says it made is looked at, not believed."""
    monkeypatch.setattr(netns, "_lines", lambda device, link: [])
    with pytest.raises(OSError, match=r"^p0 should have 1gbit and has \[\('noqueue', None\)\]"):
        box.shape(parse("1gbit"))


def test_a_delay_comes_before_the_rate():
    """The words for tc: netem at the root, the token bucket in it; and what the kernel must then show."""
    link = Link(1e9, 2e-4)
    clean, delay, rate = netns._lines("p0", link)
    assert clean == "qdisc replace dev p0 root noqueue"
    assert delay == "qdisc replace dev p0 root handle 1: netem delay 200.000us limit 100000"
    assert rate.startswith("qdisc replace dev p0 parent 1:1 handle 10: tbf rate 1000000000bit burst ")
    assert netns._wanted(link) == [("netem", None), ("tbf", 125e6)]


@needs_box
def test_closing_a_box_leaves_nothing(box):
    """No process holds a namespace, no descriptor stays open, and the thread that had entered is back outside."""
    open_before = set(os.listdir("/proc/self/fd"))
    outside = os.readlink("/proc/thread-self/ns/net")
    with Box(3) as other:
        namespaces = {namespace_of(other, node) for node in range(3)}
        assert len(namespaces) == 3
        assert holders(namespaces) == {str(os.getpid())}
        other.enter(2)
        assert os.readlink("/proc/thread-self/ns/net") == namespace_of(other, 2)
    assert os.readlink("/proc/thread-self/ns/net") == outside
    assert holders(namespaces) == set()
    assert set(os.listdir("/proc/self/fd")) == open_before


OWNER = """
import os, time
from bench.link import parse
from bench.netns import Box
outside = os.readlink("/proc/self/ns/net")
with Box(2) as box:
    box.shape(parse("1gbit"))
    box.enter(0)
    held = {os.readlink(entry.path) for entry in list(os.scandir("/proc/self/fd")) if os.path.exists(entry.path)}
    print(*[name for name in held if name.startswith("net:") and name != outside], flush=True)
    time.sleep(60)
"""


@needs_box
def test_nothing_is_left_after_kill_9_of_the_owner():
    """Its three namespaces are held by nothing, it leaves no process, and this host has the interfaces it had."""
    before = set(psutil.net_if_addrs())
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    namespaces = set(owner.stdout.readline().split())
    assert len(namespaces) == 3
    assert holders(namespaces) == {str(owner.pid)}
    assert psutil.Process(owner.pid).children() == []
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 5
    while holders(namespaces) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert holders(namespaces) == set()
    assert set(psutil.net_if_addrs()) == before


@pytest.fixture
def asked(monkeypatch):
    """`why_not` and `delay_why_not`, asked anew, as root."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return netns.why_not.__wrapped__


def test_what_is_missing_is_said_in_one_line(asked, monkeypatch):
    """Root, a tool, or the kernel's leave; each with what to do where something can be done."""
    if not os.path.exists("/proc/self/ns/net"):
        assert asked() == "network namespaces need Linux"
        return
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert asked() == "network namespaces need root: run it with sudo"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(netns, "_found", lambda tool: None if tool in ("ip", "tc") else tool)
    assert asked() == "no ip and no tc on this host: install iproute2 and util-linux"
    monkeypatch.setattr(netns, "_found", lambda tool: tool)

    def refuse(name, *arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(netns, "_call", refuse)
    refused = "the kernel refuses network namespaces or shaped links: "
    assert asked() == f"{refused}Operation not permitted"


@needs_box
def test_one_who_may_not_come_back_does_not_leave(asked, monkeypatch):
    """Root of a container on its host's network may make a namespace and not return: asking leaves it where it is."""
    real = netns._call

    def one_way(name, *arguments):
        if name == "setns":
            raise PermissionError(1, "setns: Operation not permitted")
        real(name, *arguments)

    monkeypatch.setattr(netns, "_call", one_way)
    outside = os.readlink("/proc/thread-self/ns/net")
    assert asked().endswith("shaped links: setns: Operation not permitted")
    assert os.readlink("/proc/thread-self/ns/net") == outside
