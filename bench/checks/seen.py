"""What a check hands back, and what it is given."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.answers import Comparison, Curve, Drift, Network, Twin
from bench.describe import loads
from bench.evidence import Cell, Evidence


@dataclass(frozen=True)
class Known:
    """Everything the analysis has found out, for checks to look at."""

    evidence: Evidence
    curves: tuple[Curve, ...]
    comparisons: tuple[Comparison, ...]
    network: Network | None = None  # where there are several nodes
    twins: tuple[Twin, ...] = ()
    off: str | None = None  # why no verdict holds
    drifts: tuple[Drift, ...] = ()


@dataclass(frozen=True)
class Seen:
    """One thing that a check saw. `remedy` replaces the table's where what to do depends on what was seen."""

    message: str
    cells: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)
    weight: float = 0.0  # how bad, among what the same check saw
    remedy: str | None = None


Check = Callable[[Known], Iterable[Seen]]


def worst(found: Iterable[Seen]) -> Iterator[Seen]:
    """The gravest of what was seen, with all the cells that showed the same: one finding, not one a cell."""
    ordered = sorted(found, key=lambda seen: -seen.weight)
    if not ordered:
        return
    cells = tuple(dict.fromkeys(cell for seen in ordered for cell in seen.cells))
    more = len(cells) - len(set(ordered[0].cells))
    text = ordered[0].message + (f" (and {more} more cell{'s' * (more > 1)})" if more > 0 else "")
    yield Seen(text, cells, ordered[0].evidence, ordered[0].weight, ordered[0].remedy)


def capped(found: Sequence[Seen], most: int = 6) -> list[Seen]:
    """The first few; the rest in one: a matrix of a thousand cells must not bury the other findings.

    What is said twice of the same cells counts once: a cell may be a point of several curves.
    """
    found = list({(seen.message, seen.cells): seen for seen in found}.values())
    if len(found) <= most:
        return found
    rest = found[most - 1 :]
    cells = tuple(dict.fromkeys(cell for seen in rest for cell in seen.cells))
    first = rest[0]
    return [
        *found[: most - 1],
        Seen(f"{len(rest)} more like these, first: {first.message}", cells, remedy=first.remedy),
    ]


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 launch", "5 launches"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def processes(evidence: Evidence, cell: Cell) -> int:
    """Processes of a cell on one node, as seen."""
    return max(1, len(evidence.rank_means.get(cell.id, ())) // cell.case.nodes)


def workers(cell: Cell) -> int:
    """Loader workers of each of them."""
    return cell.case.num_workers if loads(cell.case) else 0
