"""GPT-2 small: 124,439,808 parameters, keys and shapes equal to Hugging Face's."""

from typing import TYPE_CHECKING

from bench.case import Case
from bench.options import check_divides
from bench.plugins import Model

if TYPE_CHECKING:
    from bench.workload import Workload

POSITIONS = 1024
OPTIONS = {"sequence": 1024, "vocabulary": 50257, "width": 768, "depth": 12, "heads": 12}


def build(case: Case) -> "Workload":
    """The model and its causal loss. The position table keeps its 1024 rows for shorter sequences."""
    from bench.models._gpt import gpt_workload

    return gpt_workload(case, OPTIONS, POSITIONS)


def check(case: Case) -> None:
    """Raise UsageError for a width that does not divide over the heads."""
    check_divides(case, OPTIONS, "width", "heads")


PLUGIN = Model(
    "GPT-2 small (124 million parameters) on token ids", build, options=OPTIONS, check=check, tokens=True
)
