"""Two nodes measure what is between them: round trips, one stream of bytes, and how far their clocks are apart."""

import contextlib
import hashlib
import hmac
import socket
import struct
import threading
import time

import msgspec

TIMEOUT_S = 3.0
ROUND_TRIPS = 20
RAMP_S = 0.05  # a stream's start: what a token bucket has saved up, and TCP finding its pace
MOST_BYTES = 256 * 1024 * 1024
CHUNK = 256 * 1024
ASK_TIME, ASK_BYTES = b"t", b"b"
TIME = struct.Struct("!d")
ALL_PAIRS_UP_TO = 32  # nodes; 31 rounds of a third of a second each


class Measured(msgspec.Struct, frozen=True):
    """What `measure` found. The clock is off by `clock_ahead_s`, give or take `latency_s`."""

    latency_s: float  # half of the shortest round trip of a few bytes
    bits_per_s: float | None  # that arrived here; None: too few for a rate
    clock_ahead_s: float  # the other node's wall clock less ours


class Responder:
    """Answers `measure` on a free port of an address until it is closed; whoever lacks the token is hung up on."""

    def __init__(self, address: str, token: bytes) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self._key = _key(token)
        self.address = address
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True, name=f"responder:{self.port}").start()

    def __enter__(self) -> "Responder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more connections. Those that are open end within the time limit."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`; closing alone does not
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True, name="responder").start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            _prepare(connection)
            if not hmac.compare_digest(_received(connection, len(self._key)), self._key):
                return
            while (asked := connection.recv(1)) == ASK_TIME:
                connection.sendall(TIME.pack(time.time()))
            if asked == ASK_BYTES:
                _pour(connection)


def measure(address: str, port: int, token: bytes, limit_s: float = 0.25) -> Measured:
    """Measure the way to a Responder, and for `limit_s` after a short ramp what it can send to us.

    Bytes are counted where they arrive, so that none count which only fill a buffer. Raises OSError with one line
    if it cannot be reached, does not answer in 3 s, or refuses the token.
    """
    try:
        with socket.create_connection((address, port), timeout=TIMEOUT_S) as connection:
            _prepare(connection)
            connection.sendall(_key(token))
            round_trip_s, ahead_s = min(_round_trip(connection) for _ in range(ROUND_TRIPS))
            connection.sendall(ASK_BYTES)
            return Measured(round_trip_s / 2, _rate(connection, limit_s), ahead_s)
    except OSError as error:
        raise OSError(f"{address} port {port}: {_reason(error)}") from error


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Pairs of nodes in rounds, each node in at most one pair a round, so that no two pairs share a link.

    Up to 32 nodes every pair meets once (the circle method). Beyond, each node meets those that are 1, 2, 4, 8, ...
    places away, counted around: rings and trees use these, and the number of pairs grows as n log n.
    """
    if nodes > ALL_PAIRS_UP_TO:
        return _packed(_strides(nodes))
    seats = list(range(nodes + nodes % 2))  # an odd one out meets an empty seat
    made = []
    for _ in seats[1:]:
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        made.append(sorted((min(pair), max(pair)) for pair in facing if max(pair) < nodes))
        seats.insert(1, seats.pop())
    return made


def _strides(nodes: int) -> list[tuple[int, int]]:
    strides = [1 << power for power in range(nodes.bit_length()) if 1 << power <= nodes // 2]
    pairs = [(node, (node + stride) % nodes) for stride in strides for node in range(nodes)]
    return list(dict.fromkeys((min(pair), max(pair)) for pair in pairs))


def _packed(pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Each pair in the first round in which both are free."""
    made: list[list[tuple[int, int]]] = []
    busy: list[set[int]] = []
    for pair in pairs:
        number = next((n for n, taken in enumerate(busy) if not taken & set(pair)), len(busy))
        if number == len(busy):
            made.append([])
            busy.append(set())
        made[number].append(pair)
        busy[number].update(pair)
    return made


def _round_trip(connection: socket.socket) -> tuple[float, float]:
    """Seconds of one round trip, and the other's clock less ours in the middle of it."""
    sent, began = time.time(), time.perf_counter()
    connection.sendall(ASK_TIME)
    (theirs,) = TIME.unpack(_received(connection, TIME.size))
    took_s = time.perf_counter() - began
    return took_s, theirs - (sent + took_s / 2)


def _rate(connection: socket.socket, limit_s: float) -> float | None:
    """Bits a second that arrive from the end of the ramp to the last arrival within the limit."""
    buffer = memoryview(bytearray(CHUNK))
    began = last = time.perf_counter()
    first, counted, total = None, 0, 0
    while total < MOST_BYTES and (first is None or last - first < limit_s):
        size = connection.recv_into(buffer)
        if not size:
            break
        last = time.perf_counter()
        total += size
        if first is not None:
            counted += size
        elif last - began >= RAMP_S:
            first = last
    return counted * 8 / (last - first) if first is not None and counted else None


def _pour(connection: socket.socket) -> None:
    """Send until the other end has had enough and hangs up, or until the most that it takes."""
    chunk = bytes(CHUNK)
    for _ in range(MOST_BYTES // CHUNK):
        connection.sendall(chunk)


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _received(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes; ConnectionResetError if the other end hangs up before."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return bytes(data)


def _key(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    if isinstance(error, ConnectionResetError):
        return "hung up: the token is another one, or the responder ended"
    return (error.strerror or str(error)).lower()
