"""`scalemark slurm`: a study on nodes that Slurm gives: the script written, submitted, followed; its results shown."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.verbs import _elsewhere as e
from bench.verbs import _options as o

if TYPE_CHECKING:
    from bench.launchers._sbatch import State

STOPPED = 130
NOTHING = 4


def slurm(
    suites: o.Suites,
    nodes: e.Nodes,
    ngpu: e.Ngpu = None,
    gpus: e.Gpus = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="results/NAME", help="Where the study goes.")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Slurm's partition.")] = None,
    account: Annotated[str | None, typer.Option("--account", "-A", help="Slurm's account.")] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="1:00:00", help="Slurm's time limit.")] = None,
    cpus: Annotated[
        int | None,
        typer.Option("--cpus", min=1, help="CPUs a node, beside other jobs (default: whole nodes)."),
    ] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option("--sbatch", metavar="OPTION", help="Any other option of sbatch.")
    ] = None,
    requeue: Annotated[
        bool,
        typer.Option("--requeue/--no-requeue", help="Go on in another job at the end of the time limit."),
    ] = True,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the job's end.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; submit nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study at -o.")] = False,
    sets: o.Sets = None,
    budget: o.Budget = None,
    quick: e.Quick = False,
    strict: o.Strict = False,
    aa: o.Aa = False,
    fail_fast: e.FailFast = False,
    trace: e.Trace = False,
    seed: e.Seed = 0,
    interface: e.Interface = None,
    json: o.Json = False,
) -> None:
    """Run suites on nodes that Slurm gives: write the batch script, submit it, wait, and print the results."""
    from bench.launchers import _sbatch
    from bench.launchers import slurm as launcher

    o.check_limits(quick, strict, aa)
    words = e.run_words(
        suites, sets=sets, ngpu=ngpu, budget=budget, interface=interface, seed=seed,
        quick=quick, strict=strict, aa=aa, fail_fast=fail_fast, trace=trace,
    )  # fmt: skip
    gpus = _sbatch.has_gpus(partition) if gpus is None else gpus
    e.check_gpus(gpus, ngpu)
    root = _place(suites, output, resume)
    job = launcher.Batch(
        name=root.name,
        words=words,
        nodes=nodes,
        ngpu=ngpu,
        gpus=gpus,
        results=str(root),
        partition=partition,
        account=account,
        time=time,
        cpus=cpus,
        requeue=requeue,
        options=tuple(sbatch or ()),
    )
    text = launcher.text(job)
    if dry_run:
        typer.echo(text, nl=False)
        return
    script, log = (root.parent / f"{root.name}{suffix}" for suffix in (".sbatch", ".log"))
    _write(script, text)
    read = log.stat().st_size if log.exists() else 0
    number = _sbatch.submit(script)
    if json:
        files = {"script": str(script), "log": str(log), "study": str(root)}
        typer.echo(jsonlib.dumps({"job": number, **files}, indent=2))
    else:
        typer.echo(f"job {number}: {script}; its output: {log}; results: {root}")
    if wait and not json:
        raise typer.Exit(_end(_followed(number, log, read), number, root, log))


def _place(suites: list[str], output: str | None, resume: bool) -> Path:
    """The study's folder. Raises UsageError where it holds one already, or with --resume none."""
    from bench.errors import UsageError
    from bench.store import HEADER, resolve

    if output is None:
        if resume:
            raise UsageError("--resume: name the study by -o results/NAME")
        return e.new_study(suites, ("", ".sbatch"))
    root = resolve(output)
    if (root / HEADER).exists() != resume:
        wrong = (
            "there is no study to go on with"
            if resume
            else "holds a study already; go on with it by --resume"
        )
        raise UsageError(f"{root}: {wrong}, or give another name by -o")
    return root


def _write(script: Path, text: str) -> None:
    """Write the script. Raises UsageError where that cannot be."""
    from bench.errors import UsageError

    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
    except OSError as error:
        raise UsageError(
            f"{script}: cannot be written ({error.strerror}); name another place by -o"
        ) from None


def _followed(number: str, log: Path, read: int) -> "State":
    """Wait for the job; Ctrl-C stops the waiting and leaves the job."""
    from bench.launchers._sbatch import follow

    try:
        return follow(number, log, read, typer.echo, lambda text: typer.echo(text, nl=False))
    except KeyboardInterrupt:
        typer.echo(f"job {number} goes on: squeue -j {number}; to stop it: scancel {number}", err=True)
        raise


def _end(state: "State", number: str, root: Path, log: Path) -> int:
    """Say how the job ended and what it left; the exit code. The log, which was shown, has a whole study's table."""
    from bench.store import HEADER, Store
    from bench.verbs._conclude import conclude

    orderly = state.name == "COMPLETED" or (state.name == "FAILED" and state.exit_code in (1, 2, NOTHING))
    if orderly and state.exit_code is not None and log.exists():
        return state.exit_code
    typer.echo(f"job {number}: {state.told}; its output: {log}", err=True)
    if not (root / HEADER).exists():
        typer.echo(f"{root}: no study is seen from here", err=True)
        return NOTHING
    code = conclude(Store(root))
    return code if orderly else STOPPED


PLUGIN = slurm
