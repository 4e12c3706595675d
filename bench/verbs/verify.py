"""`scalemark verify`: do the ways of training compute the same? A line a way, the first tensor that differs named."""

from typing import TYPE_CHECKING, Annotated

import typer

from bench.verbs import _nodes as n
from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.verify_records import Verification, Way

SUITES = ("ddp", "dp", "syncbn")
SIGNS = {"pass": "ok", "known": "known", "fail": "FAIL", "cannot tell": "?", "not applicable": "-"}
CODES = {"fail": 1, "cannot tell": 5}


def verify(
    suites: Annotated[
        list[str] | None, typer.Argument(help="Suites by name or TOML files (default: ddp, dp and syncbn).")
    ] = None,
    sets: o.Sets = None,
    nproc: o.Nproc = None,
    devices: o.Devices = None,
    oversubscribe: o.Oversubscribe = False,
    nodes: n.Nodes = None,
    node_rank: n.Rank = None,
    lead: n.Lead = None,
    interface: n.Interface = None,
    node_wait: n.Wait = "2m",
    json: o.Json = False,
) -> None:
    """Check that every way of training computes what one process does; exit 1 where one does not, 5 where none can tell."""
    from bench.begin import prepare
    from bench.errors import UsageError
    from bench.machine import probe_host
    from bench.plan import check_words, make_plan
    from bench.verify_ways import ways

    asked = n.asked(nodes, node_rank, lead, None, None, interface, None, node_wait)
    chosen = o.parse_devices(devices)
    if asked.follows:
        n.follow(asked, chosen)
    names = suites or list(SUITES)
    check_words(names, sets or ())
    host = probe_host()
    plan = make_plan(
        names, host, sets=sets or (), nproc=nproc, oversubscribe=oversubscribe, devices=chosen,
        team=asked.plan_nodes(),
    )  # fmt: skip
    found = ways(plan.runnable)
    if not found:
        why = plan.cells[0].skipped if plan.cells else "the suite has no cells"
        raise UsageError(f"nothing to verify: {why}")
    prepare(plan)
    verified = _run(asked, plan, host, found, ["verify", *names], json)
    if json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(as_dict(verified))).decode())
    else:
        show(verified)
    raise typer.Exit(CODES.get(verified.outcome, 0))


def _run(asked, plan, host, found, words: list[str], json: bool) -> "Verification":  # type: ignore[no-untyped-def]
    """Bring the nodes together where there are several, and run every way."""
    from contextlib import ExitStack

    from bench import temporary
    from bench.study import Interrupted, signals
    from bench.verify import Verifier

    def say(text: str) -> None:
        typer.echo(text, err=True)

    temporary.sweep()
    try:
        with signals(), ExitStack() as stack:
            team = None
            if asked.nodes > 1:
                from bench.leading import lead

                team, _ = stack.enter_context(lead(asked, plan, host, words, say))
            return Verifier(host, team, plan.devices, say).verify(found)
    except Interrupted:
        typer.echo("stopped: nothing is kept of a check", err=True)
        raise typer.Exit(130) from None


def as_dict(found: "Verification") -> dict:
    """Everything as plain data, with the outcome of all and of each way."""
    import msgspec

    data: dict = msgspec.to_builtins(found)
    for way, plain in zip(found.ways, data["ways"], strict=True):
        plain["outcome"] = way.outcome
    return {"outcome": found.outcome, **data}


def show(found: "Verification") -> None:
    """A table of ways and checks, then what is to be said of them."""
    from bench.console import table
    from bench.verify_records import CHECKS
    from bench.verify_words import summed_up

    rows = [
        [way.name, *_signs(way), "" if way.seconds is None else f"{way.seconds:.1f} s"] for way in found.ways
    ]
    typer.echo(table(["way of training", *CHECKS, "took"], rows))
    typer.echo("")
    for way in found.ways:
        for check in way.checks:
            if check.outcome in ("known", "fail"):
                typer.echo(f"{SIGNS[check.outcome]}: {way.name}: {check.name}: {check.detail}")
    for text in summed_up(found):
        typer.echo(text)


def _signs(way: "Way") -> list[str]:
    """One word a check."""
    from bench.verify_records import CHECKS

    known = {check.name: SIGNS[check.outcome] for check in way.checks}
    return [known.get(name, "?") for name in CHECKS]


PLUGIN = verify
