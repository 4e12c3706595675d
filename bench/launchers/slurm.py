"""Slurm: a batch script that a site can read and edit. `srun` starts the same command once a node."""

import re
import shlex

from bench.errors import UsageError
from bench.launchers._job import Job, module
from bench.launchers._stdin import END_WITH_STDIN
from bench.plugins import Launcher, clip

STOP_S = 60  # before the time limit Slurm says so, and the study stops in order
MOST_RESTARTS = 10


class Batch(Job, frozen=True, kw_only=True):
    """A job of Slurm's. `words` say nothing of where the results go, nor --resume."""

    results: str = "results/study"  # the study's folder, which the submitting machine sees too
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    cpus: int | None = None  # a node, beside other jobs; None: whole nodes
    requeue: bool = True
    options: tuple[str, ...] = ()  # of sbatch, as they are; they stand last and win


def text(job: Batch) -> str:
    """The batch script."""
    options = "\n".join(f"#SBATCH {option}" for option in _options(job))
    run = shlex.join(module(job.python, job.words))
    study = shlex.quote(job.results)
    return TEMPLATE.format(
        title=_title(job), options=options, run=run, study=study, place=clip(job.results), srun=_srun(job), end_with=END_WITH_STDIN,
        stop=STOP if job.requeue else "", stop_s=STOP_S, again=AGAIN.format(most=MOST_RESTARTS) if job.requeue else ""
    )  # fmt: skip


def _title(job: Job) -> str:
    devices = "" if job.ngpu is None else f", {job.ngpu} {'GPUs' if job.gpus else 'CPU ranks'} each"
    return f"{clip(job.name)} on {job.nodes} node{'s' * (job.nodes > 1)}{devices}"


def _options(job: Batch) -> list[str]:
    """sbatch's options, one a line."""
    named = {"partition": job.partition, "account": job.account, "time": job.time}
    whole = job.cpus is None
    return [
        f"--job-name={_word(f'scalemark-{job.name}')}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={job.ngpu}"] if job.gpus and job.ngpu is not None else []),
        *(["--exclusive", "--mem=0"] if whole else [f"--cpus-per-task={job.cpus}"]),
        *(f"--{name}={_word(value)}" for name, value in named.items() if value is not None),
        f"--output={_word(job.results.replace('%', '%%') + '.log')}",
        "--open-mode=append",
        *(["--requeue", f"--signal=B:USR1@{STOP_S}"] if job.requeue else ["--no-requeue"]),
        *(_word(option if option.startswith("-") else f"--{option}") for option in job.options),
    ]


def _srun(job: Batch) -> str:
    cpus = " --cpu-bind=none" if job.cpus is None else f" --cpus-per-task={job.cpus}"
    return f"srun --ntasks-per-node=1{cpus} --export=ALL --kill-on-bad-exit=0 --wait=0"


def _word(text: str) -> str:
    """A value as one word of a #SBATCH line. Raises UsageError for what no line can hold."""
    if not text.isprintable():
        raise UsageError(
            f"sbatch option {clip(text)!r}: has characters that a line of the script cannot hold"
        )
    return shlex.quote(text) if re.search(r"[\s'\"\\#]", text) else text


TEMPLATE = """\
#!/bin/bash
# scalemark: {title}. The same command runs once on each node; the first one leads and writes
# {place}. Edit this file as your site needs, and submit it by sbatch from the folder it was written in.
{options}

study={study}
export {end_with}=1
again=()
[ -e "$study/study.json" ] && again=(--resume)  # this job was requeued: go on with what is there

# Every node reads the study's secret from its standard input, and stops in order when that ends.
exec 3> >(exec {srun} \\
    {run} \\
    -o "$study" "${{again[@]}}")
nodes=$!
{stop}echo "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')" >&3

wait "$nodes"; code=$?
{again}exit "$code"
"""

STOP = """\
trap 'stopped=1; exec 3>&-' USR1  # from Slurm, a minute before the time limit
"""

AGAIN = """\
[ "$code" = 138 ] && {{ wait "$nodes"; code=$?; }}  # the signal (128 + 10) came first
if [ -n "$stopped" ] && [ "$code" = 130 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ]; then
    scontrol requeue "$SLURM_JOB_ID"  # the rest, in another stretch of time
fi
"""

PLUGIN = Launcher("a batch script for Slurm (scalemark slurm)", Batch, text)
