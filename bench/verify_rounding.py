"""Parameters whose gradient was nothing but rounding: what an optimizer makes of them is chance, and is told apart."""

from collections.abc import Mapping

from torch import Tensor

from bench.verify_records import Check
from bench.verify_tensors import Apart, Tensors, apart

EPS = 2.3e-16  # of float64
REASON = "as of a bias before BatchNorm, and the optimizer makes steps of it"


class Rounding:
    """Takes the gradients of every step, then compares what became of the parameters.

    A bias before BatchNorm has no gradient but rounding, and AdamW may make a step as long as any of it.
    """

    def __init__(self) -> None:
        self._real: dict[str, Tensor] = {}  # elements whose gradient was more than rounding in every step

    def step(self, gradients: Mapping[str, Tensor]) -> None:
        """The gradients of one step, by parameter."""
        least = 100 * EPS * max((float(one.abs().max()) for one in gradients.values()), default=0.0)
        for name, gradient in gradients.items():
            real = gradient.abs() > least
            self._real[name] = real & self._real.get(name, real)

    def apart(self, ours: Tensors, theirs: Tensors, limit: float) -> tuple[Apart, dict[str, int]]:
        """What lies between parameters, and of each the elements that differ and cannot be judged.

        One scale for all, the largest value: an optimizer's step may be as long in a small tensor.
        """
        found = apart(ours, theirs, limit, floor=1.0)
        if found.first is None:
            return found, {}
        judged = apart(self._judged(ours), self._judged(theirs), limit, floor=1.0)
        return judged, self._left(ours, theirs, limit) if judged.first is None else {}

    def _judged(self, tensors: Tensors) -> Tensors:
        """The tensors, with zeros in the elements that cannot be judged."""
        return {name: one * self._real[name] if name in self._real else one for name, one in tensors.items()}

    def _left(self, ours: Tensors, theirs: Tensors, limit: float) -> dict[str, int]:
        beyond = limit * max(float(one.abs().max()) for one in theirs.values() if one.numel())
        counts = {
            name: int((((ours[name] - theirs[name]).abs() > beyond) & ~real).sum())
            for name, real in self._real.items()
        }
        return {name: count for name, count in counts.items() if count}


def left_out(counts: Mapping[str, int], parameters: Tensors, rest: str) -> Check:
    """The check where elements could not be judged, and the `rest` is equal: most of a matrix is too much for that."""
    count, of = sum(counts.values()), sum(one.numel() for one in parameters.values())
    told = f"{count} of {of} elements cannot be judged, such as of {next(iter(counts))}: their gradient is rounding"
    for name, few in counts.items():
        if parameters[name].dim() > 1 and 2 * few > parameters[name].numel():
            return Check(
                name="parameters", outcome="cannot tell", detail=f"most of {name} is not known: {told}"
            )
    return Check(name="parameters", outcome="known", detail=f"{told}, {REASON}; the others are {rest}")
