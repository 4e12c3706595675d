"""What saving and loading share in a rank: the trained model, the folder, and going on alike with the other ranks."""

import re
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench import plugins
from bench.checkpoint_records import Checkpointing
from bench.joining import barrier, slowest
from bench.peaks import Peak
from bench.place import Place

ENOUGH_S = 3.0  # of one save or load; it is not repeated beyond
TOLD = 240  # characters of a message of torch's


class Desk:
    """One rank with a trained model and a folder for its checkpoints. All ranks make the same calls."""

    def __init__(
        self, job: Checkpointing, place: Place, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.job, self.place, self.model, self.optimizer = job, place, model, optimizer
        self.folder = Path(job.folder)
        self.wait = barrier(place)
        self.peak = Peak(place.module if place.accelerated else None, place.device)

    def failed(self, error: str) -> bool:
        """Whether any rank has an error: they go on alike."""
        return bool(slowest(np.array([1.0 if error else 0.0]), self.place)[0])

    def again(self, seconds: list[float], repeats: int) -> bool:
        """Whether there is one more repeat to do, by the slowest rank's time."""
        spent = slowest(np.array([sum(seconds)]), self.place)[0]
        return len(seconds) < repeats and (not seconds or spent < ENOUGH_S)

    def sync(self) -> None:
        """Wait for the device."""
        if self.place.accelerated:
            self.place.module.synchronize()


def told(error: BaseException) -> str:
    """torch's own words, in a line: without colours, and of several ranks' the first."""
    failures = getattr(error, "failures", None)
    if failures:
        first = next(iter(failures.values()))
        error = first[0] if isinstance(first, tuple) else first
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    text = " ".join(text.split())
    return plugins.clip(f"{type(error).__name__}: {text}", TOLD)
