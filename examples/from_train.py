"""What train_ddp.py trains, as the suite wants it: scalemark run ddp --set model=examples.from_train:build"""

from functools import partial

import torch
from torch import Tensor, nn

from bench.case import Case
from bench.workload import Workload
from examples.train_ddp import Stripes, make_model


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The line of the loop that calls the model; the batch is on the device already."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)


def build(case: Case) -> Workload:
    """Model, data set, loss and optimizer: the suite does the rest."""
    return Workload(make_model(), dataset=Stripes(), loss=loss, optimizer=partial(torch.optim.AdamW, lr=1e-3))
