"""ResNet-50: 25.6 million parameters, keys and shapes equal to torchvision's."""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.options import option
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS = {"image_size": 224, "classes": 1000}


def build(case: Case) -> "Workload":
    """The model and its default training, for images of 3 x image_size x image_size."""
    from bench.models._resnet import Bottleneck, ResNet, image_workload

    classes = option(case.model_args, OPTIONS, "classes")
    model = ResNet(Bottleneck, (3, 4, 6, 3), classes)
    return image_workload(model, option(case.model_args, OPTIONS, "image_size"), classes)


PLUGIN = Model(
    "ResNet-50 (25.6 million parameters) on images", build, options=OPTIONS, image=True, batch_norm=True
)
