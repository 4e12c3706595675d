"""Options of studies that are started elsewhere, and how they become the words of `scalemark run`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.errors import UsageError
from bench.verbs import _options as o

Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Nodes; the command runs once on each.")]
Ngpu = Annotated[
    int | None, typer.Option("--ngpu", min=1, help="Device slots a node (default: what a node has).")
]
Gpus = Annotated[
    bool | None,
    typer.Option(
        "--gpus/--no-gpus", help="Ask for GPUs, or run CPU ranks (default: GPUs where there are any)."
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="One launch a cell: no intervals, no verdicts.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first cell that fails.")]
Trace = Annotated[
    bool, typer.Option("--trace", help="torch.profiler traces of a few steps after the window, a rank each.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the order of launches.")]
Interface = Annotated[
    str | None, typer.Option("--interface", metavar="NAME", help="The network interface between the nodes.")
]


def run_words(
    suites: Sequence[str],
    *,
    sets: Sequence[str] | None = None,
    ngpu: int | None = None,
    budget: str | None = None,
    interface: str | None = None,
    seed: int = 0,
    devices: str | None = None,
    wait: str | None = None,
    **flags: bool,
) -> tuple[str, ...]:
    """`run SUITE ...` with what differs from the defaults. Raises UsageError for what no host could run."""
    from bench.plan import check_words

    o.parse_budget(budget)
    o.parse_budget(wait, "--node-wait")
    check_words(suites, sets or ())
    valued = {
        "--nproc": ngpu, "--devices": devices, "--budget": budget, "--interface": interface, "--seed": seed or None,
        "--node-wait": wait,
    }  # fmt: skip
    return (
        "run",
        *suites,
        *(word for text in sets or () for word in ("--set", text)),
        *(word for name, value in valued.items() if value is not None for word in (name, str(value))),
        *(f"--{name.replace('_', '-')}" for name, given in flags.items() if given),
    )


def check_gpus(gpus: bool, ngpu: int | None) -> None:
    """Raise UsageError where GPUs are to be asked for and nobody says how many."""
    if gpus and ngpu is None:
        raise UsageError("--ngpu: say how many GPUs a node, such as --ngpu 8; or --no-gpus for CPU ranks")


def new_study(suites: Sequence[str], suffixes: Sequence[str] = ("",)) -> Path:
    """A folder under results/ named after the suites and numbered, where nothing with one of the suffixes is there."""
    from bench.store import RESULTS

    stem = "-".join(Path(name).stem for name in suites)[:60]
    number = 1
    while any((RESULTS / f"{stem}-{number}{suffix}").exists() for suffix in suffixes):
        number += 1
    return RESULTS / f"{stem}-{number}"
