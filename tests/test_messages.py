"""What nodes say to one another: told apart by its type, and the same on the other side, bit for bit."""

import random
import struct

import pytest

from bench import messages as m
from bench.case import Case
from bench.errors import BenchError
from bench.records import PHASES, Ended, Launch, Outcome, Pair, Part
from bench.sameness import mine
from tests.followers import member
from tests.traces import trace

LAUNCH = Launch(
    launch="x", case=Case(strategy="ddp", nodes=2), scratch="s", logs="l", conductor_pid=1, devices=(1, 0)
)
PAIR = Pair(first=0, second=1, latency_s=5e-5, bits_per_s=9.41e8)
UP = [
    m.Hello(hostname="n1", pid=7, versions=mine()),
    m.Ready(member=member(1), versions=mine(), port=4000, token=bytes(range(256))),
    m.Measured(pair=PAIR, clock_ahead_s=-0.25),
    m.Pong(monotonic_ns=2**62 + 1),
    m.Done(launch="x", part=Part(node=1)),
    m.Left(why="was stopped"),
]
DOWN = [
    m.Welcome(cases=(Case(), Case(model="mine:build", model_args={"width": 8}))),
    m.Refused(why="another secret"),
    m.Measure(pair=PAIR, address="10.0.0.2", port=4000, token=b"\0\xff"),
    m.Block(number=3),
    m.Ping(),
    m.Run(launch=LAUNCH),
    m.Stop(launch="x"),
    m.End(),
    m.GivenUp(why="no sign of life"),
]


@pytest.mark.parametrize(
    ("read", "message"),
    [*((m.up, one) for one in UP), *((m.down, one) for one in DOWN)],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else value.__name__,
)
def test_every_message_is_itself_on_the_other_side(read, message):
    """The same type with the same values."""
    assert read(m.encode(message)) == message


def test_no_message_is_left_out_above():
    """A new one belongs into the lists."""
    assert {type(one) for one in (*UP, *DOWN)} == set(m.Message.__subclasses__())


def bits(values):
    """Floats as they lie in memory: -0.0 is not 0.0."""
    return [struct.pack("<d", value) for value in values]


def test_a_trace_survives_the_trip_bit_for_bit():
    """Durations of any size, zeros of both signs, what is null, and what has died when."""
    draw = random.Random(4)
    odd = (
        0.0,
        -0.0,
        5e-324,
        0.1 + 0.2,
        1e308,
        *(draw.random() * 10.0 ** draw.randint(-12, 3) for _ in range(995)),
    )
    phases = {name: None if name == "h2d" else tuple(draw.sample(odd, 1000)) for name in PHASES}
    sent = m.Done(
        launch="x",
        part=Part(
            node=1,
            traces=(trace(3, step_s=odd, phases=phases, window_end_ns=2**62 + 1, warnings=("é ≠ e",)),),
            outcome=Outcome(launch="x", ranks=(Ended(local_rank=0, pid=5, exitcode=-9, died_ns=2**62 + 3),)),
            readings={"time_s": [0.1, 5e-324], "subject": ["rank 3", "eth0"], "value": [None, -0.0]},
            files={"3.log": bytes(range(256)) * 10, "empty.log": b""},
        ),
    )
    come = m.up(m.encode(sent))
    assert come == sent
    before, after = sent.part.traces[0], come.part.traces[0]
    assert bits(after.step_s) == bits(before.step_s)
    for name in PHASES:
        assert (after.phases_s[name] is None) == (name == "h2d")
        assert bits(after.phases_s[name] or ()) == bits(before.phases_s[name] or ())
    assert come.part.readings["value"][0] is None
    assert bits(come.part.readings["value"][1:]) == bits([-0.0])


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", m.encode(m.End()), m.encode({"type": "Run"}), m.encode(UP[4])[:-1]]
)
def test_what_cannot_be_read_is_an_error_of_ours(data):
    """Of another version, cut short, or no message at all: the node that sent it can be named."""
    with pytest.raises(BenchError):
        m.up(data)
