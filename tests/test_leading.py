"""Where node 0 leads: at an address of its own that the other nodes reach."""

import msgspec
import pytest

from bench import interfaces, leading
from bench.errors import UsageError
from bench.machine import Nic
from tests.hosts import cpu_host


def nic(name, address, kind="ethernet"):
    """An interface that is up."""
    return Nic(name=name, speed_mbit=1000, up=True, address=address, loopback=name == "lo", kind=kind)


LO, ETH0, ETH1 = nic("lo", "127.0.0.1", "loopback"), nic("eth0", "10.0.0.1"), nic("eth1", "10.1.0.1")
DOCKER = nic("docker0", "172.17.0.1", "virtual")


@pytest.fixture
def own(monkeypatch):
    """The address that a name leads to here, with these interfaces, where it resolves to `found`."""

    def address(name, found, nics, interface=None):
        addresses = {nic.address for nic in nics} | {"127.0.1.1"}
        monkeypatch.setattr(interfaces, "resolve", lambda asked: found)
        monkeypatch.setattr(interfaces, "is_own", lambda address: address in addresses)
        return leading._resolved(name, msgspec.structs.replace(cpu_host(), nics=nics), interface)

    return address


def test_a_name_leads_to_an_address_of_this_node(own):
    """The first of its own; one that others reach before loopback."""
    assert own("n0", ["192.0.2.1", "127.0.1.1", "10.1.0.1"], [LO, ETH0, ETH1]) == "10.1.0.1"
    assert own("localhost", ["127.0.0.1"], [LO, ETH0]) == "127.0.0.1"
    assert own("127.0.0.1", ["127.0.0.1"], [LO, ETH0]) == "127.0.0.1"


def test_a_name_that_stands_for_loopback_leads_to_the_card(own):
    """Debian's installer gives a host's own name 127.0.1.1: the interface that is named, or the only one."""
    assert own("n0", ["127.0.1.1"], [LO, ETH0, DOCKER]) == "10.0.0.1"
    assert own("n0", ["127.0.1.1"], [LO, DOCKER]) == "172.17.0.1"
    assert own("n0", ["127.0.1.1"], [LO, ETH0, ETH1], "eth1") == "10.1.0.1"


@pytest.mark.parametrize(
    ("found", "nics", "text"),
    [
        ([], [ETH0], "this node cannot resolve that name"),
        (["192.0.2.1"], [ETH0], r"is 192\.0\.2\.1, which is no address of this node \(eth0 10\.0\.0\.1\)"),
        (["127.0.1.1"], [LO, ETH0, ETH1], r"no other one reaches: .*\(eth0 10\.0\.0\.1, eth1 10\.1\.0\.1\)"),
        (["127.0.1.1"], [LO], r"no other one reaches: .*\(none is up\)"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(own, found, nics, text):
    """One line with the name, what it stands for, and what this node has."""
    with pytest.raises(UsageError, match=f"^--lead n0.*{text}"):
        own("n0", found, nics)
