"""Any model type of transformers with its default configuration, `hf:TYPE`: nothing is downloaded.

Fields of the configuration are options too, such as `model_args.num_hidden_layers=2`.
"""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.plugins import Model, Options

if TYPE_CHECKING:
    from bench.workload import Workload

OPTIONS: Options = {"sequence": 0, "image_size": 0}


def build(case: Case) -> "Workload":
    """The model for what its type is there for, and that loss; see `bench.models._hf`.

    `sequence` 0 is half the positions that the model has, at most 512; `image_size` 0 is the model's own, or 224.
    Raises UsageError where transformers is missing or broken, and for types and fields that it does not have.
    """
    from bench.models._hf import hf_workload

    return hf_workload(case, OPTIONS)


PLUGIN = Model(
    "a model type of transformers, such as hf:gpt2; fields of its configuration are options too",
    build,
    options=OPTIONS,
    named="hf:gpt2",
    open_options=True,
)
