"""The short check before a study's first block: what it takes, and what it says."""

from collections.abc import Callable, Sequence

from bench import verify_cache
from bench.estimate import BLOCK_S, LAUNCH_S
from bench.machine import Host
from bench.nodes import Team
from bench.plan import Plan
from bench.store import Store
from bench.study import signals
from bench.verify import Verifier
from bench.verify_records import Way
from bench.verify_ways import BATCH, STEPS, ways
from bench.verify_words import summed_up

LEAVE_OUT = "--no-verify leaves it out"
LIMIT_S = 60.0  # a check before a study takes no longer, nor more than a share of the study's time
SHARE, LEAST_S = 0.1, 10.0


def before_study(
    plan: Plan,
    store: Store,
    host: Host,
    budget_s: float | None,
    team: Team | None,
    say: Callable[[str], None],
) -> None:
    """Verify the ways of training of a plan, write verify.json, and say what was found; the study goes on.

    Its time comes beside the study's own. Raises Interrupted for a signal, as the study does.
    """
    found = ways(plan.runnable, quick=True)
    if not found:
        return
    known = {way.name for way in found if verify_cache.read(way, host) is not None}
    todo = [way for way in found if way.name not in known]
    limit_s = LIMIT_S if budget_s is None else min(LIMIT_S, max(LEAST_S, SHARE * budget_s))
    heavy = {way.name for way in todo if _way_s(way, plan) > limit_s}
    todo = [way for way in todo if way.name not in heavy]
    if todo:
        about = expected_s(todo, plan)
        number = "1 way" if len(todo) == 1 else f"{len(todo)} ways"
        say(f"verifying {number} of training, about {about:.0f} s ({LEAVE_OUT})")
    with signals():
        verified = Verifier(host, team, plan.devices, lambda _: None).verify(found, limit_s, store, heavy)
    store.write_verification(verified)
    for text in summed_up(verified):
        say(text)


def expected_s(todo: Sequence[Way], plan: Plan) -> float:
    """Seconds that the check of these ways is expected to take."""
    return BLOCK_S + sum(_way_s(way, plan) for way in todo) if todo else 0.0


def _way_s(way: Way, plan: Plan) -> float:
    """From what a launch of one of its cells takes: fewer samples, twice by the reference, in twice the precision."""
    cell = next(cell for cell in plan.runnable if cell.id in way.cells)
    case = cell.case
    sample_s = max(0.0, plan.estimates[cell.id].seconds - LAUNCH_S) / (case.steps * case.device_batch)
    passes = (1 + 2 * way.case.devices) * BATCH * STEPS
    return LAUNCH_S + 2 * sample_s * passes
