"""A link between nodes as text, `1gbit` or `100mbit,0.2ms`, and the token bucket that makes one."""

import re

import msgspec

from bench.errors import UsageError

UNITS = {"mbit": 1e6, "gbit": 1e9}
NANOSECONDS = {"us": 1e3, "ms": 1e6}
SPELT = re.compile(r"(\d+(?:\.\d+)?)(mbit|gbit)(?:,(\d+(?:\.\d+)?)(us|ms))?")
ALLOWED = (
    "a rate of 1mbit to 400gbit, then a delay of 1us to 1000ms if wanted, as in 100mbit or 2.5gbit,0.2ms"
)

BURST_S = (
    0.004  # a timer on a busy CPU may be that late before the link idles; 2 ms lost 7 % beside two busy cores
)
BURST_BYTES = (16 * 1024, 1024 * 1024)  # ten frames; what 2 Gbit/s sends in 4 ms: above, CPUs decide
QUEUE_S = 0.04  # a switch's buffer
QUEUE_BYTES = (256 * 1024, 4 * 1024 * 1024)


class Link(msgspec.Struct, frozen=True):
    """What one node can send to the others, and at the same time receive from them."""

    rate_bits_per_s: float
    delay_s: float | None = None  # one way, from any node to another

    def __str__(self) -> str:
        """The shortest spelling: equal links have equal ones."""
        unit = "gbit" if self.rate_bits_per_s >= UNITS["gbit"] else "mbit"
        rate = f"{self.rate_bits_per_s / UNITS[unit]:.12g}{unit}"
        if self.delay_s is None:
            return rate
        return (
            f"{rate},{self.delay_s * 1e3:.12g}ms"
            if self.delay_s >= 1e-4
            else f"{rate},{self.delay_s * 1e6:.12g}us"
        )


def parse(text: str) -> Link:
    """A link from its spelling, in whole bits a second and whole nanoseconds. Raises UsageError."""
    found = SPELT.fullmatch("".join(text.lower().split()))
    if not found:
        raise UsageError(f"link {text!r} is none: {ALLOWED}")
    rate, unit, delay, time = found.groups()
    bits = round(float(rate) * UNITS[unit])
    nanoseconds = None if delay is None else round(float(delay) * NANOSECONDS[time])
    if not 1e6 <= bits <= 400e9 or not (nanoseconds is None or 1e3 <= nanoseconds <= 1e9):
        raise UsageError(f"link {text!r} is out of range: {ALLOWED}")
    return Link(float(bits), None if nanoseconds is None else nanoseconds / 1e9)


def tbf(link: Link) -> tuple[str, str, str]:
    """Rate, burst and limit as words for `tc ... tbf`; a number alone is bytes there.

    A TCP stream then gets 95.6 % of the rate: 1448 of the 1514 bytes of a frame are its own. After a pause, `burst`
    bytes pass at once, the first 4 ms of a transfer for nothing. Where the burst is less than the 64 KiB packets that
    TCP hands down, below 131 Mbit/s, the kernel cuts those into frames: that costs time, and there is enough of it.
    """
    per_s = link.rate_bits_per_s / 8
    burst = _between(per_s * BURST_S, BURST_BYTES)
    limit = _between(per_s * QUEUE_S, QUEUE_BYTES)
    return f"{link.rate_bits_per_s:.0f}bit", str(burst), str(limit)


def _between(value: float, bounds: tuple[int, int]) -> int:
    return round(min(max(value, bounds[0]), bounds[1]))
