"""One random batch that lies on the device before the first step: no input at all, the compute ceiling."""

from typing import TYPE_CHECKING, Any

from bench import plugins
from bench.case import Case
from bench.plugins import Data

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from bench.workload import Sample


def make(case: Case, sample: "Sample") -> "Dataset[Any]":
    """The samples of one batch of one rank, to be collated once."""
    from bench.data._samples import RandomSamples

    return RandomSamples(sample, length(case), case.seed)


def length(case: Case) -> int:
    """Samples in a rank's micro-batch: a process that drives all devices takes that of all of them."""
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    return case.micro_batch if strategy.single_process else case.device_batch


PLUGIN = Data("one random batch that is on the device already", make, length=length, loader=False)
