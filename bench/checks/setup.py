"""What the set-up of a study does to its numbers: CPUs, threads, samples, what did not run or ran otherwise."""

from collections.abc import Iterator
from typing import Any

from bench.checks.seen import Known, Seen, count, processes, workers, worst
from bench.curves import threads_differ
from bench.describe import describe
from bench.environment import biting
from bench.evidence import SERIAL, Cell, Evidence
from bench.failures import REMEDIES
from bench.hints import following
from bench.watch_checks import MODEL as WATCHED_MODEL
from bench.watch_checks import PREFIX as WATCHED


def cpu_demand(ranks: int, workers: int, threads: int, threads_per_worker: int = 1) -> tuple[int, str]:
    """Busy threads of one node, ranks x (workers x threads a worker + threads), and the sum in words."""
    parts = [f"{count(workers, 'worker')} x {count(threads_per_worker, 'thread')}"] * (workers > 0)
    parts += [count(threads, "thread")] * (threads > 0)
    each = parts[0] if len(parts) == 1 else f"({' + '.join(parts)})"
    total = ranks * (workers * threads_per_worker + threads)
    return total, f"{count(ranks, 'rank')} x {each} = {total}"


def cpus_oversubscribed(known: Known) -> Iterator[Seen]:
    """More busy threads than usable CPUs. (Paced models sleep: they compete for nothing.)"""
    usable = known.evidence.host.get("cpus_usable")
    found = []
    for cell in known.evidence.measured:
        threads = max(known.evidence.said(cell.id, "threads"), default=cell.case.threads or 1)
        total, text = cpu_demand(processes(known.evidence, cell), workers(cell), int(threads))
        if usable and total > usable and not any("model" in name for name in cell.stand_ins):
            seen = {"threads": str(total), "usable CPUs": str(usable), "cell": describe(cell.case)}
            message = f"CPU oversubscribed: {text} on {count(usable, 'CPU')}"
            found.append(Seen(message, (cell.id,), seen, total / usable))
    yield from worst(found)


def devices_oversubscribed(known: Known) -> Iterator[Seen]:
    """Ranks that shared a device or a CPU because the user allowed it."""
    cells = tuple(cell.id for cell in known.evidence.measured if "oversubscribed" in cell.marks)
    if cells:
        yield Seen(f"{count(len(cells), 'cell')} ran with more ranks than there are devices", cells)


def baseline_threads(known: Known) -> Iterator[Seen]:
    """A base that ran with other threads than the curve's points."""
    for curve in known.curves:
        base = known.evidence.cells[curve.base_cell]
        for point in curve.points:
            text = threads_differ(known.evidence, base, known.evidence.cells[point.cell])
            if text:
                found = {"curve": curve.label}
                yield Seen(
                    f"baseline not comparable: {text}",
                    (base.id, point.cell),
                    found,
                    remedy=_equal_threads(base),
                )
                break


def _equal_threads(base: Cell) -> str | None:
    """For loops that were watched: torchrun sets one thread for several ranks, and plain python none."""
    if not base.case.model.startswith(WATCHED_MODEL):
        return None
    return "watch them all with equal threads: OMP_NUM_THREADS=1 python train.py for one device"


def pinning_without_accelerator(known: Known) -> Iterator[Seen]:
    """pin_memory asked for where there is nothing to pin for."""
    evidence = known.evidence
    cells = tuple(
        cell.id
        for cell in evidence.measured
        if cell.case.pin_memory and evidence.said(cell.id, "pinned") == [False] and _on_cpu(evidence, cell)
    )
    if cells:
        yield Seen("pin_memory has no effect: no accelerator", cells, {"requested": "on", "effective": "off"})


def speed_variables(known: Known) -> Iterator[Seen]:
    """Variables in the ranks' environment that change speed; and those whose value changed in between."""
    values: dict[str, set[str]] = {}
    rows = [row for cell in known.evidence.measured for row in cell.shown]
    for row in rows:
        for name, value in row.environment.items():
            values.setdefault(name, set()).add(value)
    if not values:
        return
    changed = [name for name in values if len(values[name]) > 1]
    changed += [
        name for name in values if any(name not in row.environment for row in rows) and name not in changed
    ]
    text = ", ".join(f"{name}={'|'.join(sorted(values[name]))}" for name in sorted(values))
    note = f"; not the same in every launch: {', '.join(sorted(changed))}" if changed else ""
    bite = {name: f"{value}: {what}" for v in _each(values) for name, value, what, _ in biting(v)}
    seen = {name: bite.get(name, "|".join(sorted(some))) for name, some in values.items()}
    yield Seen(f"variables that change speed are set: {text}{note}", (), seen)


def _each(values: dict[str, set[str]]) -> Iterator[dict[str, str]]:
    """Every value of every variable, one at a time."""
    return ({name: value} for name, some in values.items() for value in sorted(some))


def mixed_hosts(known: Known) -> Iterator[Seen]:
    """Launches from hosts or software that differ, side by side."""
    prints = {row.fingerprint for cell in known.evidence.measured for row in cell.shown}
    if len(prints) > 1:
        yield Seen(f"launches from {len(prints)} different hosts or software versions are together here")


def governor(known: Known) -> Iterator[Seen]:
    """CPU clocks that follow the load, on the host of the first study. (Hosts that differ in it are `mixed-hosts`.)"""
    told = following(known.evidence.host.get("governor"))
    if told:
        yield Seen(told)


