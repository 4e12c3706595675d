"""One row a measure: its name, what people call it, its unit, how it is written, which direction is better."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from bench.records import PHASES

MISSING = "n/a"

Better = Literal["higher", "lower"] | None


def number(value: float) -> str:
    """Three significant figures, an integer part in full: 0.0412, 41.2, 4,123."""
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits > 2 else text


def duration(seconds: float) -> str:
    """Milliseconds below a second, minutes from two minutes on."""
    if abs(seconds) < 1:
        return f"{number(seconds * 1e3)} ms"
    return f"{number(seconds)} s" if abs(seconds) < 120 else f"{number(seconds / 60)} min"


def size(count: float) -> str:
    """Bytes as MiB, or GiB from 1 GiB on."""
    return f"{number(count / 2**30)} GiB" if abs(count) >= 2**30 else f"{number(count / 2**20)} MiB"


def share(value: float) -> str:
    """A fraction in per cent: 94.2 %."""
    return f"{value * 100:.1f} %"


def rate(value: float) -> str:
    """Samples a second."""
    return f"{number(value)} samples/s"


def times(value: float) -> str:
    """A multiple: 1.87x."""
    return f"{value:.2f}x"


def bandwidth(bytes_per_s: float) -> str:
    """Bytes a second as MB/s: a network's million, not MiB."""
    return f"{number(bytes_per_s / 1e6)} MB/s"


def bits(bits_per_s: float) -> str:
    """A link: 100 Mbit/s, 2.5 Gbit/s."""
    if abs(bits_per_s) < 1e9:
        return f"{bits_per_s / 1e6:.3g} Mbit/s"
    return f"{bits_per_s / 1e9:.3g} Gbit/s"


def megabytes(count: float) -> str:
    """Bytes on a network, as MB: a million each, to be divided by MB/s."""
    return f"{number(count / 1e6)} MB"


def energy(joules: float) -> str:
    """Millijoules below a joule, kilojoules from a thousand on."""
    if abs(joules) < 1:
        return f"{number(joules * 1e3)} mJ"
    return f"{number(joules)} J" if abs(joules) < 1000 else f"{number(joules / 1e3)} kJ"


def whole(value: float) -> str:
    """A count."""
    return f"{value:,.0f}"


class Measure(NamedTuple):
    """A measure. `unit` is that of the stored value; `show` writes it with the unit that suits its size."""

    name: str
    label: str
    unit: str
    show: Callable[[float], str]
    better: Better


_ROWS = (
    Measure("samples_per_s", "throughput", "samples/s", rate, "higher"),
    Measure("per_device", "throughput a device", "samples/s", rate, "higher"),
    Measure("speedup", "speed-up", "", times, "higher"),
    Measure("efficiency", "efficiency", "", share, "higher"),
    Measure("serial_fraction", "serial fraction", "", share, "lower"),
    Measure("step_s", "step time", "s", duration, "lower"),
    Measure("p50_s", "median step", "s", duration, "lower"),
    Measure("p95_s", "95 % of steps below", "s", duration, "lower"),
    Measure("p99_s", "99 % of steps below", "s", duration, "lower"),
    Measure("first_step_s", "first step", "s", duration, "lower"),
    Measure("first_batch_s", "time to first batch", "s", duration, "lower"),
    Measure("wall_s", "launch", "s", duration, "lower"),
    Measure("overhead_s", "launch besides its steps", "s", duration, "lower"),
    *(Measure(f"{phase}_s", phase.replace("_", " "), "s", duration, "lower") for phase in PHASES),
    Measure("peak_allocated_bytes", "peak allocated", "bytes", size, "lower"),
    Measure("peak_reserved_bytes", "peak reserved", "bytes", size, "lower"),
    Measure("device_used_bytes", "device used", "bytes", size, "lower"),
    Measure("device_total_bytes", "device memory", "bytes", size, None),
    Measure("pinned_bytes", "page-locked", "bytes", size, "lower"),
    Measure("rank_pss_bytes", "rank (PSS)", "bytes", size, "lower"),
    Measure("workers_pss_bytes", "loader workers (PSS)", "bytes", size, "lower"),
    Measure("shm_used_bytes", "shared memory", "bytes", size, "lower"),
    Measure("energy_per_sample_j", "energy a sample", "J", energy, "lower"),
    Measure("sent_bytes", "sent by a node a step", "bytes", megabytes, "lower"),
    Measure("ring_bytes", "ring bound a step", "bytes", megabytes, None),
    Measure("algbw_bytes_per_s", "algorithm bandwidth", "bytes/s", bandwidth, "higher"),
    Measure("busbw_bytes_per_s", "bus bandwidth", "bytes/s", bandwidth, "higher"),
    Measure("link_bits_per_s", "link", "bit/s", bits, None),
    Measure("latency_s", "latency", "s", duration, "lower"),
    Measure("devices", "devices", "", whole, None),
    Measure("batch", "batch", "samples", whole, None),
    Measure("global_batch", "samples a step", "samples", whole, None),
)

MEASURES = {row.name: row for row in _ROWS}


def format_value(name: str, value: float | None) -> str:
    """The value of a measure with its unit; "n/a" where there is none. Raises KeyError for an unknown name."""
    measure = MEASURES[name]
    return MISSING if value is None or not math.isfinite(value) else measure.show(value)


def format_change(ratio: float | None) -> str:
    """A ratio new / old as a change: 1.25 is "+25.0 %"."""
    return MISSING if ratio is None or not math.isfinite(ratio) else f"{(ratio - 1) * 100:+.1f} %"


def format_bounds(name: str, low: float | None, high: float | None, n: int) -> str:
    """The limits of an interval, "[low, high]"; "n/a (n = 1)" where there is no interval."""
    if low is None or high is None:
        return f"{MISSING} (n = {n})"
    return f"[{format_value(name, low)}, {format_value(name, high)}]"
