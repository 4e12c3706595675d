"""What was seen on the devices beside the ranks: processes of others, stray memory, clocks held down, faults."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.checks.seen import Known, Seen, count, worst
from bench.contamination import FAULTS
from bench.environment import bare_uuid
from bench.measures import format_value

# Throttle words of the sampler that are normal at full load.
LIMITS = {"sw_power_cap": "the power limit", "sync_boost": "the slowest device of its boost group"}
FEW = 0.01  # of the window: a share that is worth a finding
MUCH = 0.10  # the same for what is normal

Stats = dict[str, dict[str, float | None]]  # measure -> its statistics


class Watched(NamedTuple):
    """One device that the ranks of a launch used: its name for a reader, and what was read of it."""

    cell: str
    name: str
    stats: Stats


def foreign_processes(known: Known) -> Iterator[Seen]:
    """Processes that are not of this study on a device that a rank used."""
    found = []
    for cell, name, stats in _used(known):
        others = _value(stats, "foreign_processes", "max")
        if others:
            held = _value(stats, "foreign_memory_bytes", "max")
            size = "" if held is None else f" and held {_size(held)} of it"
            text = f"{count(int(others), 'process', 'processes')} of others computed on {name}{size}"
            found.append(Seen(f"{text}: these numbers are of a shared device", (cell,), {}, held or others))
    yield from worst(found)


def rank_on_other_device(known: Known) -> Iterator[Seen]:
    """A rank that holds memory on a device it does not drive: mostly a second context, on device 0."""
    columns = ("study", "launch", "cell", "rank", "device_uuids")
    telemetry = {
        (row.study, row.launch): row.telemetry for cell in known.evidence.measured for row in cell.shown
    }
    found = []
    for study, launch, cell, rank, uuids in known.evidence.rank_rows(*columns):
        own = {bare_uuid(uuid) for uuid in uuids or ()}
        for uuid, stats in _by_device(telemetry[study, launch]).items():
            held = _value(stats, f"rank_{rank}_memory_bytes", "max")
            if own and uuid not in own and held:
                text = f"rank {rank} also holds {_size(held)} on {_name(known, uuid)}"
                found.append(Seen(text, (cell,), {}, held))
    yield from worst(found)


def clocks_throttled(known: Known) -> Iterator[Seen]:
    """Clocks held down by heat or a fault."""
    yield from worst(_held_down(known, FAULTS, FEW))


def clocks_limited(known: Known) -> Iterator[Seen]:
    """Clocks held down by a limit that is normal at full load."""
    yield from worst(_held_down(known, LIMITS, MUCH))


def ecc_errors(known: Known) -> Iterator[Seen]:
    """Memory errors that the device could not correct, in launches that failed too."""
    found = []
    for cell in known.evidence.cells.values():
        for row in cell.launches:
            for uuid, stats in _by_device(row.telemetry).items():
                errors = _value(stats, "ecc_uncorrected", "total")
                if errors:
                    text = f"{count(int(errors), 'uncorrected memory error')} on {_name(known, uuid)}"
                    found.append(Seen(text, (cell.id,), {}, errors))
    yield from worst(found)


def _held_down(known: Known, words: dict[str, str], least: float) -> Iterator[Seen]:
    for cell, name, stats in _used(known):
        shares = {word: _value(stats, f"throttle_{word}", "mean") or 0.0 for word in words}
        word = max(shares, key=lambda word: shares[word])
        if shares[word] >= least:
            share = format_value("efficiency", shares[word])
            clock, power = (_value(stats, measure, "mean") for measure in ("sm_clock_mhz", "power_w"))
            seen = {"clock": clock and f"{clock:,.0f} MHz", "power": power and f"{power:,.0f} W"}
            text = f"{name}: clocks held down by {words[word]} for {share} of the window"
            yield Seen(text, (cell,), {key: value for key, value in seen.items() if value}, shares[word])


def _used(known: Known) -> Iterator[Watched]:
    """The devices of the ranks of every launch that is shown."""
    uuids: dict[tuple[str, str], set[str]] = {}
    for study, launch, some in known.evidence.rank_rows("study", "launch", "device_uuids"):
        uuids.setdefault((study, launch), set()).update(bare_uuid(uuid) for uuid in some or ())
    for cell in known.evidence.measured:
        for row in cell.shown:
            for uuid, stats in _by_device(row.telemetry).items():
                if uuid in uuids.get((row.study, row.launch), ()):
                    yield Watched(cell.id, _name(known, uuid), stats)


def _by_device(telemetry: dict[str, Any]) -> dict[str, Stats]:
    """Statistics by bare UUID and measure; subjects that are no device are harmless here."""
    found: dict[str, Stats] = {}
    for key, stat in telemetry.items():
        subject, _, measure = key.rpartition("/")
        found.setdefault(bare_uuid(subject), {})[measure] = stat
    return found


def _value(stats: Stats, measure: str, what: str) -> float | None:
    return stats.get(measure, {}).get(what)


def _name(known: Known, uuid: str) -> str:
    """cuda:0, by the order of the host's devices; the UUID of a device that the host does not list."""
    kind = known.evidence.host.get("accelerator") or "device"
    for place, device in enumerate(known.evidence.host.get("devices", ())):
        if bare_uuid(device.get("uuid") or "") == uuid:
            return f"{kind}:{device.get('index', place)}"
    return uuid


def _size(held: float) -> str:
    return format_value("device_used_bytes", held)
