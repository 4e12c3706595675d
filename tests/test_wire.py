"""Messages between nodes: they arrive as they were, once, and only from who knows the secret."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("torch")

from bench import wire
from bench.errors import UsageError
from bench.wire import CHUNK_BYTES, NotSigned, WireLost

SECRET = b"a secret for tests"
KEY = "up/1/1/0"


@pytest.fixture
def ends():
    """The node that leads, and one that follows."""
    leader = wire.host("127.0.0.1", 0, SECRET)
    follower = wire.join("127.0.0.1", leader.port, SECRET, limit_s=5)
    leader.session = follower.session = "5e55"
    return leader, follower


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, (9 << 20) + 3])
def test_a_message_arrives_as_it_was_and_leaves_nothing(ends, size):
    """Bit for bit, whether in one chunk or in several; taken, it is gone from the store with all its chunks."""
    leader, follower = ends
    before, sent = leader._store.num_keys(), os.urandom(size)
    follower.put(KEY, sent)
    assert leader.wait([KEY], 5)
    assert leader.take(KEY) == sent
    assert not leader.there(KEY)
    assert leader._store.num_keys() == before


def test_no_chunk_is_larger_than_the_store_takes(ends, monkeypatch):
    """More than 8 MiB in one value would reset the connection."""
    _, follower = ends
    sizes = []
    plain = follower._store.set
    monkeypatch.setattr(
        follower, "_store", type("Store", (), {"set": lambda _, k, v: (sizes.append(len(v)), plain(k, v))})()
    )
    follower.put(KEY, bytes(20 << 20))
    assert len(sizes) == 5
    assert max(sizes) < 8 << 20


def test_a_message_that_is_looked_at_stays(ends):
    """`look` says None where nothing is, and reads what is written over and over."""
    leader, follower = ends
    assert leader.look("where/1/1") is None
    for text in (b"one", b"two"):
        follower.put("where/1/1", text)
        assert follower.look("where/1/1") == text  # in the order of one connection
    assert leader.look("where/1/1") == b"two"


def arrived(end, key):
    """A message's bytes, once they are there: nobody confirms a `put`."""
    assert end.wait([key], 5)
    return end.look(key)


def altered(value, at):
    """A value with one bit of the byte at `at` the other way."""
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]


@pytest.mark.parametrize("at", [0, wire.MAC_BYTES + wire.COUNT_BYTES, -1])
def test_an_altered_message_is_refused(ends, at):
    """One bit of the HMAC, or of the payload's first or last byte, is enough."""
    leader, follower = ends
    follower.put(KEY, b"run this")
    full = f"scalemark/5e55/{KEY}"
    assert arrived(leader, KEY) == b"run this"
    value = leader._store.get(full)
    leader._store.set(full, altered(value, at % len(value)))
    with pytest.raises(NotSigned, match="not signed with this study's secret"):
        leader.take(KEY)


def test_an_altered_chunk_is_refused(ends):
    """The HMAC is over all chunks."""
    leader, follower = ends
    follower.put(KEY, bytes(CHUNK_BYTES + 10))
    assert arrived(leader, KEY) == bytes(CHUNK_BYTES + 10)
    leader._store.set(f"scalemark/5e55/{KEY}#1", b"0123456789")
    with pytest.raises(NotSigned):
        leader.take(KEY)


@pytest.mark.parametrize("other", ["scalemark/5e55/up/1/1/1", "scalemark/0ther/up/1/1/0"])
def test_a_message_cannot_be_said_again(ends, other):
    """A signed value copied to the next place, or into another study, does not fit its key."""
    leader, follower = ends
    follower.put(KEY, b"done")
    assert arrived(leader, KEY) == b"done"
    leader._store.set(other, leader._store.get(f"scalemark/5e55/{KEY}"))
    leader.session = other.split("/")[1]
    with pytest.raises(NotSigned):
        leader.take(other.split("/", 2)[2])


def test_another_secret_is_refused(ends):
    """Both ways: neither side takes what the other one says."""
    leader, _ = ends
    stranger = wire.join("127.0.0.1", leader.port, b"another secret", limit_s=5)
    stranger.session = leader.session
    stranger.put(KEY, b"let me in")
    assert leader.wait([KEY], 5)
    with pytest.raises(NotSigned):
        leader.take(KEY)
    leader.put("down/1/1/0", b"hello")
    with pytest.raises(NotSigned):
        stranger.take("down/1/1/0")


def test_a_value_too_short_to_be_a_message_is_refused(ends):
    """Whatever stands there: it is read as a message that nobody signed."""
    leader, _ = ends
    for value in (b"", b"x", bytes(wire.MAC_BYTES)):
        leader._store.set(f"scalemark/5e55/{KEY}", value)
        with pytest.raises(NotSigned):
            leader.take(KEY)


