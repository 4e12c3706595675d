"""The store: what is written can be read back, and what is damaged is said."""

import errno
import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.case import Case
from bench.errors import UsageError
from bench.records import Cut, RankTrace, Window
from bench.store import Broken, Store, finite, open_store, resolve, schemas
from tests.simulate import launch_record, simulate

CASES = [Case(), Case(strategy="ddp", ranks=2)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A study of four launches."""
    return simulate(tmp_path / "study", CASES, blocks=2)


def test_records_come_back_as_they_were_written(store: Store) -> None:
    """A record that is appended is read back equal, in order."""
    before, _ = store.records()
    record = launch_record(CASES[1], block=7, order=0)
    store.append(record)
    assert store.records() == ([*before, record], 0)


def test_header_comes_back_as_it_was_written(store: Store) -> None:
    """study.json is read back equal, after it has been rewritten on resume."""
    header = store.header()
    store.create(header, resume=True)
    assert store.header() == header
    assert not list(store.root.glob("*.tmp"))


def test_an_existing_study_is_not_overwritten(store: Store) -> None:
    """Without resume a folder that holds a study is refused and stays as it is."""
    before = store.header_path.read_bytes()
    with pytest.raises(UsageError, match=r"holds a study already.*--resume"):
        store.create(store.header())
    assert store.header_path.read_bytes() == before


def test_a_full_disk_is_told_with_its_path(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system names no file where a write fails; the folder can be used once there is space."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    other = Store(tmp_path / "other")
    monkeypatch.setattr("bench.store.os.fsync", full)
    for path, write in (
        (other.header_path, lambda: other.create(store.header())),
        (store.launches_path, lambda: store.append(launch_record(CASES[1], block=7, order=0))),
    ):
        with pytest.raises(OSError, match="No space left") as error:
            write()
        assert (error.value.filename, error.value.errno) == (str(path), errno.ENOSPC)
    monkeypatch.undo()
    other.create(store.header())
    assert other.header() == store.header()


def test_unreadable_lines_are_counted_in_words(store: Store) -> None:
    """Cut inside the first line, and two lines edited; nothing where all is well."""
    assert store.unreadable() is None
    text = store.launches_path.read_text()
    store.launches_path.write_text(text[:100])
    assert store.unreadable() == f"{store.launches_path}: 1 line could not be read"
    store.launches_path.write_text("x\n{}\n" + text)
    assert store.unreadable() == f"{store.launches_path}: 2 lines could not be read"


def test_a_folder_of_something_else_is_not_taken(store: Store, tmp_path: Path) -> None:
    """A folder with foreign files is refused; an empty one is taken."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(UsageError, match="not by a study"):
        Store(tmp_path / "photos").create(store.header())
    (tmp_path / "empty").mkdir()
    Store(tmp_path / "empty").create(store.header())
    assert (tmp_path / "empty" / "study.json").exists()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
def test_a_file_cut_anywhere_loses_only_the_line_that_was_cut(tmp_path: Path, share: float) -> None:
    """Cut at any byte, all whole records are read, the rest is counted, and appending goes on."""
    whole = Store(tmp_path / "whole")
    if not whole.root.exists():
        simulate(whole.root, CASES, blocks=2)
    data = whole.launches_path.read_bytes()
    check_cut(tmp_path, whole, data, round(share * len(data)))


def test_a_file_cut_around_each_line_end_keeps_its_lines(tmp_path: Path) -> None:
    """The bytes next to every line end, where a cut is easiest to get wrong, behave the same."""
    whole = simulate(tmp_path / "whole", CASES, blocks=2)
    data = whole.launches_path.read_bytes()
    ends = [at for at, byte in enumerate(data) if byte == ord("\n")]
    for end in ends:
        for cut in range(end - 2, end + 3):
            check_cut(tmp_path, whole, data, min(cut, len(data)))


def check_cut(tmp_path: Path, whole: Store, data: bytes, cut: int) -> None:
    """The first `cut` bytes of a study hold these records, and take another one."""
    part = Store(tmp_path / "part")
    part.root.mkdir(exist_ok=True)
    part.launches_path.write_bytes(data[:cut])
    expected = whole.records()[0]
    lines = data[:cut].split(b"\n")
    broken = bool(lines[-1]) and lines[-1] not in data.split(b"\n")
    kept = expected[: len([line for line in lines if line]) - broken]
    assert part.records() == (kept, broken)
    part.append(expected[0])
    assert part.records() == ([*kept, expected[0]], broken)


def test_a_broken_line_in_the_middle_is_named(store: Store) -> None:
    """A line that was edited is counted and named by number; the lines around it are read."""
    lines = store.launches_path.read_text().splitlines()
    lines[1] = lines[1].replace('"block":0', '"block":"zero"')
    store.launches_path.write_text("\n".join(lines) + "\n")
    read = list(store.read())
    assert [type(line) is Broken for line in read] == [False, True, False, False]
    assert read[1].line == 2
    assert "$.block" in read[1].problem
    assert store.records()[1] == 1


def test_a_number_that_no_table_holds_is_a_broken_line(store: Store) -> None:
    """A whole number of more than 64 bits is named; one of 64 bits is read."""
    last = store.launches_path.read_text().splitlines()[-1]
    for number, broken in ((2**63 - 1, 0), (2**63, 1), (10**30, 2), ("1e30", 3)):
        with store.launches_path.open("a") as file:
            file.write(
                last.replace('"order":1', f'"order":{number}').replace('"order":0', f'"order":{number}')
                + "\n"
            )
        assert store.records()[1] == broken


def test_bytes_that_are_no_text_are_a_broken_line(store: Store) -> None:
    """A line of binary rubbish is counted, not fatal."""
    with store.launches_path.open("ab") as file:
        file.write(b"\xff\xfe\x00{\n")
    assert store.records()[1] == 1


@pytest.mark.parametrize("name", ["study.json", "launches.jsonl"])
def test_a_newer_schema_is_refused_with_both_versions(store: Store, name: str) -> None:
    """A file of a newer suite says which version it has, which are read, and what to do."""
    path = store.root / name
    path.write_text(
        path.read_text().replace('"schema":1', '"schema":9').replace('"schema": 1', '"schema": 9')
    )
    with pytest.raises(UsageError, match=rf"{name}.*schema 9.*reads up to 1.*newer scalemark") as error:
        store.records() if name == "launches.jsonl" else store.header()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"quick": false', '"quick": "no"', r"\$\.quick"),
        ('"ranks": 2', '"ranks": 0', r"\$\.cells\[1\]\.case\.ranks"),
        ('"ranks": 2', '"ranks": 3', r"\$\.cells\[1\]\.id.*edited"),
        ('"seed"', '"seeds"', "seed"),
        ("{", "", "Expected `object`"),
    ],
)
def test_an_edited_header_is_one_line_with_the_field(store: Store, old: str, new: str, says: str) -> None:
    """A wrong type, a value out of range, a changed setting: one line with the path and the field."""
    text = store.header_path.read_text()
    assert old in text
    store.header_path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=says) as error:
        store.header()
    assert str(store.header_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_cut_header_is_one_line(store: Store) -> None:
    """A study.json cut short is a UsageError, not a traceback of the parser."""
    data = store.header_path.read_bytes()
    store.header_path.write_bytes(data[: len(data) // 2])
    with pytest.raises(UsageError, match=r"study\.json.*truncated"):
        store.header()


def test_what_is_no_study_is_said(store: Store, tmp_path: Path) -> None:
    """A folder without study.json, and a name that does not exist, are told apart."""
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match=r"other: not a study: study\.json is missing"):
        open_store(tmp_path / "other")
    with pytest.raises(UsageError, match=r"nothing: no such study; in .*: study"):
        open_store(tmp_path / "nothing")
    store.header_path.unlink()
    with pytest.raises(UsageError, match="is missing"):
        store.header()


def test_a_folder_with_both_sides_says_which_studies_it_holds(store: Store, tmp_path: Path) -> None:
    """What scalemark ab has written is no study, and two are in it: both are named, and the command that takes both."""
    for side in ("base", "new"):
        Store(tmp_path / "both" / side).create(store.header())
    with pytest.raises(
        UsageError, match=r"name \S+both/base or \S+both/new, or compare them by scalemark compare \S+both$"
    ):
        open_store(tmp_path / "both")


def test_a_study_has_three_names(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME, results/NAME, a path, and a path to one of its files all mean the same study."""
    monkeypatch.chdir(store.root.parent)
    results = Path("results")
    results.mkdir()
    store.root.rename(results / "study")
    for name in ("study", "results/study", "results/study/", "results/study/launches.jsonl"):
        assert open_store(name).root == results / "study"
    assert resolve("new") == results / "new"
    assert resolve("elsewhere/new") == Path("elsewhere/new")


def test_no_line_of_a_study_holds_nan(store: Store) -> None:
    """What is not a finite number is null in the file, which a strict parser reads."""
    record = launch_record(CASES[0], 3, 0)
    nan = msgspec.structs.replace(record, wall_s=math.nan, phases_s={"forward": math.inf, "backward": 0.1})
    store.append(nan)
    line = store.launches_path.read_text().splitlines()[-1]
    plain = json.loads(line, parse_constant=pytest.fail)
    assert plain["wall_s"] is None
    assert plain["phases_s"] == {"forward": None, "backward": 0.1}
    back = store.records()[0][-1]
    assert back.window == record.window


def test_a_window_of_no_duration_is_kept_as_a_record_without_a_window(store: Store) -> None:
    """Where NaN stands in a field that cannot be null the launch is kept, marked, without its window."""
    record = launch_record(CASES[0], 3, 0)
    assert isinstance(record.window, Window)
    window = msgspec.structs.replace(record.window, step_s=math.nan)
    store.append(msgspec.structs.replace(record, window=window))
    records, broken = store.records()
    assert (records[-1].window, records[-1].marks, broken) == (None, ("window not finite",), 0)


def test_finite_keeps_numbers_and_drops_the_rest() -> None:
    """Null, zero and NaN are three things: zero stays, NaN and infinities become null."""
    assert [finite(value) for value in (None, 0.0, 1.5, math.nan, math.inf, -math.inf)] == [
        *(None, 0.0, 1.5),
        *[None] * 3,
    ]


def test_steps_hold_every_step_of_every_rank(store: Store) -> None:
    """The Parquet file has one row a step and rank, null for what was not measured, and marks the window."""
    import pandas as pd

    record = launch_record(CASES[1], 0, 0)
    traces = [trace(record.launch, rank) for rank in range(2)]
    store.write_steps(record.launch, traces)
    frame = pd.read_parquet(store.steps_path(record.launch))
    assert list(frame["rank"]) == [0, 0, 0, 1, 1, 1]
    assert list(frame["step_s"][:2]) == [0.5, 0.1]
    assert frame["step_s"].isna().tolist() == [False, False, True] * 2
    assert frame["h2d_s"].isna().all()
    assert frame["backward_s"].tolist()[:2] == [0.3, 0.06]
    assert frame["backward_s"].isna().sum() == 2
    assert frame["in_window"].tolist() == [False, True, True] * 2
    assert not list(store.root.glob("steps/*.tmp"))
    assert list(frame.columns)[:4] == ["launch", "rank", "step", "step_s"]


def trace(launch: str, rank: int) -> RankTrace:
    """Three steps, the last of which has no finite duration and no backward."""
    return RankTrace(
        launch=launch,
        rank=rank,
        local_rank=rank,
        node=0,
        host="h",
        pid=1,
        status="ok",
        step_s=(0.5, 0.1, math.nan),
        phases_s={"h2d": None, "backward": (0.3, 0.06)},
        samples=(16, 16, 16),
        cut=Cut(first=1, state="steady"),
    )


def test_no_file_is_written_for_a_launch_without_traces(store: Store) -> None:
    """Where every rank died before its trace there is no Parquet file, and no error."""
    store.write_steps("gone", [])
    assert not store.steps_path("gone").exists()


def test_a_second_conductor_is_refused(store: Store) -> None:
    """While one process holds a study another one is told so in one line; afterwards it may."""
    code = (
        "import sys; from pathlib import Path; from bench.store import Store\n"
        "from bench.errors import UsageError\n"
        "try:\n    with Store(Path(sys.argv[1])).lock(): print('mine')\n"
        "except UsageError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(store.root)]
    with store.lock():
        held = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    free = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "another run is writing this study" in held
    assert held.count("\n") == 1
    assert free == "mine\n"


def test_a_run_that_does_not_begin_leaves_no_folder(tmp_path: Path, store: Store) -> None:
    """Nodes that did not come take no number of a study's; what has a header, or anything else in it, stays."""
    failed, other = Store(tmp_path / "results/s-1"), Store(tmp_path / "results/s-2")
    for one in (failed, other, store):
        with pytest.raises(UsageError, match="has not come"), one.lock():
            if one is other:
                (one.root / "mine.txt").touch()
            raise UsageError("node 1 has not come")
    assert not failed.root.exists()
    assert (other.root / "mine.txt").exists()
    assert store.header()


def test_what_is_written_follows_the_published_schema(store: Store) -> None:
    """study.json and every line of launches.jsonl have the structure that the JSON Schema states."""
    published = schemas()
    header = json.loads(store.header_path.read_text())
    assert violations(published["study.json"], header) == []
    for line in store.launches_path.read_text().splitlines():
        assert violations(published["launches.jsonl"], json.loads(line)) == []
    header["cells"][0]["case"]["ranks"] = "two"
    del header["seed"]
    assert violations(published["study.json"], header) == [
        "$.seed: missing",
        "$.cells[0].case.ranks: not integer",
    ]


KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def violations(schema: dict, value: object) -> list[str]:
    """Where a value breaks the types, required fields, enumerations and references of a JSON Schema."""
    return list(_violations(schema, schema, value, "$"))


def _violations(root: dict, schema: dict, value: object, at: str):
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        yield from _violations(root, root["$defs"][name], value, at)
    elif "anyOf" in schema:
        options = [list(_violations(root, option, value, at)) for option in schema["anyOf"]]
        if all(options):
            yield options[0][0]
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{at}: not one of {schema['enum']}"
    elif "type" in schema and not _is(schema["type"], value):
        yield f"{at}: not {schema['type']}"
    elif isinstance(value, dict):
        yield from (f"{at}.{name}: missing" for name in schema.get("required", []) if name not in value)
        for name, part in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            yield from _violations(root, inner if isinstance(inner, dict) else {}, part, f"{at}.{name}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _violations(root, schema.get("items") or {}, part, f"{at}[{index}]")


def _is(kind: str, value: object) -> bool:
    if kind in ("number", "integer"):
        return isinstance(value, int | float if kind == "number" else int) and not isinstance(value, bool)
    return isinstance(value, KINDS[kind])
