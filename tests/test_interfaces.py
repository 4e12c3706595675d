"""Which interface leads where, and which ones a process uses, on a host made up for it."""

import socket
import threading
from types import SimpleNamespace

import psutil
import pytest

from bench import interfaces
from bench.interfaces import is_own, of_address, resolve, speed_mbit, towards, used

ADDRESSES = {
    "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
    "eth0": [
        (socket.AF_INET, "10.0.0.5"),
        (socket.AF_INET6, "fe80::5%eth0"),
        (psutil.AF_LINK, "02:00:00:00:00:05"),
    ],
    "ib0": [(socket.AF_INET, "10.9.0.5"), (socket.AF_INET6, "2001:db8::5")],
}


@pytest.fixture
def host(monkeypatch):
    """A host with lo, eth0 and ib0."""
    table = {
        name: [SimpleNamespace(family=family, address=address) for family, address in entries]
        for name, entries in ADDRESSES.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: table)


def connected(own, other, *, own_port=40000, port=29500, status=psutil.CONN_ESTABLISHED):
    """A connection as psutil gives it; one that listens has no other end."""
    end = SimpleNamespace(ip=other, port=port) if other else ()
    return SimpleNamespace(laddr=SimpleNamespace(ip=own, port=own_port), raddr=end, status=status)


@pytest.fixture
def uses(host, monkeypatch):
    """What `used` says of a process with these connections."""

    def answer(*connections, **options):
        monkeypatch.setattr(interfaces, "_connections", lambda process: list(connections))
        return used(**options)

    return answer


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.5", "eth0"),
        ("::ffff:10.0.0.5", "eth0"),
        ("fe80::5", "eth0"),
        ("2001:DB8:0::5", "ib0"),
        ("127.0.0.1", "lo"),
        ("127.0.1.1", "lo"),
        ("::1", "lo"),
        ("10.0.0.6", None),
    ],
)
def test_an_address_belongs_to_an_interface(host, address, name):
    """In any spelling of it; all of 127.0.0.0/8 is lo; others have none."""
    assert of_address(address) == name
    assert is_own(address) == (name is not None)


def test_connections_to_other_hosts_name_interfaces_most_used_first(uses):
    """By number of connections, whichever end opened them, as IPv4 or within IPv6."""
    assert uses(
        connected("10.9.0.5", "10.9.0.6"),
        connected("10.0.0.5", "10.0.0.7"),
        connected("::ffff:10.9.0.5", "::ffff:10.9.0.7", own_port=1234, port=40001),
        connected("2001:db8::5", "2001:db8::6"),
    ) == ("ib0", "eth0")


def test_equally_used_interfaces_are_in_the_order_of_names(uses):
    """The same connections give the same answer in any order."""
    both = connected("10.9.0.5", "10.9.0.6"), connected("10.0.0.5", "10.0.0.6")
    assert uses(*both) == uses(*reversed(both)) == ("eth0", "ib0")


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("10.0.0.5", "10.0.0.5"),
        ("10.0.0.5", "10.9.0.5"),
        ("127.0.0.1", "127.0.1.1"),
    ],
)
def test_connections_within_the_host_use_no_interface(uses, own, other):
    """Loopback, and ranks of one node that talk by its own address."""
    assert uses(connected(own, other)) == ()


def test_the_ports_of_others_are_left_out(uses):
    """The store's connections, at the leader's end and at a follower's, and what is not established."""
    there, here = (
        connected("10.0.0.5", "10.0.0.6", port=7000),
        connected("10.0.0.5", "10.0.0.6", own_port=7000),
    )
    assert uses(there, here) == ("eth0",)
    assert uses(there, here, other_than=(7000,)) == ()
    waiting = connected("10.0.0.5", "10.0.0.6", status=psutil.CONN_SYN_SENT)
    listening = connected("10.0.0.5", None, status=psutil.CONN_LISTEN)
    assert uses(waiting, listening) == ()


def test_connections_that_cannot_be_read_are_unknown(host, monkeypatch):
    """None, not an empty answer, for another user's process or one that is gone."""
    for error in (psutil.AccessDenied(), psutil.NoSuchProcess(1), PermissionError(), NotImplementedError()):

        def refuse(process, error=error):
            raise error

        monkeypatch.setattr(interfaces, "_connections", refuse)
        assert used() is None


def test_a_real_connection_on_loopback_is_seen_and_left_out():
    """psutil's own answer has what is needed."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        found = [c for c in interfaces._connections(psutil.Process()) if c.status == psutil.CONN_ESTABLISHED]
        assert client.getsockname() in [tuple(connection.laddr) for connection in found]
        assert client.getsockname()[0] not in (used() or ())


def test_loopback_is_reached_over_its_interface():
    """By name and by address; nothing needs to listen there."""
    name = of_address("127.0.0.1")
    assert towards("127.0.0.1", 9) == (name, "127.0.0.1")
    assert towards("localhost", 9)[0] == name


def test_the_interface_is_that_of_the_own_end(host, monkeypatch):
    """The first address that a route leads to decides; others are tried before."""

    def own(address, port):
        if address == "2001:db8::9":
            raise OSError("Network is unreachable")
        return "10.9.0.5"

    monkeypatch.setattr(interfaces, "_own_towards", own)
    monkeypatch.setattr(interfaces, "resolve", lambda host: ["2001:db8::9", "10.9.0.9"])
    assert towards("other", 1) == ("ib0", "10.9.0.5")


def test_a_host_that_is_out_of_reach_is_named(host, monkeypatch):
    """An unknown name and an address without a route are two different errors."""
    monkeypatch.setattr(interfaces, "resolve", lambda host: [])
    with pytest.raises(OSError, match=r"^other has no address$"):
        towards("other", 1)
    monkeypatch.setattr(interfaces, "resolve", lambda host: ["10.1.2.3"])
    monkeypatch.setattr(interfaces, "_own_towards", lambda address, port: "10.1.2.4")
    with pytest.raises(OSError, match=r"^no interface leads to other \(10\.1\.2\.3\)$"):
        towards("other", 1)


def test_names_resolve_to_each_address_once(monkeypatch):
    """In the resolver's order; unknown names give none."""
    answers = [(None, None, None, "", (address, 0)) for address in ("10.0.0.6", "10.0.0.6", "2001:db8::6")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    assert resolve("other") == ["10.0.0.6", "2001:db8::6"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: (_ for _ in ()).throw(socket.gaierror()))
    assert resolve("other") == []


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    """After the limit there is no answer, though the question is still open."""
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(20) and [])
    assert resolve("other", limit_s=0.01) == []
    answered.set()


def test_speed_is_what_the_kernel_gives(monkeypatch):
    """None for an interface without one, and for one that is not there."""
    speeds = {"eth0": 25000, "veth": 0, "virtual": 0xFFFF}
    states = {name: SimpleNamespace(speed=speed) for name, speed in speeds.items()}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    assert [speed_mbit(name) for name in (*speeds, "none")] == [25000, None, None, None]


def test_a_speed_without_hardware_is_none(tmp_path, monkeypatch):
    """The kernel makes one up for a container's interface; that of a bond or a VLAN is of the cards below it."""
    for path in ("eth0/device", "bond0/lower_eth0", "veth0"):
        (tmp_path / path).mkdir(parents=True)
    states = {path.name: SimpleNamespace(speed=10000) for path in tmp_path.iterdir()}
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    found = {name: speed_mbit(name, tmp_path) for name in states}
    assert found == {"eth0": 10000, "bond0": 10000, "veth0": None}
