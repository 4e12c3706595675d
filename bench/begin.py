"""What a study needs before its first launch: its header, and the files that take long to make."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench import __version__
from bench.case import FIELDS, Case
from bench.errors import UsageError
from bench.gitstate import git_state
from bench.machine import Host
from bench.nodes import Team
from bench.options import data_plugin
from bench.plan import Plan
from bench.plugins import clip
from bench.records import StudyHeader
from bench.stopping import Rules


def header(
    name: str,
    plan: Plan,
    host: Host,
    rules: Rules,
    command: Sequence[str],
    quick: bool = False,
    before: StudyHeader | None = None,
    team: Team | None = None,
    box: bool = False,
) -> StudyHeader:
    """study.json of a run of this plan. Cells of the study that it goes on with, `before`, stay in it.

    `team` are its nodes, where there are several; `box`: they share one machine.
    """
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
        nodes=team.members if team else (),
        box=box,
        pairs=team.pairs if team else (),
    )


def check_resumed(plan: Plan, before: StudyHeader, root: Path) -> None:
    """Raise UsageError for a plan with cells that the study to go on with does not have: they would stand in it side by side.

    Cells that the study left out for want of time are its own: another budget may have room for them.
    """
    old = {cell.id for cell in before.cells}
    new = [
        cell
        for cell in plan.runnable
        if cell.id not in old and not any(cell.id in text for text in before.left_out)
    ]
    if not new or not before.cells:
        return
    told = []
    for field in FIELDS:
        had = list(dict.fromkeys(repr(getattr(cell.case, field)) for cell in before.cells))
        asked = dict.fromkeys(repr(getattr(cell.case, field)) for cell in new)
        other = [value for value in asked if value not in had]
        if other:
            told.append(f"{field} {', '.join(other)} (it has {', '.join(had[:3])})")
    what = "; ".join(told[:4]) or f"cells such as {new[0].id}"
    raise UsageError(
        f"--resume: {root} was run without {clip(what, 400)}: give the settings that it was run with, or leave out"
        " --resume and give another name by -o"
    )


def prepare(plan: Plan) -> None:
    """What takes long the first time is done before anything is measured."""
    for cell in plan.runnable:
        prepare_case(cell.case)


def prepare_case(case: Case) -> None:
    """Make the files that a case's data needs, where they are not there yet."""
    data_plugin(case.data)[0].prepare(case)
