"""Your own model and data set under the suite.

    scalemark run ddp --set model=examples.my_training:build --set data=own

The suite calls `build` once in every rank, with the Case it is about to run. `build` returns a Workload: the
model and, where the defaults do not fit, its data set, loss and optimizer. The suite moves the model and the
batches to the device, wraps the model as the strategy says, and shares the data set between the ranks.
"""

import math

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from bench.case import Case
from bench.workload import Workload


class Waves(Dataset[dict[str, Tensor]]):
    """Noisy sine waves and their frequencies. At the top level of the module, so that workers can load it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        frequency = torch.tensor([1 + index % 50 / 10])
        time = torch.linspace(0, 2 * math.pi, 256)
        return {"wave": torch.sin(frequency * time) + 0.1 * torch.randn(256), "frequency": frequency}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Any scalar of the model and one batch, as the data set and collate make it."""
    return nn.functional.mse_loss(model(batch["wave"].unsqueeze(1)), batch["frequency"])


def build(case: Case) -> Workload:
    """`case.model_args` is yours: here `--set model_args.width=64` sets the number of channels."""
    width = int(case.model_args.get("width", 32))
    model = nn.Sequential(
        nn.Conv1d(1, width, 9, stride=4),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(8),
        nn.Flatten(),
        nn.Linear(8 * width, 1),
    )
    return Workload(
        model,
        dataset=Waves(20_000),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )
