"""`scalemark run`: live progress, a line a result, then the findings and the command for the report."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.machine import Host
    from bench.plan import Plan
    from bench.store import Store
    from bench.study import Rules


def run(
    suites: o.Suites,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="results/NAME", help="Where the study goes.")
    ] = None,
    sets: o.Sets = None,
    nproc: o.Nproc = None,
    devices: o.Devices = None,
    oversubscribe: o.Oversubscribe = False,
    budget: o.Budget = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One launch a cell: no intervals, no verdicts.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the study at -o (default: the newest of these suites)."),
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first cell that fails.")
    ] = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="torch.profiler traces of a few steps after the window, a rank each."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the order of launches.")] = 0,
) -> None:
    """Run suites: randomised blocks of launches until the intervals are narrow or the time is up."""
    from bench.begin import check_resumed, header, prepare
    from bench.machine import probe_host
    from bench.plan import check_words, make_plan
    from bench.study import Rules

    o.refuse_launcher(os.environ)
    budget_s, chosen = o.parse_budget(budget), o.parse_devices(devices)
    check_words(suites, sets or ())  # a slip of the pen is told before the devices are looked for
    host = probe_host()
    plan = make_plan(
        suites,
        host,
        sets=sets or (),
        nproc=nproc,
        oversubscribe=oversubscribe,
        devices=chosen,
        budget_s=budget_s,
    )
    launches = {"min_launches": 1, "max_launches": 1} if quick else {}
    rules = Rules(budget_s=budget_s, seed=seed, fail_fast=fail_fast, trace=trace, **launches)
    _refuse_empty(plan)
    store = _open(output, suites, resume)
    with store.lock():
        before = store.header() if resume else None
        if before is not None:
            check_resumed(plan, before, store.root)
        command = ("scalemark", *sys.argv[1:])
        store.create(header(store.name, plan, host, rules, command, quick, before), resume=resume)
        prepare(plan)
        finished = _conduct(plan, store, host, rules)
    code = _conclude(store)
    raise typer.Exit(code if finished else 130)


def _refuse_empty(plan: "Plan") -> None:
    from bench.errors import UsageError

    for cell in plan.cells:
        if cell.skipped:
            typer.echo(f"skipped: {cell.id}: {cell.skipped}")
    for text in plan.left_out:
        typer.echo(f"left out: {text}")
    for text in plan.notes:
        typer.echo(f"note: {text}")
    if not plan.runnable:
        why = plan.cells[0].skipped if plan.cells else "the suite has no cells"
        raise UsageError(f"nothing to run: {why}")


def _open(output: str | None, suites: list[str], resume: bool) -> "Store":
    from bench.store import RESULTS, Store, resolve

    if resume:
        return _stopped(output, tuple(suites))
    if output:
        return Store(resolve(output))
    stem = "-".join(Path(name).stem for name in suites)[:60]
    number = 1
    while (RESULTS / f"{stem}-{number}").exists():
        number += 1
    return Store(RESULTS / f"{stem}-{number}")


def _stopped(output: str | None, suites: tuple[str, ...]) -> "Store":
    """The study to go on with: the one named, or the newest of these suites. Raises UsageError for another one."""
    from bench.errors import UsageError
    from bench.store import RESULTS, newest, open_store

    store = open_store(output) if output else newest(lambda header: header.suites == suites)
    if store is None:
        raise UsageError(f"--resume: no study of {' '.join(suites)} in {RESULTS}/; name one by -o")
    found = store.header().suites
    if found != suites:
        raise UsageError(f"--resume: {store.root} is a study of {' '.join(found)}, not of {' '.join(suites)}")
    return store


def _resumed(store: "Store") -> list[str]:
    """This command's words with --resume and the study's folder."""
    words = list(sys.argv[1:])
    if "--resume" not in words:
        words.append("--resume")
    named = any(word in ("-o", "--output") or word.startswith(("-o=", "--output=")) for word in words)
    return words if named else [*words, "-o", str(store.root)]


def _conduct(plan: "Plan", store: "Store", host: "Host", rules: "Rules") -> bool:
    """Run the study; True if it came to its end."""
    from bench.live import Live
    from bench.study import FailedFast, Interrupted, Study
    from bench.wording import plural

    typer.echo(f"study {store.root}: {plural(len(plan.runnable), 'cell')}")
    try:
        with Live() as live:
            Study(plan, store, host, rules, live).run()
    except FailedFast:
        typer.echo("stopped at the first failure, as --fail-fast asks")
    except Interrupted:
        typer.echo(
            f"stopped; everything measured is kept. Go on with: scalemark {shlex.join(_resumed(store))}"
        )
        return False
    return True


def _conclude(store: "Store") -> int:
    """Print the table of results, the findings and the next command; return the exit code."""
    from bench.analysis import analyse
    from bench.console import results

    analysis = analyse([store])
    typer.echo(results(analysis))
    typer.echo(f"report: scalemark report {shlex.quote(str(store.root))}")
    traces = sorted(store.root.glob("traces/*/*.json.gz"))
    if traces:
        typer.echo(
            f"traces: {store.root / 'traces'}: {len(traces)} files, for https://ui.perfetto.dev or chrome://tracing"
        )
    ran = [cell for cell in analysis.cells if cell.status != "skipped"]
    good = [cell for cell in ran if cell.samples_per_s is not None]
    if not good:
        return 4
    return 1 if any(cell.failed or cell.samples_per_s is None for cell in ran) else 0


PLUGIN = run
