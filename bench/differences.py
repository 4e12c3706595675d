"""What differs between two sides besides what is under test, by the name of the field, with both values."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from bench.compared import UNSET, Allocation, Facts
from bench.environment import speed_variables
from bench.errors import UsageError
from bench.machine import SOFTWARE
from bench.plugins import clip, unknown

Role = Literal["refused", "allowed", "under test"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that is not the same in all allocations; `cells` is empty where it concerns all of them."""

    field: str
    base: str
    new: str
    role: Role
    cells: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """`torch: 2.9.0 against 2.10.0`."""
        return f"{self.field}: {clip(self.base, 200)} against {clip(self.new, 200)}"


def differences(
    base: Sequence[Allocation],
    new: Sequence[Allocation],
    cells: Sequence[str],
    *,
    paired: bool,
    allow: Collection[str],
) -> tuple[Difference, ...]:
    """Every difference, of the hosts first, then of the `cells` that both sides have.

    A field that varies within a side is one too. Raises UsageError for a name in `allow` that is no field.
    """
    _check(allow, [*base, *new])
    under_test = SOFTWARE if paired else frozenset()
    found = list(_compare([side.facts for side in base], [side.facts for side in new], allow, under_test))
    noted = [side.noted for side in base], [side.noted for side in new]
    found += _compare(*noted, (), frozenset(name for facts in noted[0] + noted[1] for name in facts))
    by_values: dict[tuple[str, str, str, Role], list[str]] = {}
    for cell in cells:
        for one in _compare(_facts(base, cell), _facts(new, cell), allow, under_test):
            by_values.setdefault((one.field, one.base, one.new, one.role), []).append(cell)
    for (name, ours, theirs, role), concerned in by_values.items():
        found.append(Difference(field=name, base=ours, new=theirs, role=role, cells=tuple(concerned)))
    return tuple(found)


def _facts(side: Sequence[Allocation], cell: str) -> list[Facts]:
    """The facts of one cell in the allocations that measured it."""
    return [one.cells[cell].facts for one in side if cell in one.cells and one.cells[cell].logs]


def _compare(
    base: Sequence[Facts], new: Sequence[Facts], allow: Collection[str], under_test: Collection[str]
) -> Iterator[Difference]:
    if not base or not new:
        return
    for name in dict.fromkeys(name for facts in [*base, *new] for name in facts):
        ours, theirs = _values(base, name), _values(new, name)
        if len({*ours, *theirs}) > 1:
            role: Role = "allowed" if name in allow else "under test" if name in under_test else "refused"
            yield Difference(field=name, base=" | ".join(ours), new=" | ".join(theirs), role=role)


def _values(side: Iterable[Mapping[str, str]], name: str) -> list[str]:
    """The distinct values of a field in the allocations of a side, in their order."""
    return list(dict.fromkeys(facts.get(name, UNSET) for facts in side))


def _check(allow: Collection[str], sides: Iterable[Allocation]) -> None:
    known: dict[str, None] = {}
    for side in sides:
        known |= dict.fromkeys(side.facts)
        for cell in side.cells.values():
            known |= dict.fromkeys(cell.facts)
    for name in allow:
        if name not in known and not speed_variables({name: ""}):
            raise UsageError(unknown("--allow", name, sorted(known)))
