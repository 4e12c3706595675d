"""What a person sees while a study runs: bars and a line a result on a terminal, plain lines elsewhere."""

import sys
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from bench.launch import Progress as Where
from bench.measures import format_value
from bench.records import Cell, LaunchRecord


class Live:
    """Shows a running study. Use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._terminal = self._console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            transient=True,
            disable=not self._terminal,
        )
        self._study = self._progress.add_task("study", total=None, note="")
        self._launch = self._progress.add_task("launch", total=None, note="")
        self._order = self._cells = 0

    def __enter__(self) -> "Live":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self._progress.stop()

    def block(self, block: int, cells: int) -> None:
        """A new block begins."""
        self._order, self._cells = 0, cells
        self._progress.update(self._study, description=f"block {block + 1}", total=cells, completed=0)

    def launching(self, cell: Cell, block: int) -> None:
        """A launch begins."""
        self._progress.reset(self._launch, total=cell.case.steps, note="starting", description=cell.id[:60])

    def progress(self, where: Where) -> None:
        """A running launch has come this far."""
        self._progress.update(self._launch, completed=where.step, total=where.steps or None, note=where.state)

    def landed(self, record: LaunchRecord, left_s: float | None) -> None:
        """A launch has its record."""
        self._order += 1
        left = "" if left_s is None else f"about {clock(left_s)} left"
        self._progress.update(self._study, completed=self._order, note=left)
        place = "again" if record.retry_of else f"{self._order}/{self._cells}"
        self._line(f"[{record.block + 1}:{place}] {record.cell}  {told(record)}  {left}")

    def say(self, text: str) -> None:
        """One line."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False)


def told(record: LaunchRecord) -> str:
    """A record in a few words."""
    if record.window is None:
        return f"{record.status}: {record.reason}: {record.detail}"
    speed = format_value("samples_per_s", record.window.samples_per_s)
    marks: list[str] = [*record.marks, *record.contaminated, *record.mismatches]
    if record.window.cut.state == "unsteady":
        marks.insert(0, "unsteady")
    return f"{speed}, step {format_value('step_s', record.window.step_s)}" + (
        f"  ({'; '.join(marks)})" if marks else ""
    )


def clock(seconds: float) -> str:
    """1:05 for 65 seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