def test_a_number_of_chunks_that_nobody_signed_is_not_believed(ends, monkeypatch):
    """Four thousand million chunks are not asked for: the first that is missing ends it at once."""
    leader, _ = ends
    asked = []

    class Store:
        def get(self, name):
            asked.append(name)
            return bytes(wire.MAC_BYTES) + b"\xff" * wire.COUNT_BYTES

        def check(self, names):
            return names == asked

    monkeypatch.setattr(leader, "_store", Store())
    with pytest.raises(NotSigned):
        leader.take(KEY)
    assert len(asked) == 1


def test_waiting_is_for_all_and_ends_by_itself(ends):
    """False when the time is up and one of them has not come; True once all are there."""
    leader, follower = ends
    follower.put("a", b"")
    assert not leader.wait(["a", "b"], 0.05)
    assert not leader.there("a", "b")
    follower.put("b", b"")
    assert leader.wait(["a", "b"], 5)
    assert leader.there("a", "b")


def test_studies_do_not_see_each_other(ends):
    """Keys of another session are other keys; those that begin with / are before any session."""
    leader, follower = ends
    follower.session = "other"
    assert [follower.count("seat/1"), follower.count("seat/1"), leader.count("seat/1", 0)] == [1, 2, 0]
    assert [follower.count("/refused/1"), leader.count("/refused/1", 0)] == [1, 1]


def test_another_connection_goes_on_with_the_same_session(ends):
    """What a thread of its own needs."""
    leader, follower = ends
    follower.again().put(KEY, b"from a thread")
    assert leader.wait([KEY], 5)
    assert leader.take(KEY) == b"from a thread"


def test_a_store_that_ends_is_told(ends):
    """Every request then raises WireLost, which is no timeout."""
    leader, follower = ends
    leader._store = None
    for request in (
        lambda: follower.wait([KEY], 0.5),
        lambda: follower.there(KEY),
        lambda: follower.count("beat"),
        lambda: follower.look(KEY),
    ):
        with pytest.raises(WireLost):
            request()


class Deaf:
    """A store behind a cable that was pulled: a request of torch's waits for ever."""

    def __init__(self):
        self.waiting = threading.Event()

    def check(self, keys):
        self.waiting.wait()

    wait = add = lambda self, *_: self.waiting.wait()


def test_a_store_that_does_not_answer_is_told():
    """A request ends within its limit, whatever it is; waiting for a message has its own time besides."""
    store = Deaf()
    cut_off = wire.Wire(wire.Limited(store, 0.05), SECRET, "192.0.2.1", 29400)
    with pytest.raises(WireLost, match="no answer for 0 s"):
        cut_off.there(KEY)
    with pytest.raises(WireLost):
        cut_off.wait([KEY], 0.05)
    store.waiting.set()


THAWED = """
import time
from bench.wire import Limited

class Store:
    def check(self, keys):
        print("asked", flush=True)
        time.sleep(0.5)
        time.sleep(0.3)  # the other thread is sure to look first
        return keys

print(Limited(Store(), 0.6).check(["key"]), flush=True)
"""


def test_a_process_that_was_frozen_takes_its_answer():
    """Longer than the limit of its request: it does not take the store for lost when it wakes up."""
    process = subprocess.Popen([sys.executable, "-c", THAWED], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=20)[0] == "['key']\n"


def test_nobody_at_the_port_is_told():
    """Joining ends within its limit."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(WireLost):
        wire.join("127.0.0.1", port, SECRET, limit_s=0.5)


def test_the_store_listens_at_its_own_address_only(ends):
    """torch alone would listen on every address of the host."""
    leader, _ = ends
    socket.create_connection(("127.0.0.1", leader.port), 2).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", leader.port), 2)


def test_a_port_that_is_taken_is_named(ends):
    """One line: which address, and what to do."""
    leader, _ = ends
    with pytest.raises(
        UsageError, match=rf"--lead 127.0.0.1:{leader.port}: the port is in use: give another"
    ):
        wire.host("127.0.0.1", leader.port, SECRET)


def test_an_address_of_another_node_is_named():
    """192.0.2.1 is for documentation: no host has it."""
    with pytest.raises(
        UsageError, match=r"this node has no address 192\.0\.2\.1: node 0 leads, at an address of its"
    ):
        wire.host("192.0.2.1", 0, SECRET)


def test_torch_that_cannot_be_imported_leaves_its_log_level_alone(monkeypatch):
    """It is quiet for one import only: ranks have their own level, whatever came of it."""
    monkeypatch.delenv(wire.LOG_LEVEL, raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(ImportError):
        wire.join("127.0.0.1", 1, SECRET)
    assert wire.LOG_LEVEL not in os.environ
