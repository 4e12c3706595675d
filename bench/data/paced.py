"""A stand-in for input: sleeps a stated time per item, so the right answer is known and no core is used."""

import os
from typing import TYPE_CHECKING, Any

from bench.case import Case
from bench.options import option
from bench.plugins import Data, Options

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from bench.workload import Sample

OPTIONS: Options = {"item_s": 0.005, "length": 100_000, "slow_rank": -1, "slow_item_s": 0.0}


def make(case: Case, sample: "Sample") -> "Dataset[Any]":
    """`length` samples of `item_s` each; `slow_rank` (by RANK) takes `slow_item_s` more for each."""
    from bench.data._samples import PacedSamples

    slow = option(case.data_args, OPTIONS, "slow_rank") == int(os.environ.get("RANK", "0"))
    extra_s = option(case.data_args, OPTIONS, "slow_item_s") if slow else 0.0
    return PacedSamples(sample, length(case), option(case.data_args, OPTIONS, "item_s") + extra_s)


def length(case: Case) -> int:
    """Samples an epoch."""
    return int(option(case.data_args, OPTIONS, "length"))


PLUGIN = Data(
    "sleeps a stated time per item (a stand-in)", make, options=OPTIONS, length=length, stand_in=True
)
