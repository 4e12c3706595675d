"""Verifications as values: what `scalemark verify` could have found of a case."""

from bench.verify_records import Check, Verification, Way
from bench.verify_ways import plain, words


def verification(
    case, outcome="fail", detail="fc.weight differs by 0.5 in step 1", name="gradients", reason=None
):
    """One way of training, that of the case, with one check that passed and one with the outcome."""
    tensor = {"tensor": "fc.weight", "largest": 0.5, "relative": 0.25, "step": 1} if outcome == "fail" else {}
    checks = (
        Check(name="weights", outcome="pass", detail="4 tensors", relative=0.0),
        Check(name=name, outcome=outcome, detail=detail, tolerance=1e-10, **tensor),
    )
    way = Way(
        name=words(plain(case)), case=plain(case), cells=(case.id,), checks=checks, reason=reason, seconds=1.0
    )
    return Verification(created_at="2026-01-02T03:04:05+00:00", torch="2.13.0", steps=3, ways=(way,))
