"""Signed messages between the nodes of a study, over torch's TCPStore: one address, one port.

The store has no authentication: whoever reaches the port can read and write keys. So every message carries an
HMAC of the study's secret over its key and its bytes, and every key is used once. Values are cut in
chunks (more than 8 MiB reset the connection), and the first chunk is written last: where it is, all are.
"""

import hashlib
import hmac
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from bench.errors import BenchError, UsageError

CHUNK_BYTES = 4 << 20
MAC_BYTES = 32
COUNT_BYTES = 4
LIMIT_S = 10.0  # of one request
MARGIN_S = (
    1.0  # beyond a second try of torch's: a thread that is given up may not come back while Python ends
)
THAW_S = 1.0  # for an answer that had come while this process was frozen
LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


class WireLost(BenchError):
    """The store does not answer any more, or its connection is closed."""


class NotSigned(BenchError):
    """A message that does not carry the HMAC of this study's secret."""


class Wire:
    """One client of the study's store. Not to be shared between threads: `again()` makes another."""

    def __init__(self, store: Any, secret: bytes, host: str, port: int) -> None:
        self._store, self._secret = store, secret
        self.host, self.port = host, port
        self.session = ""  # what every key starts with, once the leader has named it

    def again(self, limit_s: float = LIMIT_S) -> "Wire":
        """Another connection to the same store."""
        other = join(self.host, self.port, self._secret, limit_s)
        other.session = self.session
        return other

    def put(self, key: str, payload: bytes) -> None:
        """Write a message; nobody confirms it."""
        key = self._full(key)
        chunks = [payload[at : at + CHUNK_BYTES] for at in range(0, len(payload), CHUNK_BYTES)] or [b""]
        with _told():
            for number, chunk in enumerate(chunks[1:], start=1):
                self._store.set(f"{key}#{number}", chunk)
            head = self._mac(key, payload) + len(chunks).to_bytes(COUNT_BYTES, "big")
            self._store.set(key, head + chunks[0])

    def take(self, key: str) -> bytes:
        """Read a message that is there, and remove it. Raises NotSigned."""
        return self._read(self._full(key), keep=False)

    def look(self, key: str) -> bytes | None:
        """Read a message and leave it; None where there is none. Raises NotSigned."""
        return self._read(self._full(key), keep=True) if self.there(key) else None

    def _read(self, key: str, keep: bool) -> bytes:
        with _told():
            head = self._store.get(key)
            count = int.from_bytes(head[MAC_BYTES : MAC_BYTES + COUNT_BYTES], "big")
            more = range(1, count)  # not signed yet: no list as long as it says
            parts = [head[MAC_BYTES + COUNT_BYTES :], *(self._chunk(key, number) for number in more)]
            payload = b"".join(parts) if more else parts[0]
            for name in () if keep else (key, *(f"{key}#{number}" for number in more)):
                self._store.delete_key(name)
        if not hmac.compare_digest(head[:MAC_BYTES], self._mac(key, payload)):
            raise _not_signed(key)
        return payload

    def _chunk(self, key: str, number: int) -> Any:
        """It is there, if the one that was written last is ours: who made that up keeps nobody waiting."""
        if not self._store.check([f"{key}#{number}"]):
            raise _not_signed(key)
        return self._store.get(f"{key}#{number}")

    def there(self, *keys: str) -> bool:
        """Whether all of these messages have come."""
        with _told():
            return bool(self._store.check([self._full(key) for key in keys]))

    def wait(self, keys: list[str], limit_s: float) -> bool:
        """Wait until all of these messages have come, or the time is up."""
        from torch.distributed import DistNetworkError, DistStoreError

        try:
            self._store.wait([self._full(key) for key in keys], timedelta(seconds=limit_s))
        except DistNetworkError as error:
            raise WireLost(str(error)) from None
        except DistStoreError:
            return False
        return True

    def count(self, key: str, more: int = 1) -> int:
        """Add to a counter and return it; 0 reads it."""
        with _told():
            return int(self._store.add(self._full(key), more))

    def _full(self, key: str) -> str:
        return f"scalemark{key}" if key.startswith("/") else f"scalemark/{self.session}/{key}"

    def _mac(self, key: str, payload: bytes) -> bytes:
        mac = hmac.new(self._secret, key.encode() + b"\0", hashlib.sha256)
        mac.update(payload)
        return mac.digest()


