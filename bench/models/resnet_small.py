"""A small ResNet for hosts without an accelerator: the blocks of ResNet-18, a quarter of its width.

0.5 million parameters, 24 BatchNorm layers; a step of 16 images of 64 x 64 takes one core some 70 ms, long
enough that the cost of a step's own calls does not count and that input and collectives do.
"""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.options import option
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS = {"image_size": 64, "classes": 100}


def build(case: Case) -> "Workload":
    """The model and its default training, for images of 3 x image_size x image_size."""
    from bench.models._resnet import Basic, ResNet, image_workload

    classes = option(case.model_args, OPTIONS, "classes")
    model = ResNet(Basic, (3, 3, 3, 1), classes, width=16, small_images=True)
    return image_workload(model, option(case.model_args, OPTIONS, "image_size"), classes)


PLUGIN = Model(
    "small ResNet (0.5 million parameters) for CPU hosts", build, options=OPTIONS, image=True, batch_norm=True
)
