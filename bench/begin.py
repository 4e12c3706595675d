"""What a study needs before its first launch: its header, and the files that take long to make."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench import __version__
from bench.case import FIELDS, Case
from bench.errors import UsageError
from bench.gitstate import git_state
from bench.machine import Host, comparable_facts
from bench.nodes import Team
from bench.options import data_plugin
from bench.plan import STRICT_TARGET, Plan
from bench.plugins import clip
from bench.records import Member, Pair, StudyHeader
from bench.stopping import Rules

OTHER_STUDY = "start it as it was, or leave out --resume and give another name by -o"

_One = TypeVar("_One")


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

    `team` are its nodes, where there are several; `box`: they share one machine. Of `before` those stay that are none
    of the team's: its launches ran on them.
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
        nodes=_with_others(before.nodes if before else (), team.members if team else (), _node),
        box=box or bool(before and before.box),
        pairs=_with_others(before.pairs if before else (), team.pairs if team else (), _ends),
    )


def _with_others(had: Sequence[_One], found: Sequence[_One], key: Callable[[_One], Any]) -> tuple[_One, ...]:
    """What was found, and what there was before of other nodes, in the nodes' order."""
    return tuple(sorted(({key(one): one for one in (*had, *found)}).values(), key=key))


def _node(member: Member) -> int:
    return member.node


def _ends(pair: Pair) -> tuple[int, int]:
    return pair.first, pair.second


def check_resumed(plan: Plan, before: StudyHeader, root: Path, quick: bool = False) -> None:
    """Raise UsageError for a plan with cells that the study to go on with does not have: they would stand in it side by side.

    So would launches of one box and of machines, and a `quick` run would take the verdicts from a study that has them.
    Cells that the study left out for want of time are its own: another budget may have room for them.
    """
    if quick and not before.quick:
        raise UsageError(
            f"--resume --quick: {root} was run without --quick, and its verdicts need several launches a cell: leave out"
            " --quick (--budget 5m makes it short), or leave out --resume and give another name by -o"
        )
    if before.nodes and plan.nodes > 1 and plan.box != before.box:
        one_box, apart = "one box, whose nodes are agents on one machine", "nodes started one by one"
        was, now = (one_box, apart) if before.box else (apart, one_box)
        raise UsageError(f"--resume: {root} was run on {was}, and this is {now}: {OTHER_STUDY}")
    old = {cell.id for cell in before.cells}
    new = [
        cell
        for cell in plan.runnable
        if cell.id not in old and not any(cell.id in text for text in before.left_out)
    ]
    if not new or not before.cells:
        return
    told = ["--aa"] if any(cell.twin_of for cell in new) and not has_twin(before) else []
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


def check_nodes(members: Sequence[Member], before: StudyHeader, root: Path) -> None:
    """Raise UsageError for a node that is another machine than the one of its number in the study to go on with.

    Launches record what node 0 is: nothing else tells those of two machines apart.
    """
    had = {member.node: member for member in before.nodes if member.fingerprint}
    for member in members:
        old = had.get(member.node, member)
        if old.fingerprint != member.fingerprint:
            was, now = comparable_facts(old.host), comparable_facts(member.host)
            other = [
                f"{name} {_word(now[name])} (it was {_word(was[name])})"
                for name in now
                if now[name] != was[name]
            ]
            raise UsageError(
                f"--resume: {root} was run on other nodes: node {member.node}, now {clip(member.hostname, 60)}, has"
                f" {clip('; '.join(other), 300)}: {OTHER_STUDY}"
            )


def _word(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def was_strict(before: StudyHeader | None) -> bool:
    """Whether a study that is gone on with asks for the narrower intervals: it goes on asking for them."""
    return before is not None and before.target <= STRICT_TARGET


def has_twin(before: StudyHeader | None) -> bool:
    """Whether a study that is gone on with has an A/A pair: it keeps it."""
    return before is not None and any(cell.twin_of for cell in before.cells)


def prepare(plan: Plan) -> None:
    """What takes long the first time is done before anything is measured."""
    for cell in plan.runnable:
        prepare_case(cell.case)


def prepare_case(case: Case) -> None:
    """Make the files that a case's data needs, where they are not there yet."""
    data_plugin(case.data)[0].prepare(case)
