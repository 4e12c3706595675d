"""What a person sees while two sides run: a line a launch, and a line a pair with the ratio so far."""

from typing import Any

from bench.answers import Interval
from bench.launch import Progress
from bench.live import Live, clock, told
from bench.measures import format_change
from bench.orders import Moved
from bench.records import Cell, LaunchRecord
from bench.wording import plural


class AbLive:
    """`ab.Show` on a terminal or in a log. Use as a context manager."""

    def __init__(self, quiet: bool = False) -> None:
        """`quiet`: standard output is for an answer, so that everything goes to standard error."""
        from rich.console import Console

        self._live = Live(Console(stderr=quiet, highlight=False, soft_wrap=True))
        self._block = self._done = self._launches = 0

    def __enter__(self) -> "AbLive":
        self._live.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self._live.__exit__(*args)

    def block(self, block: int, cells: int) -> None:
        """A new block begins."""
        self._block, self._done, self._launches = block, 0, cells
        self._live.block(block, cells)

    def launching(self, cell: Cell, block: int) -> None:
        """A launch begins."""
        self._live.launching(cell, block)

    def moved(self, moved: Moved) -> None:
        """A running launch has come this far."""
        self._live.progress(Progress(state=moved.state, step=moved.step, steps=moved.steps))

    def ran(self, side: str, record: LaunchRecord, left_s: float) -> None:
        """A launch has its record."""
        self._done += record.retry_of is None
        where = f"[{self._block + 1}:{self._done}/{self._launches}]"
        again = "  (again)" if record.retry_of else ""
        self.say(f"{where} {side:<4} {record.cell}  {told(record)}{again}  about {clock(left_s)} left")

    def paired(self, cell: Cell, ratio: Interval | None) -> None:
        """A cell has had both launches of a block."""
        if ratio is not None:
            self.say(f"      new / base {so_far(ratio)}")

    def say(self, text: str) -> None:
        """One line."""
        self._live.say(text)


def so_far(ratio: Interval) -> str:
    """`-4.8 % (-5.3 % to -4.2 %, 5 pairs)`."""
    pairs = plural(ratio.n, "pair")
    if ratio.low is None or ratio.high is None:
        return f"{format_change(ratio.value)} ({pairs})"
    return (
        f"{format_change(ratio.value)} ({format_change(ratio.low)} to {format_change(ratio.high)}, {pairs})"
    )
