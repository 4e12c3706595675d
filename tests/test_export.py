"""Studies as tables and as pytest-benchmark's JSON: values, types, names of files, and what is refused."""

import csv
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import plugins, tidy
from bench.case import Case
from bench.errors import UsageError
from bench.export import write
from bench.exporters import pytest_benchmark
from bench.exporters._rounds import summary
from bench.exporters.csv import text
from bench.records import PHASES
from bench.store import Store
from tests.simulate import failed, simulate

SINGLE, PAIR = Case(), Case(strategy="ddp", ranks=2)
FOUR = Case(strategy="ddp", ranks=4, model_args={"width": 8})
CELLS = [SINGLE, PAIR, FOUR]


def study(root, **options):
    """Three cells in three blocks; the second fails in block 1, the third is skipped."""

    def change(record):
        return failed(record, detail="=boom") if (record.cell, record.block) == (PAIR.id, 1) else record

    settings = {"blocks": 3, "skipped": {FOUR.id: "only 2 devices"}, "change": change, "write_steps": True}
    return simulate(root, CELLS, **(settings | options))


@pytest.fixture
def store(tmp_path):
    return study(tmp_path / "results/mine")


def columns(table):
    return {column.name: column.values for column in table}


def rows(data):
    return list(csv.DictReader(io.StringIO(data.decode())))


def test_every_launch_and_every_cell_without_one_has_a_row(store):
    """Good and failed launches as they ran, and the skipped cell with its reason and without a launch."""
    table = columns(tidy.tables([store])["launches"])
    assert table["status"].count("ok") == 5
    assert table["status"].count("failed") == 1
    assert table["status"][-1] == "skipped"
    assert (table["cell"][-1], table["reason"][-1]) == (FOUR.id, "only 2 devices")
    assert table["launch"][-1] is None and table["samples_per_s"][-1] is None
    assert (table["ranks"][-1], table["devices"][-1], table["model_args"][-1]) == (4, 4, '{"width":8}')
    assert {len(values) for values in table.values()} == {7}


def test_a_cell_that_never_ran_is_not_run(tmp_path):
    """A cell that is neither skipped nor recorded says so."""
    store = study(tmp_path / "s", change=lambda record: None if record.cell == PAIR.id else record)
    table = columns(tidy.tables([store])["launches"])
    assert dict(zip(table["cell"], table["status"], strict=True))[PAIR.id] == "not run"


def test_launch_rows_hold_the_records_numbers(store):
    """Throughput, its logarithm, counts and phases are those of the records, in their order."""
    table = columns(tidy.tables([store])["launches"])
    for at, record in enumerate(store.records()[0]):
        assert table["launch"][at] == record.launch
        if record.window:
            assert table["samples_per_s"][at] == record.window.samples_per_s
            assert table["ln_samples_per_s"][at] == pytest.approx(math.log(record.window.samples_per_s))
            assert table["window_steps"][at] == 45
            assert table["backward_s"][at] == record.phases_s["backward"]
        assert table["data_wait_s"][at] is None  # data on the device: not measured, and not 0
    assert "case" not in table and "y" not in table


def test_ranks_and_steps_have_a_row_each(store):
    """One row a rank of each good launch, and one a recorded step of each of those ranks."""
    found = tidy.tables([store], steps=True)
    ranks, steps = columns(found["ranks"]), columns(found["steps"])
    assert len(ranks["rank"]) == 3 * 1 + 2 * 2
    assert len(steps["step"]) == len(ranks["rank"]) * 50
    assert steps["in_window"].count(False) == len(ranks["rank"]) * 5
    assert set(steps["study"]) == {"mine"}
    assert json.loads(ranks["affinity"][0]) == [0, 1]


def test_types_do_not_depend_on_what_was_measured(tmp_path, store):
    """A study with all launches failed has the same columns of the same types as a good one."""
    bad = simulate(tmp_path / "bad", CELLS, change=failed)
    for one, other in zip(tidy.tables([store]).values(), tidy.tables([bad]).values(), strict=True):
        assert [column[:2] for column in one] == [column[:2] for column in other]


def test_every_value_is_of_its_columns_type(store):
    """Whole numbers are ints, nested values text, and no NaN is left."""
    types = {"int": int, "float": float, "bool": bool, "text": str, "json": str}
    for table in tidy.tables([store], steps=True).values():
        for name, kind, values in table:
            assert {type(value) for value in values} <= {types[kind], type(None)}, name
            assert not any(isinstance(value, float) and not math.isfinite(value) for value in values)


