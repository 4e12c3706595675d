"""Inputs that nobody would give, through the command line, for so many seconds: `python -m tests.soak.nonsense SECONDS SEED`."""

import json
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.case import Case
from tests.simulate import simulate
from tests.soak.inputs import altered, call, command_words, damaged, suite_text

MEMORY_BYTES = 4 << 30
CODES = (0, 1, 2, 3, 5, 74)  # a verdict's are 1, 3 and 5; 74: of the system, such as a full disk
READS = (
    *[["scaling", "results/hurt"]] * 8, *[["scaling", "results/hurt", "--json"]] * 8,
    *[["compare", "results/whole", "results/hurt"]] * 6, *[["export", "results/hurt", "--format", "csv", "-o", "out"]] * 3,
    ["report", "results/hurt", "-o", "report.html"],
)  # fmt: skip
TURNS = ("suite", "words", "suite", "words", "study")  # of the kinds of input; the last takes longest
CELLS = [
    Case(),
    Case(strategy="ddp", ranks=2),
    Case(strategy="ddp", ranks=4),
    Case(strategy="ddp", ranks=2, num_workers=2),
]


def main() -> int:
    """Give inputs until the time is up; the last line is what came of them, as JSON."""
    seconds, seed = float(sys.argv[1]), sys.argv[2]
    warnings.simplefilter("ignore")
    os.nice(5)  # the runs beside it come first
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)
    )  # an input that asks for more is a fault
    end, answers, problems = time.monotonic() + seconds, Counter(), []
    with tempfile.TemporaryDirectory(prefix="soak-inputs-") as folder:
        os.chdir(folder)
        makers = _makers()
        count = 0
        while time.monotonic() < end:
            name = TURNS[count % len(TURNS)]
            words = makers[name](random.Random(f"{seed}/{count}"))
            answer = call(*words)
            answers[f"{name}: exit code {answer.code}"] += 1
            if answer.fault or answer.code not in CODES:
                problems.append(
                    f"input {seed}/{count} {[word[:60] for word in words]}: {answer.fault or answer.text[-300:]}"
                )
            count += 1
    print(
        json.dumps(
            {"inputs": count, "inputs_by_kind": dict(sorted(answers.items())), "problems": problems[:20]}
        )
    )
    return 0


def _makers() -> dict[str, Callable[[random.Random], list[str]]]:
    """Kinds of input: each makes its files in the working folder and returns the words that read them."""
    whole = simulate(Path("results/whole"), CELLS, blocks=3).root
    head, lines = (whole / "study.json").read_text(), (whole / "launches.jsonl").read_text().splitlines()
    hurt = Path("results/hurt")
    hurt.mkdir()

    def suite(rng: random.Random) -> list[str]:
        Path("mine.toml").write_text(suite_text(rng))
        return ["plan", "mine.toml"]

    def words(rng: random.Random) -> list[str]:
        return command_words(rng, "results/whole", "mine.toml")

    def study(rng: random.Random) -> list[str]:
        hurt_lines = list(lines)
        for at in rng.sample(range(len(lines)), rng.randint(1, 3)):
            hurt_lines[at] = altered(rng, lines[at])
        data, header = ("\n".join(hurt_lines) + "\n").encode(), head.encode()
        if rng.random() < 0.3:
            data = damaged(rng, data)
        if rng.random() < 0.3:
            header = rng.choice([damaged(rng, header), altered(rng, head).encode()])
        (hurt / "launches.jsonl").write_bytes(data)
        (hurt / "study.json").write_bytes(header)
        return rng.choice(READS)

    return {"suite": suite, "words": words, "study": study}


if __name__ == "__main__":
    sys.exit(main())
