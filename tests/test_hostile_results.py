"""Studies that were damaged or edited: every verb that reads them answers, and never with a traceback."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import ab_file, checkpoint_rows
from bench.case import Case
from bench.errors import UsageError
from bench.store import Store
from tests.simulate import failed, launch_record, simulate
from tests.soak.inputs import NAMES, altered, call, damaged

CELLS = [
    Case(),
    Case(strategy="ddp", ranks=2),
    Case(strategy="ddp", ranks=4),
    Case(strategy="ddp", ranks=2, num_workers=2),
]
READ = (
    ["scaling", "results/hurt"],
    ["scaling", "results/hurt", "--json"],
    ["compare", "results/whole", "results/hurt"],
)
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a whole study and one to be hurt; it is the working folder."""
    folder, before = tmp_path_factory.mktemp("hostile"), Path.cwd()
    os.chdir(folder)
    simulate(Path("results/whole"), CELLS, blocks=3)
    Path("results/hurt").mkdir()
    yield Path("results")
    os.chdir(before)


def hurt(place, header, launches):
    """Write the hurt study."""
    (place / "hurt/study.json").write_bytes(header)
    (place / "hurt/launches.jsonl").write_bytes(launches)


def whole(place):
    """study.json and launches.jsonl of the whole study."""
    return ((place / f"whole/{name}").read_bytes() for name in ("study.json", "launches.jsonl"))


def answered(*words):
    """The verb has answered: a verdict, a number or a line, and no traceback."""
    answer = call(*words)
    assert answer.fault is None, answer.fault
    assert answer.code in (0, 1, 2, 3, 5), answer.text
    return answer


@few
@given(seed=st.integers(0, 2**32), of=st.sampled_from(["study.json", "launches.jsonl", "both"]))
def test_damaged_bytes_are_answered(place, seed, of):
    """Bytes changed, gone, doubled or cut off, in either file."""
    rng, (header, launches) = random.Random(seed), whole(place)
    hurt(
        place,
        header if of == "launches.jsonl" else damaged(rng, header),
        launches if of == "study.json" else damaged(rng, launches),
    )
    answered(*rng.choice(READ))


@few
@given(seed=st.integers(0, 2**32))
def test_edited_values_are_answered(place, seed):
    """Values replaced by others: wrong types are told, right types of wrong size are numbers or null."""
    rng, (header, launches) = random.Random(seed), whole(place)
    lines = launches.decode().splitlines()
    for at in rng.sample(range(len(lines)), 2):
        lines[at] = altered(rng, lines[at])
    if rng.random() < 0.3:
        header = altered(rng, header.decode()).encode()
    hurt(place, header, "\n".join(lines).encode() + b"\n")
    words = rng.choice(READ)
    answer = answered(*words)
    if answer.code == 0 and "--json" in words:
        json.loads(answer.text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))


@settings(few, max_examples=15)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_answered(place, data):
    """Files that have nothing to do with a study."""
    header, launches = whole(place)
    hurt(place, header, data)
    answered("scaling", "results/hurt")
    hurt(place, data, launches)
    assert answered("scaling", "results/hurt").code == 2


def test_a_record_cut_at_every_byte_loses_itself_only(place):
    """The last record is gone, the other is read, wherever it was cut."""
    header, _ = whole(place)
    store = Store(place / "hurt")
    hurt(place, header, b"")
    for order in (0, 1):
        store.append(failed(launch_record(CELLS[order], block=0, order=order)))
    launches = store.launches_path.read_bytes()
    start = launches.index(b"\n") + 1
    for cut in range(start, len(launches) + 1):
        hurt(place, header, launches[:cut])
        records, broken = store.records()
        complete = cut >= len(launches) - 1
        assert (len(records), broken) == (1 + complete, int(start < cut and not complete))


@pytest.mark.parametrize("name", ["study.json", "launches.jsonl"])
def test_a_newer_schema_is_refused_with_what_to_do(place, name):
    """A file of a later version is refused by every verb that reads it, by both versions."""
    header, launches = whole(place)
    newer = {"study.json": (header.replace(b'"schema": 1', b'"schema": 99', 1), launches),
             "launches.jsonl": (header, launches.replace(b'"schema":1', b'"schema":99', 1))}  # fmt: skip
    hurt(place, *newer[name])
    for words in READ:
        answer = answered(*words)
        assert answer.code in (2, 3)
        assert "schema 99, and this scalemark reads up to 1; install a newer scalemark" in answer.text


def test_hostile_names_in_a_study_stay_text(place):
    """Details, hosts and names of HTML, of terminal codes, of 10,000 characters: shown as text, in the terminal too."""
    header, launches = whole(place)
    record = json.loads(launches.splitlines()[0]) | {"status": "failed", "window": None, "marks": list(NAMES)}
    records = [record | {"reason": name, "detail": name, "launch": f"b09-{name}"} for name in NAMES]
    facts = {"study": NAMES[0], "suites": list(NAMES), "git": NAMES[1], "command": list(NAMES)}
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in records)
    hurt(place, json.dumps(json.loads(header) | facts).encode(), launches + lines)
    assert answered("report", "results/hurt", "-o", "page.html").code == 0
    page = Path("page.html").read_text()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\x1b" not in answered("scaling", "results/hurt").text


@pytest.mark.parametrize(
    "line", [b"[" * 5000, b'{"schema":' * 5000, b'{"unknown":' * 5000, b'{"host":' * 5000]
)
def test_json_nested_beyond_the_stack_is_a_broken_line(tmp_path, line):
    """A line of launches or checkpoints is counted as broken; a file that is one object is refused in one line."""
    simulate(tmp_path / "deep", CELLS[:1], blocks=2)
    store = Store(tmp_path / "deep")
    (store.root / "checkpoints.jsonl").write_bytes(line + b"\n")
    with (store.root / "launches.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert checkpoint_rows.read(store.root) == ((), 1)
    assert store.records()[1] == 1
    for name, read in {
        "ab.json": lambda: ab_file.read(store.root),
        "verify.json": store.verification,
        "study.json": store.header,
    }.items():
        (store.root / name).write_bytes(line)
        with pytest.raises(UsageError, match=name):
            read()
