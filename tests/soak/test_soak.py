"""The soak in its short form: some kills of a real study, some nonsense, and what it says of them."""

import json
import random
import signal
import subprocess
import sys

import pytest

from tests.soak.inputs import altered, command_words, damaged, suite_text
from tests.soak.kills import CLASSES, Kill, Round
from tests.soak.soak import PAGE, ROOT, table


@pytest.mark.e2e
def test_a_short_soak_kills_resumes_and_finds_nothing_wrong(tmp_path):
    """Processes are killed, the study is resumed to its end, inputs are answered; the counts are of both."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.soak", "--seconds", "12", "--seed", "7"],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    assert told["launches"]["ok"] >= 2
    assert told["kills"] == sum(told["kills_by_kind"].values())
    assert told["inputs"] == sum(told["inputs_by_kind"].values()) > 10


@pytest.mark.parametrize(
    "make", [suite_text, lambda rng: command_words(rng, "s", "t"), lambda rng: damaged(rng, bytes(99))]
)
def test_a_seed_gives_the_same_inputs_again(make):
    """What failed once can be given again."""
    first = [make(random.Random(f"7/{n}")) for n in range(20)]
    assert first == [make(random.Random(f"7/{n}")) for n in range(20)]
    assert len({str(one) for one in first}) > 10


def test_altered_json_is_json_and_another():
    """An altered line still parses: what is wrong in it is a value."""
    line = json.dumps({"a": 1, "b": [1.5, {"c": "x"}], "d": None})
    made = [altered(random.Random(n), line) for n in range(50)]
    assert sum(json.loads(one) != json.loads(line) for one in made) > 30


class Told:
    """A record as far as it is looked at."""

    status, launch, detail, started_at, wall_s = "failed", "b00", "x", "2026-01-01T00:00:10+00:00", 3.0

    def __init__(self, reason, first_rank):
        self.reason, self.first_rank = reason, first_rank


@pytest.mark.parametrize(
    ("reason", "rank", "kill", "fine"),
    [
        ("signal", 1, ("rank", 1, 1.0), True),
        ("signal", 0, ("rank", 1, 1.0), False),  # the other rank is blamed
        ("hang", None, ("rank", 1, 1.0), False),  # another class
        ("signal", 1, ("rank", 1, 9.0), False),  # long after it had ended
        ("engine_lost", None, ("engine", None, -20.0), True),  # found when it was asked again
        ("interrupted", None, ("sampler", None, 1.0), False),  # costs no launch
    ],
)
def test_a_launch_must_be_called_by_what_was_killed(reason, rank, kill, fine):
    """Class and culprit are held against the kills during the launch."""
    import datetime

    began = datetime.datetime.fromisoformat(Told.started_at).timestamp()
    one = Round.__new__(Round)
    one.problems, one.kills = [], [Kill(began + kill[2], kill[0], kill[1], signal.SIGKILL)]
    one._plausible(Told(reason, rank))
    assert (one.problems == []) == fine
    assert kill[0] in CLASSES


def test_the_page_takes_the_counts():
    """docs/reliability.md has the place for them, and they stand there as tables."""
    assert PAGE.read_text().count("<!-- soak: ") == 2
    told = {
        "seconds": 600.0, "seed": 1, "kills": 3, "runs": 2, "rounds": 1, "kills_by_kind": {"rank, SIGKILL": 3},
        "launches": {"ok": 4}, "inputs": 12000, "inputs_by_kind": {"suite: exit code 2": 12000},
    }  # fmt: skip
    assert "| rank, SIGKILL | 3 |" in table(told)
    assert "12,000 inputs" in table(told)
