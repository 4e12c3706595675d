"""What two sides plan, put together: the cells that both can run, and what has to be said of the others."""

from collections.abc import Iterator, Mapping

from bench.ab_pairs import SIDES
from bench.errors import UsageError
from bench.machine import SOFTWARE
from bench.orders import Planned
from bench.records import Cell


def shared(plans: Mapping[str, Planned]) -> tuple[Cell, ...]:
    """The cells that both sides run. Raises UsageError where there are none, and where the machines differ."""
    _check_hosts(plans)
    theirs = {cell.id for cell in _runnable(plans["new"])}
    cells = tuple(cell for cell in _runnable(plans["base"]) if cell.id in theirs)
    if not cells:
        why = next(iter([*_skipped(plans), *_one_sided(plans)]), "the suite has no cells")
        raise UsageError(f"nothing to compare: {why}")
    return cells


def remarks(plans: Mapping[str, Planned]) -> list[str]:
    """Cells that one side alone runs, or none, and what the plans say; once where both say it."""
    notes = [f"note: {text}" for plan in plans.values() for text in plan.notes]
    return list(dict.fromkeys([*_one_sided(plans), *_skipped(plans), *notes]))


def _runnable(plan: Planned) -> list[Cell]:
    return [cell for cell in plan.cells if cell.skipped is None]


def _one_sided(plans: Mapping[str, Planned]) -> Iterator[str]:
    for name, other in (SIDES, SIDES[::-1]):
        there = {cell.id: cell.skipped for cell in plans[other].cells}
        for cell in _runnable(plans[name]):
            why = there.get(cell.id, "not in its plan")
            if why is not None:
                yield f"only on {name}: {cell.id} ({other}: {why})"


def _skipped(plans: Mapping[str, Planned]) -> Iterator[str]:
    base, new = ({cell.id: cell.skipped for cell in plans[name].cells} for name in SIDES)
    for cell, why in base.items():
        if why is not None and new.get(cell) is not None:
            yield f"skipped: {cell}: {why}"


def _check_hosts(plans: Mapping[str, Planned]) -> None:
    """What software brings along may differ; what the machine is may not: one side sees no devices, for one."""
    base, new = (plans[name].host for name in SIDES)
    for fact in sorted((base.keys() & new.keys()) - SOFTWARE):
        if base[fact] != new[fact]:
            raise UsageError(
                f"the sides see different machines: {fact} is {base[fact]!r} for base and {new[fact]!r} for new; give"
                " both the same devices and limits"
            )