def reference_used(known: Known) -> Iterator[Seen]:
    """The suite's own DataParallel or SyncBN in the place of torch's."""
    cells = [cell for cell in known.evidence.measured if cell.reference]
    said = (names for cell in cells for names in known.evidence.said(cell.id, "stand_ins"))
    names = {name for names in said for name in names}
    if cells:
        what = ", ".join(sorted(name for name in names if "reference" in name)) or "reference implementation"
        yield Seen(f"{what}: torch's own does not run here", tuple(cell.id for cell in cells))


def stand_ins_used(known: Known) -> Iterator[Seen]:
    """Models or data that only sleep."""
    cells = [cell for cell in known.evidence.measured if cell.stand_ins]
    if cells:
        names = sorted({name for cell in cells for name in cell.stand_ins})
        yield Seen(
            f"stand-ins in the place of real work: {', '.join(names)}", tuple(cell.id for cell in cells)
        )


def serial_hook(known: Known) -> Iterator[Seen]:
    """Real work that is done one part after the other here, where torch's own overlaps: no stand-in."""
    cells: dict[str, list[str]] = {}
    for cell in known.evidence.measured:
        for name in dict.fromkeys(name for row in cell.shown for name in row.stand_ins if SERIAL in name):
            cells.setdefault(name, []).append(cell.id)
    for name, where in cells.items():
        yield Seen(
            f"{name}: the real compression and exchange, but nothing overlaps with backward", tuple(where)
        )


def samples_uneven(known: Known) -> Iterator[Seen]:
    """Samples that the sampler repeats or leaves out to give every rank the same number."""
    for name, word in (("padded", "repeated"), ("dropped", "left out")):
        found = []
        for cell in known.evidence.measured:
            samples = max(known.evidence.said(cell.id, name), default=0)
            length = max(known.evidence.said(cell.id, "dataset_len"), default=0)
            if samples:
                message = f"{count(int(samples), 'sample')} of {length:,.0f} {word} an epoch by {describe(cell.case)}"
                found.append(Seen(message, (cell.id,), {name: f"{samples:.0f}"}, samples))
        yield from worst(found)


def settings_not_in_effect(known: Known) -> Iterator[Seen]:
    """What was asked for is not what ran, a finding a difference. (Idle pinning has a finding of its own.)"""
    idle = {cell for seen in pinning_without_accelerator(known) for cell in seen.cells}
    cells: dict[str, list[Cell]] = {}
    for cell in known.evidence.cells.values():
        for text in dict.fromkeys(text for row in cell.launches for text in row.mismatches):
            if not (text.startswith("pin_memory") and cell.id in idle):
                cells.setdefault(text, []).append(cell)
    for text, some in cells.items():
        where = describe(some[0].case) + (f" and {len(some) - 1} more" if len(some) > 1 else "")
        yield Seen(f"not what was asked for: {text} ({where})", tuple(cell.id for cell in some))


def failed_launches(known: Known) -> Iterator[Seen]:
    """Launches that failed, a finding a class of failure."""
    rows: dict[str, list[Any]] = {}
    for cell in known.evidence.cells.values():
        for row in cell.failures:
            rows.setdefault(row.reason or row.status, []).append(row)
    for reason, some in rows.items():
        cells = tuple(dict.fromkeys(row.cell for row in some))
        where = f"{count(len(some), 'launch', 'launches')} of {count(len(cells), 'cell')} failed"
        detail = next((row.detail for row in some if row.detail), None)
        message = f"{where}: {reason}" + (f" ({detail})" if detail else "")
        first = {f"rank {row.first_rank:.0f}" for row in some if row.first_rank == row.first_rank}
        seen = {"reason": reason} | ({"failed first": ", ".join(sorted(first))} if first else {})
        seen |= _log(known.evidence, some)
        yield Seen(message, cells, seen, remedy=REMEDIES.get(reason))


def _log(evidence: Evidence, rows: list[Any]) -> dict[str, str]:
    """Where the log of the first failed launch lies: the file of the rank that failed first, or the folder."""
    row = next((row for row in rows if row.first_rank == row.first_rank), rows[0])
    store = evidence.stores.get(row.study)
    if store is None:
        return {}
    folder = store.root / "logs" / row.launch
    own = folder / f"{row.first_rank:.0f}.log"
    path = own if own.is_file() else folder
    return {"log": str(path)} if path.exists() else {}


def rank_warnings(known: Known) -> Iterator[Seen]:
    """What libraries warned of inside the ranks, each text once. (What `bench.watch` sees is a finding of its own.)"""
    cells: dict[str, list[str]] = {}
    for cell in known.evidence.measured:
        for warnings in known.evidence.said(cell.id, "warnings"):
            for text in warnings:
                if not text.startswith(WATCHED):
                    cells.setdefault(text, []).append(cell.id)
    for text, where in cells.items():
        yield Seen(f"ranks were warned: {text}", tuple(dict.fromkeys(where)))


def broken_lines(known: Known) -> Iterator[Seen]:
    """Lines of launches.jsonl that are no records."""
    lines = known.evidence.frames.broken
    if lines:
        yield Seen(f"{count(len(lines), 'line')} could not be read: {'; '.join(lines[:3])}")


def not_run(known: Known) -> Iterator[Seen]:
    """Cells of the plan that have no launch yet."""
    cells = tuple(cell.id for cell in known.evidence.cells.values() if not cell.launches and not cell.skipped)
    if cells:
        yield Seen(f"{count(len(cells), 'cell')} of the plan did not run", cells)


def _on_cpu(evidence: Evidence, cell: Cell) -> bool:
    return set(evidence.said(cell.id, "device")) <= {"cpu"}
