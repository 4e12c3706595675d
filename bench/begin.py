"""What a study needs before its first launch: its header, and the files that take long to make."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from bench import __version__
from bench.gitstate import git_state
from bench.machine import Host
from bench.options import data_plugin
from bench.plan import Plan
from bench.records import StudyHeader
from bench.study import Rules


def header(
    name: str,
    plan: Plan,
    host: Host,
    rules: Rules,
    command: Sequence[str],
    quick: bool = False,
    before: StudyHeader | None = None,
) -> StudyHeader:
    """study.json of a run of this plan. Cells of the study that it goes on with, `before`, stay in it."""
    planned = {cell.id for cell in plan.cells}
    other = [cell for cell in before.cells if cell.id not in planned] if before else []
    return StudyHeader(
        study=name,
        version=__version__,
        suites=plan.suites,
        cells=(*other, *plan.cells),
        factors=plan.factors,
        created_at=before.created_at if before else datetime.now(UTC).isoformat(timespec="seconds"),
        seed=rules.seed,
        command=tuple(command),
        quick=quick,
        target=rules.target,
        min_launches=rules.min_launches,
        max_launches=rules.max_launches,
        budget_s=rules.budget_s,
        git=git_state(),
        host=msgspec.to_builtins(host),
        left_out=plan.left_out,
    )


def prepare(plan: Plan) -> None:
    """What takes long the first time is done before anything is measured."""
    for cell in plan.runnable:
        data_plugin(cell.case.data)[0].prepare(cell.case)
