"""Kill random processes of real runs and give nonsense to the command line, for so many seconds: `make soak SECONDS=600`.

Every decision is drawn from the seed, which is printed. When a kill lands is up to the machine, so the same
seed repeats the inputs exactly, and the order of the kills as far as the processes are there again.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.soak.kills import ONE_CALL, Round, shared_names

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"
SHORT_S = 60.0
FINISH_S = 8.0  # to resume a study to its end
KILLS = 30  # a round
JOBS = 2  # studies at once: they are paced, and mostly wait


def main() -> int:
    """Soak; print what was done as JSON; 1 where anything was not as it should be."""
    asked = _arguments()
    print(f"soak: {asked.seconds:g} s, seed {asked.seed}: repeat by SEED={asked.seed}", flush=True)
    inputs = _start_inputs(asked.seconds, asked.seed)
    found = _kill(asked.seconds, asked.seed)
    out, _ = inputs.communicate(timeout=120)
    fuzzed = json.loads(out.splitlines()[-1])
    problems = found.pop("problems") + fuzzed.pop("problems")
    told = {"seconds": asked.seconds, "seed": asked.seed, **found, **fuzzed}
    print(json.dumps(told, indent=1))
    for problem in problems:
        print(f"PROBLEM {problem}")
    if asked.write and not problems:
        write(told)
    return 1 if problems or inputs.returncode else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--write", action="store_true", help=f"the counts go to {PAGE.name}")
    return parser.parse_args()


def _start_inputs(seconds: float, seed: int) -> "subprocess.Popen[str]":
    """Beside the kills, in a process of its own: a paced study leaves the CPUs alone."""
    command = [sys.executable, "-m", "tests.soak.nonsense", str(seconds), str(seed)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _kill(seconds: float, seed: int) -> dict:
    """Rounds until the time is up, some at once: how many, and what was killed."""
    end = time.monotonic() + seconds - FINISH_S
    before, numbers = shared_names(), itertools.count()
    jobs = 1 if seconds < SHORT_S else JOBS
    with ThreadPoolExecutor(jobs) as pool:
        done = [pool.submit(_rounds, numbers, end, seconds, seed) for _ in range(jobs)]
        rounds = [one for job in done for one in job.result()]
    problems = [f"round {n}, {one.folder}: {problem}" for n, one in rounds for problem in one.problems]
    if left := shared_names() - before:
        problems.append(f"left in /dev/shm: {left}")
    kills = Counter(f"{kill.kind}, {kill.number.name}" for _, one in rounds for kill in one.kills)
    launches = sum((one.launches for _, one in rounds), Counter())
    return {
        "rounds": len(rounds), "runs": sum(one.runs for _, one in rounds), "kills": sum(kills.values()),
        "kills_by_kind": dict(sorted(kills.items())), "launches": dict(sorted(launches.items())), "problems": problems,
    }  # fmt: skip


def _rounds(numbers: Iterator[int], end: float, seconds: float, seed: int) -> list[tuple[int, Round]]:
    """One round after the other; every third is one of two nodes."""
    found = []
    while not found or time.monotonic() < end:
        n = next(numbers)
        nodes = 2 if n % 3 == 2 else 1
        one = Round(random.Random(f"{seed}/{n}"), nodes, cells=2 if seconds < SHORT_S else 8 // nodes)
        one.run(KILLS, end)
        if not one.problems:
            shutil.rmtree(one.folder)
        with ONE_CALL:
            print(
                f"round {n}: {len(one.kills)} kills, {one.runs} runs, {len(one.problems)} problems",
                flush=True,
            )
        found.append((n, one))
    return found


def write(told: dict) -> None:
    """Put the counts between the markers of docs/reliability.md."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(told)}\n{END}{after}")


def table(told: dict) -> str:
    """The counts as Markdown."""
    lines = [
        f"{told['seconds']:g} s on {os.cpu_count()} CPUs, seed {told['seed']}: {told['kills']} kills in {told['runs']} runs of "
        f"{told['rounds']} studies, each resumed to its end; {told['inputs']:,} inputs.",
        "", "| killed | times |", "| --- | ---: |",
    ]  # fmt: skip
    lines += [f"| {kind} | {count} |" for kind, count in told["kills_by_kind"].items()]
    lines += ["", "| what the launches were called | launches |", "| --- | ---: |"]
    lines += [f"| `{name}` | {count} |" for name, count in told["launches"].items()]
    lines += ["", "| input, and what it was answered with | inputs |", "| --- | ---: |"]
    lines += [f"| {kind} | {count:,} |" for kind, count in told["inputs_by_kind"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
