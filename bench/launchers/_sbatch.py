"""Slurm's own commands: a script submitted, a job followed by squeue, what became of it."""

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.errors import BenchError, UsageError
from bench.plugins import clip

POLL_S = 2.0  # `sbatch --wait` looks far less often
ASK_S = 60.0
AWAY_S = 600.0  # of no answer, as when slurmctld is started again
# https://slurm.schedmd.com/job_state_codes.html: a job in one of these does not go on by itself
FINAL = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
)  # fmt: skip
STUCK = (
    "BadConstraints",
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
)  # until someone acts
GONE = "Invalid job id"


class State(NamedTuple):
    """A job at one moment, in Slurm's words."""

    name: str  # PENDING, RUNNING, COMPLETED, ...
    reason: str = ""  # why it waits or ended
    nodes: str = ""
    exit_code: int | None = None

    @property
    def told(self) -> str:
        """`pending (Resources)`, `running on n[1-2]`."""
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        where = f" on {self.nodes}" if self.nodes and self.name == "RUNNING" else ""
        return self.name.lower().replace("_", " ") + where + reason


def submit(script: Path) -> str:
    """Hand a script to sbatch; the job's id. Raises UsageError, in one line, where Slurm does not take it."""
    done = _ask(["sbatch", "--parsable", str(script)])
    if done.returncode:
        raise UsageError(f"{script}: sbatch: {_complaint(done)}")
    job = done.stdout.strip().splitlines()[-1].partition(";")[0] if done.stdout.strip() else ""
    if not re.fullmatch(r"\d+", job, re.ASCII):
        raise UsageError(f"{script}: sbatch gave no job id: {clip(done.stdout)!r}")
    return job


def follow(
    job: str,
    log: Path,
    read: int,
    say: Callable[[str], None],
    show: Callable[[str], None],
    poll_s: float = POLL_S,
) -> State:
    """Wait for a job's end. `say` gets each new state; `show` what the job writes to its log from byte `read` on.

    Raises BenchError where Slurm stays silent.
    """
    before, answered = "", time.monotonic()
    while True:
        state = look(job)
        if state is None:
            if time.monotonic() - answered > AWAY_S:
                raise BenchError(f"job {job}: Slurm has not answered for {AWAY_S:.0f} s; see squeue -j {job}")
        else:
            answered = time.monotonic()
            if (
                state.name in FINAL and state.told == before
            ):  # twice: one that is requeued goes through such a state
                _shown(log, read, show)
                return state
            if state.told != before:
                before = state.told
                stuck = f"; it cannot start as it is: scancel {job}" if state.reason in STUCK else ""
                say(f"job {job}: {before}{stuck}")
        read = _shown(log, read, show)
        time.sleep(poll_s)


def look(job: str) -> State | None:
    """The job's state, from squeue, or from what Slurm has kept of it; None where nobody answers."""
    done = _ask(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%N"])
    words = done.stdout.strip().splitlines()
    if done.returncode == 0 and words:
        name, _, rest = words[0].partition("|")
        reason, _, nodes = rest.rpartition("|")
        return _finished(job) if name in FINAL else State(name, reason, nodes)
    return _finished(job) if done.returncode == 0 or GONE in done.stderr else None


def _finished(job: str) -> State | None:
    """A job that has ended: scontrol knows it for some minutes, sacct where a site keeps accounts."""
    done = _ask(["scontrol", "--oneliner", "show", "job", job])
    if done.returncode == 0:
        return from_scontrol(done.stdout)
    for extra in ([], ["--completion"]):
        kept = _ask(["sacct", "--noheader", "--parsable2", f"--jobs={job}", "--format=JobID,State", *extra])
        states = dict(line.split("|")[:2] for line in kept.stdout.splitlines() if "|" in line)
        if kept.returncode == 0 and job in states:
            return State(states[job].split()[0])
    return State("COMPLETED", "Slurm has forgotten it") if GONE in done.stderr else None


def from_scontrol(text: str) -> State:
    """State, reason, nodes and exit code from a line of `scontrol --oneliner show job`."""
    fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
    code = fields.get("ExitCode", "").partition(":")[0]
    nodes = fields.get("NodeList", "")
    return State(
        fields.get("JobState", "UNKNOWN"),
        fields.get("Reason", ""),
        "" if nodes == "(null)" else nodes,
        int(code) if code.isdigit() else None,
    )


def has_gpus(partition: str | None) -> bool:
    """Has any node of the partition, or of all, GPUs by Slurm's account? True where Slurm cannot be asked."""
    try:
        done = _ask(
            ["sinfo", "--noheader", "--format=%G", *([f"--partition={partition}"] if partition else [])]
        )
    except UsageError:
        return True
    return done.returncode != 0 or "gpu" in done.stdout


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands. Raises UsageError where it is not there."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_S, stdin=subprocess.DEVNULL, errors="replace"
        )
    except FileNotFoundError:
        raise UsageError(
            f"{command[0]} is not on the path: run this where jobs are submitted (--dry-run prints the script)"
        ) from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {ASK_S:.0f} s")


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What a command complained of, in one line and without its name in front."""
    lines = [re.sub(r"^\w+: (error: )?", "", line).strip() for line in done.stderr.splitlines()]
    return clip("; ".join(line for line in lines if line) or f"exit code {done.returncode}", 500)


def _shown(log: Path, read: int, show: Callable[[str], None]) -> int:
    """Show what has come to a log since; how far it is read. The end of a line may follow later."""
    try:
        with log.open("rb") as file:
            file.seek(read)
            data = file.read()
    except OSError:
        return read
    if data:
        show(data.decode(errors="replace"))
    return read + len(data)
