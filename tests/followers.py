"""Nodes of a study without processes or a network: a store in memory, followers that say what a test wants."""

import threading
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import door, joint, nodes, seats
from bench import messages as m
from bench.launch import Engine
from bench.nodes import Team
from bench.records import Member, Outcome, Part
from bench.sameness import mine
from bench.wire import NotSigned, Wire
from tests.traces import trace

SECRET = b"a secret for tests"
MODULES = (door, joint, nodes, seats)
HASTE = {"SILENT_S": 1.0, "LOOK_S": 0.02, "LIVELY_S": 0.2, "GRACE_S": 0.1, "STOPPED_S": 0.5, "BYE_S": 0.5}


class Store:
    """The part of torch's TCPStore that a Wire needs, in memory."""

    def __init__(self):
        self.values, self.counts, self.lock = {}, {}, threading.Lock()

    def set(self, key, value):
        self.values[key] = bytes(value)

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)

    def delete_key(self, key):
        return self.values.pop(key, None) is not None

    def add(self, key, more):
        with self.lock:
            self.counts[key] = self.counts.get(key, 0) + more
            return self.counts[key]


class MemoryWire(Wire):
    """A Wire whose store is in memory; everything is signed as on a real one."""

    def again(self, limit_s=0.0):
        other = MemoryWire(self._store, self._secret, self.host, self.port)
        other.session = self.session
        return other

    def wait(self, keys, limit_s):
        end = time.monotonic() + limit_s
        while not self.there(*keys):
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True


def wire(store, secret=SECRET):
    """The wire of one node."""
    return MemoryWire(store, secret, "10.0.0.1", 29400)


def member(node):
    """n0, n1, ... on loopback."""
    return Member(node=node, hostname=f"n{node}", address="127.0.0.1", interface="lo")


class Puppet:
    """A follower in a thread: it takes its seat and answers as a real one does, until it is told to fall silent."""

    def __init__(self, leader, node, versions=None, secret=SECRET, ahead_s=0.0, part=None, port=1):
        """`part` gives its part of a launch, or None where that runs until it is told to stop."""
        self.wire = wire(leader._store, secret)
        self.wire.session = leader.session
        self.node, self.versions, self.ahead_s, self.port = node, versions or mine(), ahead_s, port
        self.part = part or (lambda launch: good_part(launch, node))
        self.heard, self.alive, self._sent, self._read = [], True, 0, 0
        self.frozen = False  # it does nothing until it is thawed
        self.stop = True  # whether it stops when it is told to
        self.seat = self.wire.count(f"seat/{node}")
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def say(self, message):
        """To the leader."""
        self.wire.put(f"up/{self.node}/{self.seat}/{self._sent}", m.encode(message))
        self._sent += 1

    def leave(self, why="was stopped by a signal"):
        """It ends, and says so."""
        self.alive = False
        self.thread.join()
        self.say(m.Left(why=why))
        self.wire.count(f"bye/{self.node}/{self.seat}")

    def kinds(self):
        """Names of what it has heard."""
        return [type(message).__name__ for message in self.heard]

    def _live(self):
        self.say(m.Hello(hostname=f"n{self.node}", pid=1, versions=self.versions))
        while self.alive:
            if self.frozen:
                time.sleep(0.01)
                continue
            self.wire.count(f"beat/{self.node}/{self.seat}")
            key = f"down/{self.node}/{self.seat}/{self._read}"
            if self.wire.wait([key], 0.02):
                self._read += 1
                try:
                    self.heard.append(m.down(self.wire.take(key)))
                except NotSigned:
                    return
                self._answer(self.heard[-1])

    def _answer(self, message):
        if isinstance(message, m.Welcome):
            self.say(m.Ready(member=member(self.node), versions=self.versions, port=self.port, token=b"t"))
        elif isinstance(message, m.Ping):
            self.say(m.Pong(monotonic_ns=time.monotonic_ns() + int(self.ahead_s * 1e9)))
        elif isinstance(message, m.Run) and (part := self.part(message.launch)) is not None:
            self.say(m.Done(launch=message.launch.launch, part=part))
        elif isinstance(message, m.Stop) and self.stop:
            self.say(m.Done(launch=message.launch, part=Part(host=f"n{self.node}", stopped=True)))
        elif isinstance(message, m.End | m.Refused | m.GivenUp):
            self.wire.count(f"bye/{self.node}/{self.seat}")
            self.alive = False


def until(true):
    """Wait until something is true."""
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def good_part(launch, node):
    """A node's part of a launch: its ranks ended well."""
    ranks = launch.case.ranks
    traces = (trace(launch.node * ranks + r, local_rank=r, node=launch.node) for r in range(ranks))
    return Part(node=launch.node, host=f"n{node}", traces=tuple(traces))


@contextmanager
def leading(count, limit_s=5.0, watch=lambda: None):
    """A Team of so many nodes in memory, and what it has said."""
    said = []
    with Team(wire(Store()), member(0), mine(), count, said.append, watch, limit_s) as team:
        yield team, said


def hurry(monkeypatch):
    """Silence and grace are over soon."""
    for module in MODULES:
        for name, seconds in HASTE.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, seconds)


class StandInEngine(Engine):
    """An engine that runs nothing: its ranks have ended well when `done` says so, asked at every tick."""

    def __init__(self, done=lambda: True):
        super().__init__(Path("never"))
        self.done, self.killed = done, False

    def ready(self):
        """At once."""

    def ask(self, launch, tick):
        """Tick until the ranks are done; the launch's time limit is not this one's to keep."""
        while True:
            tick()
            if self.done():
                break
            time.sleep(0.005)
        for one in good_part(launch, 0).traces:
            Path(launch.scratch, f"rank{one.local_rank}.json").write_bytes(msgspec.json.encode(one))
        return Outcome(launch=launch.launch)

    def kill(self):
        self.killed = True
