"""Does an epoch hold every sample once, and each epoch in another order? Indices in, checks out."""

import math
from collections.abc import Sequence

import numpy as np

from bench.verify_records import Check

CHANCE = 1e-3  # of the same orders by chance: a shuffle that is more likely to give them is not judged


def samples(orders: Sequence[np.ndarray], length: int, batch: int) -> Check:
    """Whether the ranks' indices of one epoch, `orders`, cover `length` samples once.

    A sampler that pads repeats as many samples as make the ranks equal, fewer than there are ranks; one that
    drops leaves out as many. Anything beyond is a failure. `batch`: samples a rank takes at a time.
    """
    ranks = len(orders)
    sizes = sorted({len(order) for order in orders})
    if len(sizes) > 1:
        return _failed("samples", f"ranks get {sizes[0]} to {sizes[-1]} samples an epoch: they must be equal")
    taken = np.concatenate([np.asarray(order, dtype=np.int64) for order in orders])
    outside = taken[(taken < 0) | (taken >= length)]
    if len(outside):
        return _failed("samples", f"index {outside[0]} is asked for, of a data set of {length} samples")
    counts = np.bincount(taken, minlength=length)
    missing, repeated = np.flatnonzero(counts == 0), int((counts - 1).clip(0).sum())
    padded, dropped = max(0, len(taken) - length), max(0, length - len(taken))
    if max(padded, dropped) >= ranks or repeated != padded or len(missing) != dropped:
        return _failed("samples", _uneven(orders, counts, missing, length))
    if padded:
        told = f"every one once, and {padded} again, so that each rank has {sizes[0]}"
    elif dropped:
        told = f"each at most once, {dropped} left out, so that each rank has {sizes[0]}"
    else:
        told = f"every one once, {sizes[0]} a rank"
    rest = sizes[0] % batch
    tail = f"; the last {rest} of each rank fill no batch of {batch} and are dropped" if rest else ""
    return Check(name="samples", outcome="pass", detail=f"{length} samples, {_ranks(ranks)}: {told}{tail}")


def epochs(orders: Sequence[np.ndarray], again: np.ndarray) -> Check:
    """Whether one rank's order differs between epochs, and is the same `again` for the first of them.

    Not applicable where a good sampler could give equal orders by chance: n samples have n! of them.
    """
    first, rest = orders[0], orders[1:]
    chance = 1 / math.factorial(min(len(first), 100)) ** len(rest)
    if chance > CHANCE:
        told = f"{_samples(len(first))} a rank: {len(orders)} epochs have the same order by a chance of {chance:.1g}"
        return Check(name="epochs", outcome="not applicable", detail=told)
    if all(np.array_equal(first, order) for order in rest):
        told = f"set_epoch has no effect: {len(orders)} epochs in the same order"
        return _failed("epochs", told)
    if not np.array_equal(first, again):
        return _failed("epochs", "the same epoch with the same seed has another order when asked for again")
    return Check(
        name="epochs", outcome="pass", detail="each epoch has an order of its own, the same for the same seed"
    )


def _uneven(orders: Sequence[np.ndarray], counts: np.ndarray, missing: np.ndarray, length: int) -> str:
    """Which sample is seen too often, by whom, and which one never."""
    told = []
    often = int(counts.argmax())
    if counts[often] > 1:
        who = [rank for rank, order in enumerate(orders) if often in order]
        told.append(f"sample {often} is seen {counts[often]} times (rank {', '.join(map(str, who[:4]))})")
    if len(missing):
        told.append(f"{len(missing)} of {length} never, such as sample {missing[0]}")
    return "; ".join(told)


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _failed(name: str, detail: str) -> Check:
    return Check(name=name, outcome="fail", detail=detail)