@pytest.mark.parametrize(
    ("value", "kind", "there"),
    [
        (math.nan, "float", None), (math.inf, "float", None), (math.nan, "int", None), (3.0, "int", 3),
        (("a", "b"), "json", '["a","b"]'), ({"x": math.nan}, "json", '{"x":null}'), (None, "json", None),
    ],
)  # fmt: skip
def test_a_value_becomes_plain(value, kind, there):
    """What is not finite is missing, also inside a nested value."""
    assert tidy.plain(value, kind) == there


def test_csv_reads_back(store):
    """Missing is empty, numbers keep all digits, nested values are JSON, and a formula is disarmed."""
    table = tidy.tables([store])["launches"]
    given, read = columns(table), rows(text(table).encode())
    assert [float(row["samples_per_s"] or "nan") for row in read] == pytest.approx(
        [math.nan if value is None else value for value in given["samples_per_s"]], nan_ok=True, rel=0
    )
    assert json.loads(read[-1]["model_args"]) == {"width": 8}
    bad = next(row for row in read if row["status"] == "failed")
    assert (bad["detail"], bad["samples_per_s"], bad["step_s"]) == ("'=boom", "", "")
    assert "nan" not in text(table).lower()


def test_parquet_holds_the_same_as_csv(tmp_path, store):
    """Both formats have the same rows and columns; Parquet has nulls and types."""
    from pyarrow import parquet

    write("csv", [store], tmp_path / "out", steps=True)
    write("parquet", [store], tmp_path / "out", steps=True)
    for name, table in tidy.tables([store], steps=True).items():
        read = parquet.read_table(tmp_path / f"out/{name}.parquet")
        assert read.to_pydict() == columns(table)
        assert list(rows((tmp_path / f"out/{name}.csv").read_bytes())[0]) == read.column_names
    assert str(read.schema.field("step").type) == "int64"


def test_steps_that_cannot_be_read_are_named(store):
    """A damaged file of steps is one line with its path."""
    path = next((store.root / "steps").iterdir())
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match=f"{path}: cannot be read"):
        tidy.tables([store], steps=True)


def test_a_round_is_the_seconds_a_sample_of_a_launch(store):
    """One benchmark a usable cell, one round a good launch by block, OPS their samples/s; the rest is named."""
    made = pytest_benchmark.run(store)
    assert [one["name"] for one in made["benchmarks"]] == [SINGLE.id, PAIR.id]
    pair = made["benchmarks"][1]
    rates = [r.window.samples_per_s for r in store.records()[0] if r.cell == PAIR.id and r.window]
    assert pair["stats"]["data"] == [1 / rate for rate in rates]
    assert pair["stats"]["rounds"] == 2
    assert pair["stats"]["ops"] == pytest.approx(2 / sum(1 / rate for rate in rates))
    assert (pair["params"], pair["param"]) == ({"strategy": "ddp", "ranks": 2}, "ddp-2")
    assert pair["extra_info"]["devices"] == 2 and pair["extra_info"]["failed_launches"] == 1
    assert 0 < pair["extra_info"]["efficiency_low"] < pair["extra_info"]["efficiency"]
    assert made["scalemark"]["left_out"] == {FOUR.id: "only 2 devices"}


def test_cells_that_may_not_be_judged_are_no_benchmark(tmp_path):
    """A launch whose settings were not in effect is left out, with what differs."""

    def change(record):
        return msgspec.structs.replace(record, mismatches=("threads: 1 asked for, 2 in effect",))

    store = simulate(tmp_path / "s", [SINGLE, PAIR], change=lambda r: change(r) if r.cell == PAIR.id else r)
    made = pytest_benchmark.run(store)
    assert [one["name"] for one in made["benchmarks"]] == [SINGLE.id]
    assert made["scalemark"]["left_out"] == {PAIR.id: "threads: 1 asked for, 2 in effect"}


def test_git_and_host_are_those_of_the_study(tmp_path):
    """The commit comes from study.json, not from where the export runs."""
    store = simulate(tmp_path / "s", [SINGLE], header={"git": "3f2a91c01234 with changes"})
    made = pytest_benchmark.run(store)
    assert (made["commit_info"]["id"], made["commit_info"]["dirty"]) == ("3f2a91c01234", True)
    assert made["machine_info"]["node"] == "simulated"
    clean = simulate(tmp_path / "t", [SINGLE])
    assert pytest_benchmark.run(clean)["commit_info"]["id"] == "unversioned"


