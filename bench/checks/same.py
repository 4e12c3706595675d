"""Ways of training that do not compute what one process does, and those of which nobody can tell."""

from collections.abc import Iterator

from bench.checks.seen import Known, Seen, capped, count
from bench.verify_words import worst_check


def not_the_same(known: Known) -> Iterator[Seen]:
    """A way of training whose check failed, with the tensor; its cells are in no curve and no comparison."""
    found = []
    for one in known.evidence.verified:
        for way in one.ways:
            failed = worst_check(way, "fail")
            if failed is not None:
                named = {"tensor": failed.tensor} if failed.tensor else {}
                cells = tuple(cell for cell in way.cells if cell in known.evidence.cells)
                text = f"does not train as one process does: {way.name}: {failed.name}: {failed.detail}"
                found.append(Seen(text, cells, named))
    yield from capped(found)


def not_told(known: Known) -> Iterator[Seen]:
    """Ways of training that were to be checked and could not be."""
    untold = [way for one in known.evidence.verified for way in one.ways if way.outcome == "cannot tell"]
    if not untold:
        return
    cells = tuple(cell for way in untold for cell in way.cells if cell in known.evidence.cells)
    check = worst_check(untold[0], "cannot tell")
    why = untold[0].reason or (check.detail if check else "")
    text = f"not known whether {count(len(untold), 'way')} of training {'computes' if len(untold) == 1 else 'compute'}"
    yield Seen(f"{text} what one process does: {untold[0].name}: {why}", cells)
