"""Your own model and nothing else.

    scalemark run ddp --set model=examples.my_model:build

A bare nn.Module is taken for an image classifier: cross entropy, SGD, and images made for it.
"""

from torch import nn

from bench.case import Case


def build(case: Case) -> nn.Module:
    """Called once in every rank. Ten classes: the last linear layer has ten outputs."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=4),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
