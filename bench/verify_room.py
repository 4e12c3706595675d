"""Is there memory for a model, its gradients and optimizer state in float64, and for the reference beside them?"""

import psutil
from torch import nn

from bench.case import Case
from bench.cgroup import memory_limit_bytes
from bench.place import Place
from bench.verify_tensors import everyone

COPIES = 6  # of all parameters in a rank: weights, gradients, optimizer state, buckets, copies to compare
REFERENCE = 6  # on rank 0 besides: weights, two sets of gradients, optimizer state, weights to begin from
SHARE = 0.8  # of what is free


def no_room(model: nn.Module, case: Case, place: Place) -> str | None:
    """Why a model is too large to be checked here, or None. Activations of a few samples are not counted."""
    wide = 8 * sum(parameter.numel() for parameter in model.parameters())
    here = sum(1 for node in everyone(place.node) if node == place.node)
    if place.accelerated:
        needed, free = (COPIES + REFERENCE * (place.rank == 0)) * wide, int(place.module.mem_get_info()[0])
    else:
        needed, free = (COPIES * here + REFERENCE * (place.node == 0)) * wide, _free_bytes()
    if needed <= SHARE * free:
        return None
    return (
        f"not enough memory: {needed / 2**30:.1f} GiB for the model in float64 and one more of it,"
        f" {free / 2**30:.1f} GiB free"
    )


def _free_bytes() -> int:
    """Memory of the host that may still be taken: by this machine, or by the group that this process is in."""
    free = psutil.virtual_memory().available
    limit = memory_limit_bytes()
    return free if limit is None else min(free, limit)
