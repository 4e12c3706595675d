"""Any classifier of torchvision, `torchvision:NAME`, with random weights: nothing is downloaded."""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.options import option
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS = {"image_size": 224, "classes": 1000}
AUXILIARY = {
    "aux_logits": False,
    "init_weights": False,
}  # without: one tensor of logits, and seconds to build


def build(case: Case) -> "Workload":
    """The model and the default training. googlenet and inception_v3 come without their auxiliary heads.

    Raises UsageError where torchvision is missing or broken, and for names that it does not have.
    """
    from bench.models._library import check_known, library, name_of
    from bench.models._resnet import image_workload

    models = library(case, "torchvision").models
    check_known(case, "classifier", models.list_models(module=models))
    name, (image_size, classes) = name_of(case), (option(case.model_args, OPTIONS, key) for key in OPTIONS)
    given = AUXILIARY if name in ("googlenet", "inception_v3") else {}
    if name.startswith("vit_"):  # the others take images of many sizes
        given = {"image_size": image_size}
    model = models.get_model(name, weights=None, num_classes=classes, **given)
    return image_workload(model, image_size, classes)


PLUGIN = Model(
    "a classifier of torchvision by name, such as torchvision:resnet50",
    build,
    options=OPTIONS,
    image=True,
    named="torchvision:resnet50",
)
