"""Random samples through a real DataLoader: what the loader itself costs, without any decoding."""

from typing import TYPE_CHECKING, Any

from bench.case import Case
from bench.options import option
from bench.plugins import Data

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from bench.workload import Sample

OPTIONS = {"length": 100_000}


def make(case: Case, sample: "Sample") -> "Dataset[Any]":
    """`length` random samples, the same for the same index and the case's seed."""
    from bench.data._samples import RandomSamples

    return RandomSamples(sample, length(case), case.seed)


def length(case: Case) -> int:
    """Samples an epoch."""
    return int(option(case.data_args, OPTIONS, "length"))


PLUGIN = Data("random samples through a real DataLoader", make, options=OPTIONS, length=length)
