"""ViT-B/16: 86,567,656 parameters, keys and shapes equal to torchvision's vit_b_16."""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.errors import UsageError
from bench.options import option
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS = {"image_size": 224, "classes": 1000, "patch": 16, "width": 768, "depth": 12, "heads": 12}


def build(case: Case) -> "Workload":
    """The model and its default training. Raises UsageError for sizes that do not divide."""
    from bench.models._resnet import image_workload
    from bench.models._vit import VisionTransformer

    sizes = {key: option(case.model_args, OPTIONS, key) for key in OPTIONS}
    for whole, part in (("image_size", "patch"), ("width", "heads")):
        if sizes[whole] % sizes[part]:
            raise UsageError(
                f"model_args of {case.model!r}: {whole} = {sizes[whole]} does not divide by {part} = {sizes[part]}: "
                f"make it a multiple of {sizes[part]}"
            )
    return image_workload(VisionTransformer(**sizes), sizes["image_size"], sizes["classes"])


PLUGIN = Model("ViT-B/16 (86.6 million parameters) on images", build, options=OPTIONS, image=True)
