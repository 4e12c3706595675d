"""Memory that contradicts itself, is uneven, or runs out: devices, /dev/shm, open files."""

import math
from collections.abc import Iterator
from statistics import median

from bench.checks.seen import Known, Seen, count, processes, workers, worst
from bench.measures import format_value

UNEVEN = 1.25


def shm_need(ranks: int, workers: int, prefetch: int, batch_bytes: int) -> int:
    """Most bytes that loader workers of one node keep in /dev/shm: every prefetched batch of every worker."""
    return ranks * workers * prefetch * batch_bytes


def shm_short(known: Known) -> Iterator[Seen]:
    """Loader workers whose batches may not fit into /dev/shm."""
    free = known.evidence.host.get("shm_free_bytes")
    found = []
    for cell in known.evidence.measured:
        batch = max(known.evidence.said(cell.id, "batch_bytes"), default=None)
        prefetch = max(known.evidence.said(cell.id, "prefetch_factor"), default=2)
        if free is None or batch is None or not workers(cell):
            continue
        ranks = processes(known.evidence, cell)
        need = shm_need(ranks, workers(cell), int(prefetch), int(batch))
        if need > free:
            sums = f"{count(ranks, 'rank')} x {count(workers(cell), 'worker')} x {prefetch:.0f} batches"
            message = (
                f"shared memory (/dev/shm) may run full: {sums} need {_size(need)}, {_size(free)} are free"
            )
            found.append(Seen(message, (cell.id,), {"batch": _size(batch)}, need))
    yield from worst(found)


def files_grow(known: Known) -> Iterator[Seen]:
    """Open files that rise with the steps: batches are kept."""
    evidence = known.evidence
    steps = {(row.study, row.launch): row.window_steps for cell in evidence.measured for row in cell.shown}
    columns = ("study", "launch", "cell", "rank", "open_fds_start", "open_fds")
    found = []
    for study, launch, cell, rank, before, after in evidence.rank_rows(*columns):
        if after - before >= max(16, steps[study, launch] / 2):
            text = f"open files of rank {rank} grew from {before:.0f} to {after:.0f} within the window"
            found.append(Seen(text, (cell,), {}, after - before))
    yield from worst(found)


def memory_contradicts(known: Known) -> Iterator[Seen]:
    """allocated <= reserved <= device used does not hold."""
    names = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")
    found = []
    for cell, rank, *values in known.evidence.rank_rows("cell", "rank", *names):
        sizes = [value for value in values if not math.isnan(value)]
        if sizes != sorted(sizes):
            shown = " <= ".join(_size(value) for value in values)
            text = f"rank {rank}: {shown} does not hold (allocated, reserved, device used)"
            found.append(Seen(text, (cell,)))
    yield from worst(found)


def memory_uneven(known: Known) -> Iterator[Seen]:
    """One device of a process much fuller than the rest."""
    found = []
    for cell, values in known.evidence.rank_rows("cell", "per_device_allocated_bytes"):
        if not isinstance(values, tuple) or len(values) < 2:
            continue
        most, rest = max(values), median(sorted(values)[:-1])
        if rest and most > UNEVEN * rest:
            text = f"device {values.index(most)} holds {most / rest:.2f} times what the others hold"
            found.append(Seen(f"{text}: {_size(most)} vs {_size(rest)}", (cell,), {}, most / rest))
    yield from worst(found)


def _size(count: float) -> str:
    return format_value("shm_used_bytes", count)
