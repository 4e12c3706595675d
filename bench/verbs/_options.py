"""Options that several verbs share, and how their texts become values."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from bench.errors import UsageError

if TYPE_CHECKING:
    from bench.store import Store

Suites = Annotated[list[str], typer.Argument(help="Suites by name (scalemark list suites) or TOML files.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="AXIS=V1,V2", help="Override an axis; several values make it vary."),
]
Nproc = Annotated[
    int | None, typer.Option("--nproc", min=1, help="Largest number of ranks (default: device slots).")
]
Devices = Annotated[
    str | None, typer.Option("--devices", metavar="0,1", help="Accelerators to use, in this order.")
]
Oversubscribe = Annotated[
    bool, typer.Option("--oversubscribe", help="Let ranks share devices (gloo; marked in every row).")
]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="10m", help="Time limit: 90s, 10m, 2h, or none.")
]
Nodes = Annotated[
    int, typer.Option("--nodes", min=1, help="Nodes; without --lead they are agents on this machine.")
]
Link = Annotated[
    str | None,
    typer.Option(
        "--link", metavar="1gbit", help="As root, on one box: the link between nodes (100mbit,0.2ms)."
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Intervals of ±1 % in place of ±2 %: up to 20 launches a cell, not 10."),
]
Aa = Annotated[
    bool, typer.Option("--aa", help="Run the first cell twice: if it differs from itself, no verdict holds.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

DEFAULT_BUDGET = "10m"


def parse_devices(text: str | None) -> tuple[int, ...] | None:
    """`0,1` as (0, 1). Raises UsageError for anything else."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words) or len(set(words)) != len(words):
        raise UsageError(f"--devices {text!r}: write ordinals of visible devices, each once, such as 0,1")
    return tuple(int(word) for word in words)


def parse_budget(text: str | None, option: str = "--budget") -> float | None:
    """`90s`, `10m`, `2h` in seconds; `none` is no limit. Raises UsageError for anything else."""
    text = (text or DEFAULT_BUDGET).strip().lower()
    if text == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text)
    seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600, "": 1}[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"{option} {text!r}: write a time such as 90s, 10m, 2h, or none")
    return seconds


def check_limits(quick: bool, strict: bool, aa: bool = False) -> None:
    """Raise UsageError for one launch a cell together with what takes several."""
    if quick and strict:
        raise UsageError("--quick --strict: one launch has no interval; give one of the two")
    if quick and aa:
        raise UsageError(
            "--quick --aa: one launch a cell is never judged, so neither is its twin; give one of the two"
        )


def say_unreadable(stores: "Iterable[Store]") -> None:
    """Say on standard error how many lines of the studies are no records."""
    for store in stores:
        text = store.unreadable()
        if text:
            typer.echo(f"note: {text}", err=True)
