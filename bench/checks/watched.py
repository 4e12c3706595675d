"""What `bench.watch` saw in a loop of the user's own."""

from collections.abc import Iterator

from bench.checks.causes import input_bound
from bench.checks.seen import Known, Seen
from bench.watch_checks import PREFIX, remedy_of, waits_without_workers


def watch_sees(known: Known) -> Iterator[Seen]:
    """Mistakes in a watched loop, each once, with its own remedy. (What `input-bound` says is not said again.)"""
    waiting = {cell for seen in input_bound(known) for cell in seen.cells}
    cells: dict[str, list[str]] = {}
    for cell in known.evidence.measured:
        for warnings in known.evidence.said(cell.id, "warnings"):
            for text in warnings:
                if text.startswith(PREFIX) and not (waits_without_workers(text) and cell.id in waiting):
                    cells.setdefault(text, []).append(cell.id)
    for text, where in cells.items():
        message, remedy = remedy_of(text)
        yield Seen(f"{PREFIX}{message}", tuple(dict.fromkeys(where)), remedy=remedy)
