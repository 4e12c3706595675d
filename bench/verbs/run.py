"""`scalemark run`: live progress, a line a result, then the findings and the command for the report."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bench.verbs import _nodes as n
from bench.verbs import _options as o
from bench.verbs._conclude import conclude
from bench.verbs._elsewhere import new_study, run_words

if TYPE_CHECKING:
    from bench.asked import Asked
    from bench.machine import Host
    from bench.netns import Box
    from bench.nodes import Team
    from bench.plan import Plan
    from bench.stopping import Rules
    from bench.store import Store


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
    strict: o.Strict = False,
    aa: o.Aa = False,
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
    no_verify: Annotated[
        bool,
        typer.Option("--no-verify", help="Do not check first that all ways of training compute the same."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the order of launches.")] = 0,
    nodes: n.Nodes = None,
    node_rank: n.Rank = None,
    lead: n.Lead = None,
    hosts: n.Hosts = None,
    hostfile: n.HostFile = None,
    interface: n.Interface = None,
    link: o.Link = None,
    node_wait: n.Wait = "2m",
) -> None:
    """Run suites: randomised blocks of launches until the intervals are narrow or the time is up."""
    import msgspec

    from bench.begin import has_twin, was_strict
    from bench.machine import probe_host
    from bench.plan import check_words, make_plan
    from bench.stopping import Rules, limits

    asked = n.asked(nodes, node_rank, lead, hosts, hostfile, interface, link, node_wait)
    budget_s, chosen = o.parse_budget(budget), o.parse_devices(devices)
    o.check_limits(quick, strict, aa)
    if asked.follows:
        n.follow(asked, chosen)
    check_words(suites, sets or ())  # a slip of the pen is told before the devices are looked for
    if asked.away:
        words = run_words(
            suites, sets=sets, ngpu=nproc or asked.slots, budget=budget, interface=interface, seed=seed,
            oversubscribe=oversubscribe, quick=quick, strict=strict, aa=aa, resume=resume, fail_fast=fail_fast,
            trace=trace, no_verify=no_verify, devices=devices, wait=node_wait,
        )  # fmt: skip
        n.away(asked, words, _open(output, suites, resume))
    if nproc and (narrow := n.narrow(nproc)):
        typer.echo(f"note: {narrow}")
    store = _open(output, suites, resume)
    before = store.header() if resume else None
    strict, aa = strict or was_strict(before), aa or has_twin(before)
    host = probe_host()
    plan = make_plan(
        suites,
        host,
        sets=sets or (),
        nproc=nproc or asked.slots,
        oversubscribe=oversubscribe,
        devices=chosen,
        budget_s=budget_s,
        team=asked.plan_nodes(),
        aa=aa,
    )
    launches = msgspec.structs.asdict(limits(quick, strict))
    rules = Rules(budget_s=budget_s, seed=seed, fail_fast=fail_fast, trace=trace, **launches)
    _refuse_empty(plan)
    with store.lock():
        finished = _begin(plan, store, host, rules, asked, suites, quick, resume, not (quick or no_verify))
    code = conclude(store)
    raise typer.Exit(code if finished else 130)


def _begin(
    plan: "Plan", store: "Store", host: "Host", rules: "Rules", asked: "Asked", suites: list[str], quick: bool,
    resume: bool, verify: bool,
) -> bool:  # fmt: skip
    """Bring the nodes together, write study.json, run; True if the study came to its end."""
    from contextlib import ExitStack

    from bench.begin import check_nodes, check_resumed, header, prepare

    before = store.header() if resume else None
    if before is not None:
        check_resumed(plan, before, store.root, quick)
    prepare(plan)
    with ExitStack() as stack:
        team = box = None
        if asked.nodes > 1:
            from bench.leading import lead

            team, box = stack.enter_context(lead(asked, plan, host, ["run", *suites], typer.echo))
            if before is not None:
                check_nodes(team.members, before, store.root)
        command = ("scalemark", *sys.argv[1:])
        head = header(store.name, plan, host, rules, command, quick, before, team, asked.box)
        store.create(head, resume=resume)
        return _conduct(plan, store, host, rules, team, box, verify)


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
    from bench.store import Store, resolve

    if resume:
        return _stopped(output, tuple(suites))
    if output:
        return Store(resolve(output))
    return Store(new_study(suites))


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


def _conduct(
    plan: "Plan", store: "Store", host: "Host", rules: "Rules", team: "Team | None", box: "Box | None", verify: bool
) -> bool:  # fmt: skip
    """Run the study, verified before where asked; True if it came to its end."""
    from bench.live import Live
    from bench.study import FailedFast, Interrupted, Study
    from bench.verify_first import before_study
    from bench.wording import plural

    typer.echo(f"study {store.root}: {plural(len(plan.runnable), 'cell')}")
    try:
        with Live() as live:
            if verify:
                before_study(plan, store, host, rules.budget_s, team, live.say)
            Study(plan, store, host, rules, live, team, box).run()
    except FailedFast:
        typer.echo("stopped at the first failure, as --fail-fast asks")
    except Interrupted:
        typer.echo(n.STOPPED.format(n.resumed(store)))
        return False
    return True


PLUGIN = run
