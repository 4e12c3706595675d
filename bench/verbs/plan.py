"""`scalemark plan`: the cells, what is skipped and why, the expected time; runs nothing."""

from typing import TYPE_CHECKING, Any

import typer

from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.closing import Limits
    from bench.plan import Plan


def plan(
    suites: o.Suites,
    sets: o.Sets = None,
    nproc: o.Nproc = None,
    devices: o.Devices = None,
    oversubscribe: o.Oversubscribe = False,
    budget: o.Budget = None,
    nodes: o.Nodes = 1,
    link: o.Link = None,
    strict: o.Strict = False,
    aa: o.Aa = False,
    json: o.Json = False,
) -> None:
    """Show the cells of a suite on this host, what is skipped and why, and the expected time."""
    from bench.asked import Asked
    from bench.machine import probe_host
    from bench.plan import check_words, make_plan
    from bench.stopping import limits

    budget_s, chosen = o.parse_budget(budget), o.parse_devices(devices)
    asked = Asked(nodes=nodes, link=link)
    asked.checked()
    check_words(suites, sets or ())  # a slip of the pen is told before the devices are looked for
    made = make_plan(
        suites,
        probe_host(),
        sets=sets or (),
        nproc=nproc,
        oversubscribe=oversubscribe,
        devices=chosen,
        budget_s=budget_s,
        team=asked.plan_nodes(),
        aa=aa,
    )
    if json:
        import msgspec

        answer = as_dict(made, budget_s, limits(strict=strict))
        typer.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
    else:
        show(made, budget_s, limits(strict=strict))


def as_dict(made: "Plan", budget_s: float | None, limits: "Limits") -> dict[str, Any]:
    """The plan as plain data."""
    cells = [
        {
            "id": c.id,
            "suite": c.suite,
            "skipped": c.skipped,
            "twin_of": c.twin_of,
            "case": c.case,
            "seconds": made.estimates[c.id].seconds,
        }
        for c in made.cells
    ]
    return {
        "suites": made.suites,
        "cells": cells,
        "left_out": made.left_out,
        "notes": made.notes,
        "block_s": made.block_s if made.runnable else None,
        "expected_s": expected_s(made, budget_s, limits) if made.runnable else None,
        "budget_s": budget_s,
        "target": limits.target,
        "launches": (limits.min_launches, limits.max_launches),
    }


def expected_s(made: "Plan", budget_s: float | None, limits: "Limits") -> tuple[float, float]:
    """Seconds from the fewest to the most launches, within the budget; the first block runs whatever it takes."""
    low, high = made.blocks_s(limits.min_launches), made.blocks_s(limits.max_launches)
    limit = float("inf") if budget_s is None else max(budget_s, made.block_s)
    return min(low, limit), min(high, limit)


def show(made: "Plan", budget_s: float | None, limits: "Limits") -> None:
    """The plan in words and a table."""
    from bench.console import table
    from bench.live import clock
    from bench.wording import plural

    rows = [[c.suite, c.id, f"{made.estimates[c.id].seconds:.0f} s"] for c in made.runnable]
    if rows:
        typer.echo(table(["suite", "cell", "a launch"], rows))
    for cell in made.cells:
        if cell.skipped:
            typer.echo(f"skipped: {cell.id}: {cell.skipped}")
    for text in made.left_out:
        typer.echo(f"left out: {text}")
    for text in made.notes:
        typer.echo(f"note: {text}")
    if not made.runnable:
        typer.echo(f"nothing to run: {'every cell is skipped' if made.cells else 'the suite has no cells'}")
        return
    low, high = expected_s(made, budget_s, limits)
    rough = (
        ""
        if all(made.estimates[cell.id].measured for cell in made.runnable)
        else " (partly guessed: not all cells ran here before)"
    )
    span = clock(low) if round(low) == round(high) else f"{clock(low)} to {clock(high)}"
    limit = "no time limit" if budget_s is None else f"time limit {clock(budget_s)}"
    typer.echo(
        f"{plural(len(made.runnable), 'cell')}, a block of all takes about {clock(made.block_s)}{rough};"
    )
    launches = (
        f"{limits.min_launches} to {limits.max_launches} launches a cell until ±{limits.target * 100:g} %"
    )
    typer.echo(f"expected in all: {span} ({launches}, {limit}); --quick runs one launch a cell")
    first = verified_first(made)
    if first is not None:
        typer.echo(first)


def verify_s(made: "Plan") -> float | None:
    """Seconds that checking the ways of training takes before the first block, beside the time limit; None for none."""
    from bench.verify_first import expected_s
    from bench.verify_ways import ways

    found = ways(made.runnable, quick=True)
    return expected_s(found, made) if found else None


def verified_first(made: "Plan") -> str | None:
    """A line on that check, where there is one."""
    from bench.live import clock
    from bench.verify_first import LEAVE_OUT
    from bench.verify_ways import ways
    from bench.wording import plural

    count, seconds = len(ways(made.runnable, quick=True)), verify_s(made)
    if seconds is None:
        return None
    text = f"before that, {plural(count, 'way')} of training {'is' if count == 1 else 'are'} verified"
    return f"{text}: about {clock(seconds)} beside the time limit ({LEAVE_OUT}; --quick has none)"


PLUGIN = plan
