"""Links as text, and the token bucket that makes one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import UsageError
from bench.link import Link, parse, tbf


@pytest.mark.parametrize(
    ("text", "rate", "delay", "canonical"),
    [
        ("1gbit", 1e9, None, "1gbit"),
        ("100mbit", 1e8, None, "100mbit"),
        ("2.5gbit", 2.5e9, None, "2.5gbit"),
        ("2500mbit", 2.5e9, None, "2.5gbit"),
        ("0.1gbit", 1e8, None, "100mbit"),
        ("1gbit,0.2ms", 1e9, 2e-4, "1gbit,0.2ms"),
        ("1gbit,200us", 1e9, 2e-4, "1gbit,0.2ms"),
        ("10gbit,50us", 1e10, 5e-5, "10gbit,50us"),
        (" 10Gbit, 0.05 ms ", 1e10, 5e-5, "10gbit,50us"),
        ("400gbit,1000ms", 4e11, 1.0, "400gbit,1000ms"),
    ],
)
def test_a_link_is_a_rate_and_maybe_a_delay(text, rate, delay, canonical):
    """Rate in bits a second, delay in seconds; equal links are spelt alike."""
    link = parse(text)
    assert (link.rate_bits_per_s, link.delay_s, str(link)) == (rate, delay, canonical)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "fast",
        "1gb",
        "1gbps",
        "1gbit/s",
        "-1gbit",
        "1e9gbit",
        "1gbit,",
        "1gbit,2",
        "1gbit,0.2s",
        "0.2ms",
    ],
)
def test_what_is_no_link_is_refused_with_what_is(text):
    """The answer names the text and shows two that are allowed, in one line."""
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert str(refused.value) == (
        f"link {text!r} is none: a rate of 1mbit to 400gbit, then a delay of 1us to 1000ms if wanted, "
        "as in 100mbit or 2.5gbit,0.2ms"
    )


@pytest.mark.parametrize("text", ["0gbit", "0.9mbit", "401gbit", "1gbit,0ms", "1gbit,0.5us", "1gbit,1001ms"])
def test_rates_and_delays_have_bounds(text):
    """No rate and no delay of zero, and none that no network has."""
    with pytest.raises(UsageError, match="is out of range: a rate of 1mbit to 400gbit"):
        parse(text)


@given(
    st.integers(10**6, 4 * 10**11),
    st.none() | st.integers(10**3, 10**9),
)
def test_every_link_survives_its_spelling(bits, nanoseconds):
    """parse(str(link)) is the link, for all whole bits a second and nanoseconds."""
    link = Link(float(bits), None if nanoseconds is None else nanoseconds / 1e9)
    assert parse(str(link)) == link


def test_bucket_and_queue_follow_the_rate():
    """4 ms and 40 ms of the rate, within bounds that hold some frames and are still a switch's."""
    assert tbf(parse("100mbit")) == ("100000000bit", "50000", "500000")
    assert tbf(parse("1gbit")) == ("1000000000bit", "500000", "4194304")
    assert tbf(parse("1mbit")) == ("1000000bit", "16384", "262144")
    assert tbf(parse("100gbit,1ms")) == ("100000000000bit", "1048576", "4194304")