def host(address: str, port: int, secret: bytes, limit_s: float = LIMIT_S) -> Wire:
    """Open the study's store on one address of this node; port 0 takes a free one. Raises UsageError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise UsageError(_no_port(address, port, error)) from None
    port = listener.getsockname()[1]
    store = _store(address, port, limit_s, is_master=True, master_listen_fd=listener.detach())
    return Wire(store, secret, address, port)


def join(address: str, port: int, secret: bytes, limit_s: float = LIMIT_S) -> Wire:
    """Connect to a study's store. Raises WireLost where nobody answers within `limit_s`."""
    with _told():
        store = _within(2 * limit_s + MARGIN_S, lambda: _store(address, port, limit_s, is_master=False))
        return Wire(Limited(store), secret, address, port)


def _within(limit_s: float, make: Callable[[], Any]) -> Any:
    """What `make` returns. Raises WireLost where that takes too long: torch waits for a listener that says nothing."""
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            made.set_exception(error)

    threading.Thread(target=run, daemon=True, name="connect").start()
    try:
        return made.result(limit_s)
    except TimeoutError:
        raise WireLost(f"something answers there, but is no study's store (waited {limit_s:.0f} s)") from None


class Limited:
    """A store's client whose requests end: torch's own wait for ever once a cable is pulled or the leader is frozen.

    They are made one at a time in a thread, which is given up with the first that has no answer in time.
    """

    def __init__(self, store: Any, limit_s: float = LIMIT_S) -> None:
        self._store, self._limit_s = store, limit_s
        self._asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_answer, args=(self._asked,), daemon=True, name="store").start()
        weakref.finalize(self, self._asked.put, None)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *words: self._ask(getattr(self._store, name), words, self._limit_s)

    def wait(self, keys: list[str], limit: timedelta) -> None:
        """Wait until all of them are there, or the time is up."""
        self._ask(self._store.wait, (keys, limit), self._limit_s + limit.total_seconds())

    def _ask(self, request: Callable[..., Any], words: tuple[Any, ...], limit_s: float) -> Any:
        answer: Future[Any] = Future()
        asked_s = time.monotonic()
        self._asked.put((answer, request, words))
        with suppress(TimeoutError):
            return answer.result(limit_s)
        if time.monotonic() - asked_s > limit_s + THAW_S:  # this process was frozen: its answer may have come
            with suppress(TimeoutError):
                return answer.result(THAW_S)
        raise WireLost(f"no answer for {limit_s:.0f} s")


def _answer(asked: "queue.SimpleQueue[Any]") -> None:
    while (one := asked.get()) is not None:
        answer, request, words = one
        try:
            answer.set_result(request(*words))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            answer.set_exception(error)
        del one, answer, request, words  # of a store that nobody else holds, nothing is kept


def _store(address: str, port: int, limit_s: float, **kind: Any) -> Any:
    with _quiet_torch():
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(address, port, timeout=timedelta(seconds=limit_s), wait_for_workers=False, **kind)
    store.set_timeout(timedelta(seconds=min(limit_s, LIMIT_S)))  # of a request, once there is a connection
    return store


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """What goes wrong with a store is raised: torch, if it is imported in here, does not print its stack as well."""
    level = os.environ.get(LOG_LEVEL)
    os.environ[LOG_LEVEL] = level or "FATAL"
    try:
        yield
    finally:
        if level is None:
            os.environ.pop(LOG_LEVEL, None)  # ranks have their own


def _not_signed(key: str) -> NotSigned:
    return NotSigned(f"{key}: not signed with this study's secret")


def _no_port(address: str, port: int, error: OSError) -> str:
    where = f"--lead {address}:{port}"
    if error.errno == 99:
        return f"{where}: this node has no address {address}: node 0 leads, at an address of its own"
    if error.errno == 98:
        return f"{where}: the port is in use: give another one, or stop the process that holds it (ss -tlnp)"
    return f"{where}: {error.strerror or error}"


@contextmanager
def _told() -> Iterator[None]:
    """torch's errors of a store as one of ours."""
    try:
        yield
    except (WireLost, NotSigned, UsageError):
        raise
    except RuntimeError as error:  # DistNetworkError, DistStoreError
        raise WireLost(str(error).splitlines()[0][:300]) from None
