"""`scalemark plan`: the cells, what is skipped and why, the expected time; runs nothing."""

from typing import TYPE_CHECKING, Any

import typer

from bench.verbs import _options as o

if TYPE_CHECKING:
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
    json: o.Json = False,
) -> None:
    """Show the cells of a suite on this host, what is skipped and why, and the expected time."""
    from bench.asked import Asked
    from bench.machine import probe_host
    from bench.plan import check_words, make_plan

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
    )
    if json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(as_dict(made, budget_s))).decode())
    else:
        show(made, budget_s)


def as_dict(made: "Plan", budget_s: float | None) -> dict[str, Any]:
    """The plan as plain data."""
    cells = [
        {
            "id": c.id,
            "suite": c.suite,
            "skipped": c.skipped,
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
        "expected_s": expected_s(made, budget_s) if made.runnable else None,
        "budget_s": budget_s,
    }


def expected_s(made: "Plan", budget_s: float | None) -> tuple[float, float]:
    """Seconds from the fewest to the most launches, within the budget; the first block runs whatever it takes."""
    from bench.plan import MAX_LAUNCHES, MIN_LAUNCHES

    low, high = made.blocks_s(MIN_LAUNCHES), made.blocks_s(MAX_LAUNCHES)
    limit = float("inf") if budget_s is None else max(budget_s, made.block_s)
    return min(low, limit), min(high, limit)


def show(made: "Plan", budget_s: float | None) -> None:
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
    low, high = expected_s(made, budget_s)
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
    typer.echo(f"expected in all: {span} (5 to 10 launches a cell, {limit}); --quick runs one launch a cell")


PLUGIN = plan