def test_nothing_usable_is_no_benchmark_file(tmp_path):
    """A study without a good launch is refused in one line that names the way out, and no file is left."""
    store = simulate(tmp_path / "bad", CELLS, change=failed)
    with pytest.raises(UsageError, match=r"no cell has a usable launch.*csv has every launch"):
        write("pytest-benchmark", [store], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40))
def test_statistics_are_pytest_benchmarks_own(data):
    """Every field of `stats` is what pytest-benchmark computes from the same rounds."""
    from pytest_benchmark.stats import Stats

    theirs = Stats()
    for value in data:
        theirs.update(value)
    ours = summary(data)
    for name, value in theirs.as_dict().items():
        assert ours[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-12)), name
    assert set(ours) - set(theirs.as_dict()) == {"data", "iterations"}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The JSON of a real `pytest --benchmark-json`, of one parametrised benchmark."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', [1])\n"
        "def test_it(benchmark, n):\n    benchmark.pedantic(sum, ([n],), rounds=3)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-json=real.json", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return json.loads((folder / "real.json").read_text())


def shape(value):
    """Keys and kinds of what is inside, without the values: null may stand for anything."""
    return {key: shape(inner) if key == "stats" else None for key, inner in value.items()}


def test_json_is_built_as_pytest_benchmark_builds_it(store, real):
    """Every key that a real file has is here too, at the top, in the infos, in a benchmark and its stats."""
    made = pytest_benchmark.run(store)
    assert set(real) <= set(made) and set(made) - set(real) == {"scalemark"}
    for part in ("machine_info", "commit_info"):
        assert set(real[part]) <= set(made[part])
    (theirs,) = real["benchmarks"]
    for ours in made["benchmarks"]:
        assert shape(ours) == shape(theirs)
        assert set(ours["options"]) == set(theirs["options"])
        for name, value in theirs["stats"].items():
            assert isinstance(ours["stats"][name], int | float) == isinstance(value, int | float), name


def scalemark(folder, *words):
    """The command in a process that has no torch; returns exit code, output and errors."""
    code = "import sys; sys.modules['torch'] = None; from bench.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_command_prints_what_it_wrote_without_torch(tmp_path, store):
    """`--json` has the paths; by default they lie in reports/NAME, beside the report's own tables."""
    code, out, err = scalemark(tmp_path, "export", "results/mine", "--format", "csv", "--json")
    assert code == 0, err
    assert json.loads(out) == {"files": ["reports/mine/launches.csv", "reports/mine/ranks.csv"]}
    assert len(rows((tmp_path / "reports/mine/launches.csv").read_bytes())) == 7


def test_an_unknown_format_is_one_line(tmp_path, store):
    """Known formats and the nearest one, exit code 2."""
    code, _, err = scalemark(tmp_path, "export", "mine", "--format", "parket")
    assert code == 2
    assert err.splitlines() == [
        "scalemark: --format: exporters: unknown name 'parket'; known: csv, parquet, pytest-benchmark;"
        " did you mean 'parquet'?"
    ]


