"""`scalemark checkpoint`: save under every strategy, load into every other one, and say what torch makes of it."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.verbs import _nodes as n
from bench.verbs import _options as o

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.answers import Finding
    from bench.asked import Asked
    from bench.checkpoint_records import CheckpointRow
    from bench.machine import Host
    from bench.plan import Plan
    from bench.stopping import Rules
    from bench.store import Store

    Rows = Sequence[CheckpointRow]


def checkpoint(
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="results/NAME", help="Where the study goes.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="AXIS=V", help="A setting, such as model=gpt2.")
    ] = None,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks of DP, DDP and FSDP (default: 2, or 1).")
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, help="Nodes of one more DDP: agents on this machine.")
    ] = 1,
    devices: o.Devices = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without DP and FSDP, each save and load once.")
    ] = False,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="Write the checkpoints there (default: -o).")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the checkpoints there.")] = False,
    json: o.Json = False,
) -> None:
    """Save and load checkpoints under every strategy: time, bytes, memory, equality, and the classic mistakes."""
    from contextlib import ExitStack

    from bench.checkpoint_plan import suites
    from bench.checkpoint_rows import read
    from bench.checkpoints import place
    from bench.checks.checkpoints import told
    from bench.machine import probe_host
    from bench.plan import make_plan
    from bench.stopping import Rules
    from bench.store import Store, resolve
    from bench.study import Interrupted
    from bench.verbs._elsewhere import new_study

    asked = n.asked(nodes, None, None, None, None, None, None, "2m")
    chosen = o.parse_devices(devices)
    host = probe_host()
    plan = make_plan(
        suites(host, sets or (), nproc, nodes, quick), host, devices=chosen, team=asked.plan_nodes()
    )
    store = Store(resolve(output) if output else new_study(["checkpoint"]))
    rules = Rules(min_launches=1, max_launches=1)

    def say(text: str) -> None:
        typer.echo(text, err=json)

    for cell in plan.cells:
        if cell.skipped:
            say(f"skipped: {cell.case.strategy}: {cell.skipped}")
    finished = True
    with store.lock(), ExitStack() as stack:
        if to is not None:  # a refusal leaves no study behind
            folder = stack.enter_context(place(store, to, keep))
        _begin(plan, store, host, rules, quick)
        if to is None:
            folder = stack.enter_context(place(store, to, keep))
        say(f"study {store.root}: {shutil.disk_usage(folder).free / 2**30:.1f} GiB are free in {folder}")
        try:
            _run(plan, store, host, folder, quick, say, asked)
        except Interrupted:
            finished = False
    rows, broken = read(store.root)
    found = told(rows, broken)
    typer.echo(_as_json(store, rows, found) if json else _as_text(store, rows, found))
    if keep:
        say(f"kept: {folder}")
    raise typer.Exit(_code(rows) if finished else 130)


def _begin(plan: "Plan", store: "Store", host: "Host", rules: "Rules", quick: bool) -> None:
    """study.json: a study without cells, whose results are its checkpoints."""
    import msgspec

    from bench.begin import header, prepare
    from bench.errors import UsageError

    if not plan.runnable:
        raise UsageError(f"nothing to run: {plan.cells[0].skipped}")
    prepare(plan)
    bare = msgspec.structs.replace(plan, suites=plan.suites[:1], cells=(), factors={}, estimates={})
    store.create(header(store.name, bare, host, rules, ("scalemark", *sys.argv[1:]), quick))


def _run(
    plan: "Plan", store: "Store", host: "Host", folder: Path, quick: bool, say: "Callable[[str], None]",
    asked: "Asked",
) -> None:  # fmt: skip
    """Bring the nodes together, where there are several, and save and load."""
    from contextlib import ExitStack

    from bench.checkpoints import Bench

    with ExitStack() as stack:
        team = None
        if asked.nodes > 1:
            from bench.leading import lead

            # a node that follows is told by the leader what to run, whatever its own command says
            team, _ = stack.enter_context(lead(asked, plan, host, ["run", "ddp"], say))
        Bench(plan, store, host, folder, quick, say, team).run()


def _code(rows: "Rows") -> int:
    """4: nothing was saved; 1: a save or a launch failed, or tensors differ. What torch refuses is a result."""
    if not any(row.kind == "save" and row.outcome == "ok" for row in rows):
        return 4
    return 1 if any(row.outcome == "failed" or row.equal is False for row in rows) else 0


def _as_json(store: "Store", rows: "Rows", findings: "Sequence[Finding]") -> str:
    import msgspec

    found = {"study": str(store.root), "rows": rows, "findings": findings}
    return msgspec.json.format(msgspec.json.encode(found)).decode()


def _as_text(store: "Store", rows: "Rows", findings: "Sequence[Finding]") -> str:
    """Both tables, the findings with their remedies, the next command."""
    import shlex

    from bench.console import table
    from bench.report_checkpoints import tables

    lines = []
    for one in tables(rows):
        body = [[entry.text for entry in line.entries] for line in one.lines]
        lines += ["", table([column.title for column in one.columns], body)]
    lines.append("")
    lines += [f"{one.level}: {one.message}\n    {one.remedy}" for one in findings]
    lines.append(f"report: scalemark report {shlex.quote(str(store.root))}")
    return "\n".join(lines)


PLUGIN = checkpoint
