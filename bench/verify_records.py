"""What `verify` leaves behind: what every way of training has in common with one process, check by check."""

from typing import Literal

import msgspec

from bench.case import Case

VERIFY_SCHEMA = 1
Outcome = Literal["pass", "known", "fail", "cannot tell", "not applicable"]
GRAVE: tuple[Outcome, ...] = ("fail", "cannot tell", "known", "pass", "not applicable")  # the worst first

# the checks of a way of training, in the order in which they are shown
CHECKS = (
    *("weights", "data", "samples", "epochs"),
    *("gradients", "global batch", "loss", "batch norm", "parameters"),
)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was found, in words, and the first tensor that differs.

    `known` is a difference that should be there, with its reason in `detail`. `largest` is the largest absolute
    difference in that tensor, `relative` the same over the largest value of all tensors compared, which is what
    `tolerance` limits.
    """

    name: str
    outcome: Outcome
    detail: str
    tensor: str | None = None
    step: int | None = None  # counted from 1
    largest: float | None = None
    relative: float | None = None
    tolerance: float | None = None


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way of training: the case that ran to check it, the cells that train so, and what came of it."""

    name: str
    case: Case
    cells: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    seconds: float | None = None  # None where it was not run
    reason: str | None = None  # why it has no checks, or not all of them
    before: str | None = None  # when it was checked, where that was in an earlier run on this host

    @property
    def outcome(self) -> Outcome:
        """The worst of its checks; `cannot tell` where there are none."""
        found = {check.outcome for check in self.checks} | ({"cannot tell"} if self.reason else set())
        return next((word for word in GRAVE if word in found), "cannot tell")

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "fail")


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """verify.json: every way of training of a study, `steps` steps each, in float64."""

    schema: int = VERIFY_SCHEMA
    created_at: str
    torch: str | None
    steps: int
    ways: tuple[Way, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of all ways; `not applicable` where there are none."""
        found = {way.outcome for way in self.ways}
        return next((word for word in GRAVE if word in found), "not applicable")

    def failed(self) -> dict[str, str]:
        """Cell -> why it is not compared: the first check of its way that failed, with the tensor."""
        return {
            cell: f"does not train as one process does: {failed.name}: {failed.detail}"
            for way in self.ways
            for failed in way.failures[:1]
            for cell in way.cells
        }
