"""Load in a rank: each checkpoint in each way that is asked for, from cache and from disk, and is it what was saved?"""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from bench import checkpoint_formats as formats
from bench import checkpoint_state as state
from bench import pagecache
from bench.checkpoint_desk import Desk, told
from bench.checkpoint_prefix import mismatch
from bench.checkpoint_records import Attempt, File, Load, Outcome, Prefix
from bench.errors import BenchError
from bench.joining import slowest

COLD = 0.1  # of a file may be left in the page cache for a read to count as cold
KEPT = "the file stays in the page cache: memory is its disk, or the system keeps it"


class Loader:
    """Loads into a desk's model and optimizer."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def load(self, task: Load) -> Attempt:
        """Read one checkpoint into an emptied model and optimizer, again and again, from disk and from the page cache."""
        desk, file = self._desk, task.files[self._desk.place.rank % len(task.files)]
        path = desk.folder / file.name
        found = _Read()
        if task.format != "state_dict":  # the others are unpickled, if only where the environment says so
            self._vouch(file, found)
        desk.peak.start()
        cold, why = self._cold(task, path, file, found) if task.cold else ((), "")
        for one in formats.on_disk(path):
            pagecache.warm(one)
        warm: list[float] = []
        while not desk.failed(found.error) and desk.again(warm, task.repeats):
            warm.append(self._timed(task, path, file, found))
        if desk.failed(found.error):
            return Attempt(id=task.id, outcome=found.outcome, message=found.error)
        extra, allocated = desk.peak.end()
        held = state.digests(desk.model, desk.optimizer)
        other = state.differing(held, desk.folder, file.reference)
        return Attempt(
            id=task.id,
            own_s=tuple(warm),
            cold_s=tuple(cold),
            cold=why,
            extra_rss_bytes=extra,
            peak_allocated_bytes=allocated,
            tensors=len(held),
            equal=other is None,
            differing=other,
            prefix=None if task.format == "dcp" else found.prefix,
            came_as=found.came_as,
            elsewhere=found.elsewhere,
        )

    def _vouch(self, file: File, found: "_Read") -> None:
        try:
            formats.vouch(self._desk.folder, file)
        except (OSError, BenchError) as problem:
            found.fail("failed", told(problem))  # torch was not asked: no refusal of its

    def _cold(self, task: Load, path: Path, file: File, found: "_Read") -> tuple[list[float], str]:
        """Seconds with the file put out of the page cache before each, or why it cannot be."""
        seconds: list[float] = []
        while not self._desk.failed(found.error) and self._desk.again(seconds, task.repeats):
            if not self._put_out(path):
                return seconds, "" if seconds else KEPT
            seconds.append(self._timed(task, path, file, found))
        return seconds, ""

    def _put_out(self, path: Path) -> bool:
        """Put every rank's file out of the page cache; whether that worked, alike on all ranks."""
        for one in formats.on_disk(path):
            pagecache.evict(one)
        self._desk.wait()
        left = pagecache.resident_share(formats.on_disk(path))
        kept = np.array([1.0 if left is None or left > COLD else 0.0])
        return not slowest(kept, self._desk.place)[0]

    def _timed(self, task: Load, path: Path, file: File, found: "_Read") -> float:
        """Seconds of this rank's own load; what went wrong is in `found`."""
        desk = self._desk
        state.wipe(desk.model, desk.optimizer)
        desk.sync()
        desk.wait()
        began = time.perf_counter()
        try:
            if task.format == "dcp":
                formats.fill_from_dcp(path, desk.model, desk.optimizer)
            else:
                self._read(task, path, file, found)
        except (Exception, CheckpointException) as problem:  # noqa: BLE001 - a refusal is a result
            if not found.error:
                found.fail("refused", told(problem))
        desk.sync()
        seconds = time.perf_counter() - began
        desk.wait()
        return seconds

    def _read(self, task: Load, path: Path, file: File, found: "_Read") -> None:
        read = formats.read(task, path, file, self._desk.place.device)
        held = read["model"]
        found.elsewhere = elsewhere(held, self._desk.place.devices)
        try:
            found.prefix, found.came_as = formats.fill(
                self._desk.model, self._desk.optimizer, read, task.fix_prefix
            )
        except RuntimeError as problem:
            keys = list(held.state_dict() if isinstance(held, nn.Module) else held)
            found.fail("mismatch", mismatch(keys, list(self._desk.model.state_dict())) or told(problem))
            raise


def elsewhere(held: Any, own: Collection[int]) -> dict[str, int]:
    """Bytes of a state dict's or a model's tensors that lie on accelerators other than a rank's `own`, by device."""
    state_dict = held.state_dict() if isinstance(held, nn.Module) else held
    found: dict[str, int] = {}
    for value in state_dict.values():
        if (
            isinstance(value, torch.Tensor)
            and value.device.index is not None
            and value.device.index not in own
        ):
            name = str(value.device)
            found[name] = found.get(name, 0) + value.numel() * value.element_size()
    return found


class _Read:
    """What came of a load, so far."""

    def __init__(self) -> None:
        self.outcome: Outcome = "ok"
        self.error = ""
        self.prefix: Prefix | None = None
        self.came_as: str | None = None
        self.elsewhere: dict[str, int] = {}

    def fail(self, outcome: Outcome, message: str) -> None:
        """It did not go well."""
        self.outcome, self.error = outcome, message
