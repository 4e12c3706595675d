"""What the nodes of a study say to one another: frozen values, told apart by their type."""

from typing import Any

import msgspec

from bench.case import Case
from bench.errors import BenchError
from bench.records import Launch, Member, Pair, Part
from bench.sameness import Versions


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Anything that travels."""


class Hello(Message, frozen=True):
    """A follower's first word. `token` is new each time: only this study's leader can send it back, signed."""

    hostname: str
    pid: int
    versions: Versions
    token: str = ""


class Welcome(Message, frozen=True):
    """The leader's answer: what will run, so that the follower can look at its own code for it."""

    cases: tuple[Case, ...]
    token: str = ""  # the Hello's


class Refused(Message, frozen=True):
    """The leader's other answer."""

    why: str


class Ready(Message, frozen=True):
    """A follower has made what its cases need. `port` and `token`: where other nodes measure the way to it."""

    member: Member
    versions: Versions
    port: int
    token: bytes


class Measure(Message, frozen=True):
    """Measure the way to another node."""

    pair: Pair
    address: str
    port: int
    token: bytes


class Measured(Message, frozen=True):
    """What came of it. `clock_ahead_s`: of the second node's wall clock."""

    pair: Pair
    clock_ahead_s: float | None = None


class Block(Message, frozen=True):
    """A new block begins: a fresh engine."""

    number: int


class Ping(Message, frozen=True):
    """What does your monotonic clock say?"""


class Pong(Message, frozen=True):
    """CLOCK_MONOTONIC of this node."""

    monotonic_ns: int


class Run(Message, frozen=True):
    """Run your part of a launch."""

    launch: Launch


class Stop(Message, frozen=True):
    """End the running launch: another node has failed. Nothing, where none runs."""

    launch: str


class Done(Message, frozen=True):
    """A follower's part of a launch."""

    launch: str
    part: Part


class End(Message, frozen=True):
    """The study is over; or it does not begin, and `why`."""

    why: str | None = None


class GivenUp(Message, frozen=True):
    """The study goes on without this node, which may still live."""

    why: str


class Left(Message, frozen=True):
    """A follower ends before the study does."""

    why: str


Up = Hello | Ready | Measured | Pong | Done | Left
Down = Welcome | Refused | Measure | Block | Ping | Run | Stop | End | GivenUp


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """How far a follower's launch has come; written over and over."""

    state: str = ""
    step: int = 0
    steps: int = 0


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's first word, for whoever connects. Every later key starts with `nonce`.

    With the token of a Hello, which no earlier session had, nothing of one can be replayed to either side.
    """

    nonce: str
    nodes: int


_up = msgspec.msgpack.Decoder(Up)
_down = msgspec.msgpack.Decoder(Down)
encode = msgspec.msgpack.Encoder().encode


def up(data: bytes) -> Up:
    """A follower's message. Raises BenchError for one of another version."""
    return _read(_up, data)


def down(data: bytes) -> Down:
    """A leader's message. Raises BenchError for one of another version."""
    return _read(_down, data)


def _read(decoder: Any, data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise BenchError(f"another version of scalemark: its message cannot be read ({error})") from None
