"""A small GPT for hosts without an accelerator: the blocks of GPT-2, a sixth of its width.

0.7 million parameters; a step of 8 sequences of 64 ids takes one core some 40 ms.
"""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.options import check_divides
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

POSITIONS = 64
OPTIONS = {"sequence": 64, "vocabulary": 512, "width": 128, "depth": 3, "heads": 4}


def build(case: Case) -> "Workload":
    """The model and its causal loss."""
    from bench.models._gpt import gpt_workload

    return gpt_workload(case, OPTIONS, POSITIONS)


def check(case: Case) -> None:
    """Raise UsageError for a width that does not divide over the heads."""
    check_divides(case, OPTIONS, "width", "heads")


PLUGIN = Model(
    "small GPT (0.7 million parameters) on token ids, for CPU hosts",
    build,
    options=OPTIONS,
    check=check,
    tokens=True,
)
