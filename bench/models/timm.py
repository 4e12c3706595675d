"""Any model of timm, `timm:NAME`, with random weights: nothing is downloaded."""

from typing import TYPE_CHECKING, Any

from bench.case import Case
from bench.options import option
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS = {"image_size": 0, "classes": 1000}


def build(case: Case) -> "Workload":
    """The model and the default training; `image_size` 0 is the size that timm names for the model.

    Raises UsageError where timm is missing or broken, and for names that it does not have.
    """
    from bench.models._library import check_known, library, name_of
    from bench.models._resnet import image_workload

    timm = library(case, "timm")
    check_known(case, "model", timm.list_models())
    given, classes = (option(case.model_args, OPTIONS, key) for key in OPTIONS)
    size: dict[str, Any] = {}
    known = timm.get_pretrained_cfg(name_of(case))
    if given and known is not None and known.fixed_input_size:  # its layers are made for one size
        size = {"img_size": given}
    model = timm.create_model(name_of(case), pretrained=False, num_classes=classes, **size)
    return image_workload(model, given or model.default_cfg["input_size"][-1], classes)


PLUGIN = Model(
    "a model of timm by name, such as timm:resnet50",
    build,
    options=OPTIONS,
    image=True,
    named="timm:resnet50",
)
