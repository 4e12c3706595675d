"""What `bench.watch` saw in a loop of the user's own."""

from collections.abc import Iterator

from bench.checks.seen import Known, Seen
from bench.watch_checks import PREFIX, remedy_of


def watch_sees(known: Known) -> Iterator[Seen]:
    """Mistakes in a watched loop, each once, with its own remedy."""
    cells: dict[str, list[str]] = {}
    for cell in known.evidence.measured:
        for warnings in known.evidence.said(cell.id, "warnings"):
            for text in warnings:
                if text.startswith(PREFIX):
                    cells.setdefault(text, []).append(cell.id)
    for text, where in cells.items():
        message, remedy = remedy_of(text)
        yield Seen(f"{PREFIX}{message}", tuple(dict.fromkeys(where)), remedy=remedy)
