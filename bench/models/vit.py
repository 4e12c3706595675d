"""ViT-B/16: 86,567,656 parameters, keys and shapes equal to torchvision's vit_b_16."""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.options import check_divides, option
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS = {"image_size": 224, "classes": 1000, "patch": 16, "width": 768, "depth": 12, "heads": 12}


def build(case: Case) -> "Workload":
    """The model and its default training."""
    from bench.models._resnet import image_workload
    from bench.models._vit import VisionTransformer

    sizes = {key: option(case.model_args, OPTIONS, key) for key in OPTIONS}
    return image_workload(VisionTransformer(**sizes), sizes["image_size"], sizes["classes"])


def check(case: Case) -> None:
    """Raise UsageError for sizes that do not divide."""
    check_divides(case, OPTIONS, "image_size", "patch")
    check_divides(case, OPTIONS, "width", "heads")


PLUGIN = Model(
    "ViT-B/16 (86.6 million parameters) on images", build, options=OPTIONS, check=check, image=True
)