def test_pytest_benchmark_compares_two_studies(tmp_path, store):
    """`pytest-benchmark compare` reads both files and prints their cells with a row each."""
    study(tmp_path / "results/later", seed=1)
    for name in ("mine", "later"):
        write("pytest-benchmark", [Store(tmp_path / "results" / name)], tmp_path)
    command = [Path(sys.executable).parent / "pytest-benchmark", "compare", "mine.json", "later.json"]
    done = subprocess.run([*command, "--csv=table"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "benchmark 'resnet-small on device, weak scaling': 4 tests" in done.stdout
    read = rows((tmp_path / "table.csv").read_bytes())
    assert sorted(row["name"] for row in read) == sorted([f"scalemark::{c.id}" for c in (SINGLE, PAIR)] * 2)
    assert {row["param:ranks"] for row in read} == {"1", "2"}


@pytest.mark.parametrize(
    ("format_", "place", "steps", "says"),
    [
        ("csv", "out.json", False, "csv files end in .csv; give such a name, or a folder"),
        ("csv", "out.csv", False, r"these are 2 files \(launches.csv, ranks.csv\); give a folder"),
        ("parquet", "file/below", False, "cannot be written: .*; choose another place by -o"),
        ("pytest-benchmark", "out", True, "has no table of steps; csv and parquet have one"),
    ],
)
def test_a_place_that_does_not_fit_is_refused(tmp_path, store, format_, place, steps, says):
    """One line that says what to give instead, and nothing is written."""
    (tmp_path / "file").write_text("")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=says):
        write(format_, [store], tmp_path / place, steps)
    assert set(tmp_path.rglob("*")) == before


def test_one_file_takes_the_name_given(tmp_path, store):
    """-o names the file where there is one; the folder of it is made, an older one is replaced."""
    place = tmp_path / "new/base.json"
    for _ in range(2):
        assert write("pytest-benchmark", [store, store], place) == [place]
    assert [path.name for path in place.parent.iterdir()] == ["base.json"]


def test_files_are_written_all_or_none(tmp_path, store, monkeypatch):
    """If the second file cannot be written, the first is not there either, and an older one is as it was."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out/launches.csv").write_text("older")
    (tmp_path / "out/ranks.csv").mkdir()
    with pytest.raises(UsageError, match="a folder has this name"):
        write("csv", [store], tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["launches.csv", "ranks.csv"]
    assert (tmp_path / "out/launches.csv").read_text() == "older"


def test_studies_of_one_name_stay_apart(tmp_path, store):
    """Two studies in one table are told apart by their paths, and each gets a JSON file of its own."""
    other = study(tmp_path / "elsewhere/mine", seed=3)
    names = set(columns(tidy.tables([store, other])["launches"])["study"])
    assert names == {str(store.root), str(other.root)}
    written = write("pytest-benchmark", [store, other], tmp_path / "out")
    assert [path.name for path in written] == ["mine.json", "mine-2.json"]


def test_formats_are_listed():
    """`scalemark list exporters` names what --format takes."""
    assert plugins.names("exporters") == ("csv", "parquet", "pytest-benchmark")


DOC = (Path(__file__).parents[1] / "docs/exporting.md").read_text()
SHELL = "".join(re.findall(r"```sh\n(.*?)```", DOC, re.S)).splitlines()


def test_the_pages_commands_and_code_run(tmp_path, monkeypatch, capsys):
    """Each line on exporting works as it is written, in its order, and the lines that read the files do too."""
    from typer.main import get_command

    from bench.cli import app

    monkeypatch.chdir(tmp_path)
    for name in ("before", "after"):
        study(tmp_path / "results" / name)
    lines = [shlex.split(line) for line in SHELL if line.startswith("scalemark export")]
    assert len(lines) == 4
    for words in lines:
        get_command(app).main(words[1:], standalone_mode=False)
    for path in capsys.readouterr().out.split():
        assert not path.endswith((".csv", ".parquet", ".json")) or (tmp_path / path).is_file()
    compare = next(line for line in SHELL if line.startswith("pytest-benchmark compare"))
    command = [Path(sys.executable).parent / "pytest-benchmark", *shlex.split(compare)[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "4 tests" in done.stdout, done.stderr
    exec(re.search(r"```python\n(import pandas.*?)```", DOC, re.S)[1], {})
    printed = capsys.readouterr().out
    assert SINGLE.id in printed and PAIR.id in printed and FOUR.id not in printed


def test_every_column_is_explained(store):
    """The page names each column that is no setting of a case and nothing read back in a rank."""
    from bench.records import Effective, RankMemory, Samples

    told = set(Case.__struct_fields__)
    for struct in (Effective, RankMemory, Samples):
        told |= set(struct.__struct_fields__)
    for name, table in tidy.tables([store], steps=True).items():
        part = re.search(rf"^## {name}\n(.*?)^## ", DOC, re.S | re.M)[1]
        phases = {f"{phase}_s" for phase in PHASES}
        shown = set(re.findall(r"`([^`]+)`", part)) | told | phases
        assert {column.name for column in table} <= shown, name


def test_export_says_how_many_lines_could_not_be_read(store, tmp_path, capsys):
    """The files on standard output, one a line; what is not in them on standard error."""
    from bench.verbs.export import PLUGIN

    store.launches_path.write_text("{\n" + store.launches_path.read_text())
    PLUGIN([str(store.root)], output=str(tmp_path / "out"))
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path}/out/launches.csv\n{tmp_path}/out/ranks.csv\n"
    assert captured.err == f"note: {store.launches_path}: 1 line could not be read\n"
