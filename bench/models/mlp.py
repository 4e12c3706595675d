"""A multilayer perceptron: many parameters for little arithmetic, so gradients weigh more than compute."""

from itertools import pairwise
from typing import TYPE_CHECKING

from bench.case import Case
from bench.options import option
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS = {"width": 1024, "depth": 3, "inputs": 1024, "classes": 100}


def build(case: Case) -> "Workload":
    """`depth` linear layers, ReLU between them: inputs -> width -> ... -> width -> classes."""
    from torch import nn

    from bench.workload import Sample, Workload

    width, depth, inputs, classes = (option(case.model_args, OPTIONS, key) for key in OPTIONS)
    sizes = [inputs] + [width] * (depth - 1) + [classes]
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return Workload(nn.Sequential(*layers[:-1]), sample=Sample((inputs,), classes))


PLUGIN = Model("multilayer perceptron of any width and depth", build, options=OPTIONS)
