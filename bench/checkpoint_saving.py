"""Save in a rank: each checkpoint that is asked for, again and again, until its own call returns, until all go on, until
the disk has it.
"""

import errno
import os
import shutil
import time
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from bench import checkpoint_formats as formats
from bench import checkpoint_state as state
from bench.checkpoint_desk import Desk, told
from bench.checkpoint_records import Attempt, File, Save
from bench.measures import size

HEADROOM = 1.1  # of the bytes of the tensors: names, and the disk's own


class Saver:
    """Saves from a desk. What the files must hold is written beside them, once."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        path = desk.folder / self._reference(desk.place.rank)
        state.write_reference(path, state.digests(desk.model, desk.optimizer))

    def _reference(self, rank: int) -> str:
        return f"{self._desk.job.name}.tensors-{rank}.json"

    def save(self, task: Save) -> Attempt:
        """Write one checkpoint, again and again; the last one stays."""
        path = self._desk.folder / self._name(task)
        if task.made:
            return self._make(task, path)
        writes = self._desk.place.rank == 0 or task.format == "dcp" or task.writer == "every rank"
        times: list[tuple[float, float, float]] = []
        error = self._room(task) if writes else ""
        self._desk.peak.start()
        while not self._desk.failed(error) and self._desk.again(
            [total for _, total, _ in times], self._desk.job.repeats
        ):
            if writes and not (task.format == "dcp" and self._desk.place.rank > 0):
                formats.remove(path)
            own, total, durable, error = self._timed_save(task, path, writes)
            times.append((own, total, durable))
        if self._desk.failed(error):
            if writes and not self._shared(task):
                formats.remove(path)  # a part of a checkpoint is none
            return Attempt(id=task.id, outcome="failed" if error else "ok", message=error)
        extra, allocated = self._desk.peak.end()
        return Attempt(
            id=task.id,
            own_s=tuple(own for own, _, _ in times) if writes else (),
            all_s=tuple(total for _, total, _ in times),
            durable_s=tuple(durable for _, _, durable in times) if writes else (),
            files=(self._file(task, path),) if writes and not self._shared(task) else (),
            tensors=sum(1 for _ in state.tensors(self._desk.model, self._desk.optimizer)),
            extra_rss_bytes=extra,
            peak_allocated_bytes=allocated,
        )

    def _timed_save(self, task: Save, path: Path, writes: bool) -> tuple[float, float, float, str]:
        """Seconds of this rank's own call, until all ranks go on, and until the disk has it; what went wrong."""
        error = ""
        self._desk.sync()
        self._desk.wait()
        began = time.perf_counter()
        try:
            if writes:
                formats.write(task.format, path, self._desk.model, self._desk.optimizer)
        except (Exception, CheckpointException) as problem:  # noqa: BLE001 - a save that fails is a result
            error = told(problem)
        own = time.perf_counter() - began
        self._desk.wait()
        total = time.perf_counter() - began
        began = time.perf_counter()
        try:
            if writes and not error and not self._shared(task):
                formats.sync(path)
        except OSError as problem:
            error = told(problem)
        return own, total, total + time.perf_counter() - began, error

    def _each(self, task: Save) -> bool:
        """Whether every rank writes all of it, to a file of its own."""
        return task.writer == "every rank" and task.format != "dcp"

    def _shared(self, task: Save) -> bool:
        """Whether another rank speaks for what this one wrote."""
        return task.format == "dcp" and self._desk.place.rank > 0

    def _room(self, task: Save) -> str:
        """What is wrong with the disk, if what all ranks write does not fit on it."""
        files = self._desk.place.world_size if self._each(task) else 1
        needed = int(files * state.state_bytes(self._desk.model, self._desk.optimizer) * HEADROOM)
        try:
            free = shutil.disk_usage(self._desk.folder).free
        except OSError as problem:
            return told(problem)
        full = f"{os.strerror(errno.ENOSPC)}: {size(needed)} are needed and {size(free)} are free"
        return full if free < needed else ""

    def _name(self, task: Save) -> str:
        rank = f"-{self._desk.place.rank}" if self._each(task) else ""
        return f"{task.id}{rank}" + ("" if task.format == "dcp" else ".pt")

    def _file(self, task: Save, path: Path, saved_on: str | None = None) -> File:
        ranks = range(self._desk.place.world_size) if task.format == "dcp" else (self._desk.place.rank,)
        return File(
            name=path.name,
            bytes=sum(one.stat().st_size for one in formats.on_disk(path)),
            saved_on=saved_on or str(self._desk.place.device),
            sha256=formats.sha256(path) if task.format != "state_dict" else None,
            reference=tuple(self._reference(rank) for rank in ranks),
        )

    def _make(self, task: Save, path: Path) -> Attempt:
        """A file that stands in for one from elsewhere: of a device that is not here, or cut short."""
        if self._desk.place.rank:
            return Attempt(id=task.id)
        tag = formats.absent_device() if task.made == "location tag" else None
        error = self._room(task)
        try:
            if not error:
                self._write_made(task, path, tag)
        except Exception as problem:  # noqa: BLE001 - a save that fails is a result
            error = told(problem)
        if error:
            formats.remove(path)
            return Attempt(id=task.id, outcome="failed", message=error)
        return Attempt(id=task.id, files=(self._file(task, path, tag),))

    def _write_made(self, task: Save, path: Path, tag: str | None) -> None:
        with formats.tagged(tag):
            formats.write(task.format, path, self._desk.model, self._desk.optimizer)
        if tag is None:
            formats.cut_short(path)
        formats.sync(path)
