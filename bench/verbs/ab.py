"""`scalemark ab`: two environments or two checkouts, launch by launch in turn, and a verdict a cell."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.verbs import _options as o
from bench.verbs._elsewhere import Quick, Seed, new_study
from bench.verbs.compare import MARGIN, Allow, Margin, Markdown, check_printed, parse_margin, show

if TYPE_CHECKING:
    from bench.ab_file import AbHeader

Base = Annotated[
    str, typer.Option("--base", metavar="SIDE", help="What is there: PYTHON, FOLDER or PYTHON@FOLDER.")
]
New = Annotated[str, typer.Option("--new", metavar="SIDE", help="What is to be judged, likewise.")]
Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="results/NAME", help="Where both studies go.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the comparison at -o.")]


def ab(
    suites: o.Suites,
    base: Base,
    new: New,
    output: Output = None,
    sets: o.Sets = None,
    nproc: o.Nproc = None,
    devices: o.Devices = None,
    oversubscribe: o.Oversubscribe = False,
    budget: o.Budget = None,
    margin: Margin = None,
    allow: Allow = None,
    strict: o.Strict = False,
    quick: Quick = False,
    resume: Resume = False,
    seed: Seed = 0,
    markdown: Markdown = None,
    json: o.Json = False,
) -> None:
    """Is what is new slower? Both sides launch by launch in turn. Exit 0: same or better, 1: slower, 3: not comparable, 5: undecided."""
    from datetime import UTC, datetime

    import msgspec

    from bench import __version__, ab_file
    from bench.ab_file import AbHeader
    from bench.ab_pairs import PAIRS
    from bench.ab_side import find
    from bench.plan import check_words
    from bench.stopping import Rules, limits
    from bench.store import Store

    names = tuple(str(Path(name).absolute()) if name.endswith(".toml") else name for name in suites)
    o.check_limits(quick, strict)
    check_printed(json, markdown)
    asked = limits(quick, strict)
    if not quick:
        asked = msgspec.structs.replace(asked, min_launches=PAIRS)
    rules = Rules(budget_s=o.parse_budget(budget), seed=seed, **msgspec.structs.asdict(asked))
    chosen, delta = o.parse_devices(devices), parse_margin(margin or MARGIN)
    check_words(names, sets or ())
    root = _folder(output, names, resume)
    with Store(root).lock():
        before = ab_file.read(root) if resume else None
        if before is None:
            ab_file.check_new(root)
        header = AbHeader(
            version=__version__,
            suites=names,  # the sides run in folders of their own: a suite's file is the same for both
            sets=tuple(sets or ()),
            nproc=nproc,
            devices=chosen,
            oversubscribe=oversubscribe,
            command=("scalemark", *sys.argv[1:]),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            quick=quick,
            margin=before.margin if before and margin is None else delta,
            rules=rules,
            base=find("--base", base),
            new=find("--new", new),
        )
        if before is not None:
            ab_file.check_resumed(root, before, header)
        _run(root, header, resume, quiet=json or markdown == "-")
    raise typer.Exit(_conclude(root, header, allow or (), markdown, json))


def _folder(output: str | None, suites: tuple[str, ...], resume: bool) -> Path:
    """Where the comparison is, or is to be. Raises UsageError for one to go on with that is not named."""
    from bench.errors import UsageError
    from bench.store import resolve

    if resume and output is None:
        raise UsageError("--resume: name the comparison to go on with by -o")
    return resolve(output) if output else new_study(["ab", *suites])


def _run(root: Path, header: "AbHeader", resume: bool, quiet: bool) -> None:
    """Run both sides to the end of what there is to measure. Exits with 130 after a signal, with 4 if a side is lost."""
    from bench import ab_file
    from bench.ab import run
    from bench.ab_process import SideLost
    from bench.study import Interrupted, signals
    from bench.verbs._ab_live import AbLive
    from bench.verbs._nodes import resumed_at

    try:
        with signals(), AbLive(quiet) as live:
            run(root, header, live, resume)
    except (Interrupted, SideLost) as stopped:
        words = str(stopped) or "stopped"
        if (root / ab_file.FILE).exists():
            words += f"; everything measured is kept. Go on with: scalemark {resumed_at(root)}"
        typer.echo(f"scalemark: {words}", err=True)
        raise typer.Exit(130 if isinstance(stopped, Interrupted) else stopped.exit_code) from None


def _conclude(root: Path, header: "AbHeader", allow: Sequence[str], markdown: str | None, json: bool) -> int:
    """Print the verdicts, from what is on disk; return the exit code."""
    from bench.allocations import decide
    from bench.verbs._sides import interleaved

    both = interleaved(root, header, header.margin)
    outcome = decide(both.base, both.new, paired=both.paired, delta=both.delta, gate=True, allow=allow)
    show(outcome, None, markdown, json)
    if not json and markdown != "-":
        typer.echo(f"the same again: scalemark compare {shlex.quote(str(root))}")
    return outcome.exit_code


PLUGIN = ab
