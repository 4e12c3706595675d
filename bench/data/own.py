"""The data set that the user's own model brings (`Workload.dataset`)."""

from typing import Any

from bench.errors import UsageError
from bench.plugins import Data


def make(case: Any, sample: Any) -> Any:
    """Never called with a workload that has a data set: that one is used as it is."""
    raise UsageError(
        f"model {case.model!r} brings no data set: return Workload(dataset=...) or set data=synthetic"
    )


PLUGIN = Data("the data set of your own model", make)
