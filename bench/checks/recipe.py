"""What the way a step is taken does beside its speed: compilation, a loss gone wild, state split over ranks."""

from collections.abc import Iterator
from typing import Any

import msgspec

from bench.case import Case
from bench.checks.seen import Known, Seen, count, worst
from bench.describe import describe
from bench.evidence import Cell
from bench.measures import duration, size

SHARDED = ("zero1", "fsdp")
HELD = ("parameter_bytes", "optimizer_state_bytes")


def compile_time(known: Known) -> Iterator[Seen]:
    """How long torch.compile took, which is in no other number, and after how many steps it has paid."""
    found = []
    for cell in known.evidence.measured:
        seconds = cell.average("compile_s")
        if seconds is None:
            continue
        breaks = max(known.evidence.said(cell.id, "graph_breaks"), default=0)
        text = f"torch.compile took {duration(seconds)} before the window of {describe(cell.case)}"
        text += f", with {count(int(breaks), 'graph break')}" if breaks else ""
        steps = _steps_to_pay(known, cell, seconds)
        remedy = None if steps is None else f"worth it for trainings of more than some {steps:,} steps"
        found.append(Seen(text, (cell.id,), {"graph breaks": f"{breaks:.0f}"}, seconds, remedy))
    yield from worst(found)


def _steps_to_pay(known: Known, cell: Cell, seconds: float) -> int | None:
    """Steps after which compilation has paid, by the same cell without it; None where that is not known."""
    plain = _twin(known, cell, compile=False)
    ours = cell.average("step_s")
    theirs = plain.average("step_s") if plain is not None and plain.comparable else None
    return round(seconds / (theirs - ours)) if ours and theirs and theirs > 1.02 * ours else None


def loss_not_finite(known: Known) -> Iterator[Seen]:
    """A training that has run away measures something else."""
    cells = [cell for cell in known.evidence.measured if "loss is not finite" in cell.marks]
    if cells:
        yield Seen(f"the loss of {describe(cells[0].case)} is not finite", tuple(cell.id for cell in cells))


def state_split(known: Known) -> Iterator[Seen]:
    """What a rank holds of parameters and optimizer state where these are split, against DDP on as many ranks."""
    found = []
    for cell in known.evidence.measured:
        if cell.case.strategy not in SHARDED or cell.case.devices == 1:
            continue
        whole = _twin(known, cell, strategy="ddp")
        ours, theirs = _held(known, cell), _held(known, whole) if whole is not None else None
        if ours and theirs:
            text = f"{describe(cell.case)}: a rank holds {size(ours)} of parameters and optimizer state"
            found.append(Seen(f"{text}, {size(theirs)} under ddp", (cell.id,), {}, theirs / ours))
    yield from worst(found)


def _twin(known: Known, cell: Cell, **changes: Any) -> Cell | None:
    """The cell that differs in these settings only; length and time limit of the run do not count."""

    def plain(case: Case) -> Case:
        return msgspec.structs.replace(case, steps=1, timeout_s=1.0)

    wanted = plain(msgspec.structs.replace(cell.case, **changes))
    return next((other for other in known.evidence.measured if plain(other.case) == wanted), None)


def _held(known: Known, cell: Cell) -> float | None:
    """Bytes of parameters and optimizer state of the fullest rank."""
    parts = [max(known.evidence.said(cell.id, name), default=None) for name in HELD]
    return None if None in parts else float(sum(part for part in parts if part is not None))
