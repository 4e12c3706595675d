"""Files of other programs as allocations: pytest-benchmark's JSON, its own and what scalemark exports."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import compared, plugins
from bench.allocations import decide
from bench.case import Case
from bench.compared import Allocation
from bench.errors import UsageError
from bench.exporters.pytest_benchmark import PLUGIN as EXPORTER
from bench.importers.pytest_benchmark import read
from tests.simulate import CPU_HOST, simulate

CASES = [Case(), Case(strategy="ddp", ranks=2)]


def written(path, benchmarks, **machine):
    """A file as pytest-benchmark writes it, with what matters here."""
    path.write_text(json.dumps({"machine_info": machine, "benchmarks": benchmarks, "version": "5.3.1"}))
    return path


def timed(name, mean, **fields):
    return {"fullname": name, "name": name, "stats": {"mean": mean, "rounds": 7, "min": mean / 2}, **fields}


def test_what_pytest_benchmark_writes_is_one_allocation(tmp_path):
    """A real run: a cell a benchmark by its full name, one value of all its rounds, the machine and its Python."""
    (tmp_path / "test_it.py").write_text(
        "def test_sum(benchmark):\n    benchmark(lambda: sum(range(2000)))\n"
    )
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py", "--benchmark-json=run.json"]
    done = subprocess.run(
        [sys.executable, *words, "--benchmark-max-time=0.05"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    found = read(tmp_path / "run.json")
    stats = json.loads((tmp_path / "run.json").read_text())["benchmarks"][0]["stats"]
    assert list(found.cells) == ["test_it.py::test_sum"]
    assert found.cells["test_it.py::test_sum"].logs == {0: pytest.approx(-math.log(stats["mean"]))}
    assert found.unit == "calls/s"
    assert found.facts["python"] == ".".join(map(str, sys.version_info[:2]))
    assert found.cells["test_it.py::test_sum"].facts["timer"] == "perf_counter"


def test_one_file_a_side_decides_nothing_and_several_do(tmp_path):
    """Rounds of one process are no launches: ten times as slow is undecided, until there are three files a side."""
    base = [read(written(tmp_path / f"b{at}.json", [timed("t", 1.0 + at / 100)])) for at in range(3)]
    new = [read(written(tmp_path / f"n{at}.json", [timed("t", 10.0 + at / 10)])) for at in range(3)]
    once = decide(base[:1], new[:1], paired=False, delta=0.02, gate=True)
    assert (once.rows[0].verdict, once.exit_code) == ("inconclusive", 5)
    assert once.rows[0].ratio.value == pytest.approx(0.1)
    several = decide(base, new, paired=False, delta=0.02, gate=True)
    assert (several.rows[0].verdict, several.exit_code) == ("slower", 1)


def test_benchmarks_are_paired_by_their_full_name(tmp_path):
    """Two of one name in different files of tests are two; what is on one side only is said."""
    base = read(written(tmp_path / "b.json", [timed("a.py::t", 1.0), timed("b.py::t", 2.0)]))
    new = read(written(tmp_path / "n.json", [timed("b.py::t", 2.0), timed("c.py::t", 2.0)]))
    outcome = decide([base], [new], paired=False, delta=0.02, gate=True)
    assert [row.cell for row in outcome.rows] == ["b.py::t"]
    assert (outcome.only_base, outcome.only_new) == (("a.py::t",), ("c.py::t",))


def test_another_processor_or_python_is_refused(tmp_path):
    """The machine is named as in a study; a patch release of Python is no difference."""
    base = written(
        tmp_path / "b.json", [timed("t", 1.0)], cpu={"brand_raw": "A", "count": 2}, python_version="3.11.4"
    )
    new = written(
        tmp_path / "n.json", [timed("t", 1.0)], cpu={"brand_raw": "B", "count": 2}, python_version="3.11.9"
    )
    outcome = decide([read(base)], [read(new)], paired=False, delta=0.02, gate=True)
    assert [one.words for one in outcome.refusals] == ["cpu_model: A against B"]
    assert outcome.exit_code == 3


def test_what_scalemark_exported_is_judged_as_the_studies_are(tmp_path):
    """The same ratios and words as from the studies themselves, with a note on what the files do not hold."""
    studies = {}
    for side in ("base", "new"):
        host = CPU_HOST | {"torch": "2.9.0", "python": "3.11.4"}
        seeds = range(3) if side == "base" else range(10, 13)
        studies[side] = [
            simulate(tmp_path / f"{side}{seed}", CASES, blocks=3, seed=seed, host=host) for seed in seeds
        ]
    files = {}
    for side, stores in studies.items():
        for name, data in EXPORTER.files(stores, False).items():
            (tmp_path / name).write_bytes(data)
            files.setdefault(side, []).append(read(tmp_path / name))
    given = {"paired": False, "delta": 0.02, "gate": True}
    read_back = ([compared.read(store, 0.02) for store in side] for side in studies.values())
    ours, theirs = decide(*read_back, **given), decide(*files.values(), **given)
    assert theirs.unit == ours.unit == "samples/s"
    assert [row.verdict for row in theirs.rows] == [row.verdict for row in ours.rows]
    for one, other in zip(ours.rows, theirs.rows, strict=True):
        assert other.ratio.value == pytest.approx(one.ratio.value)
        assert other.ratio.low == pytest.approx(one.ratio.low)
        assert (other.base_launches, other.base_rate) == (9, pytest.approx(one.base_rate))
        assert "compare the studies" in other.note
    assert theirs.refusals == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON of pytest-benchmark"),
        ("[1, 2]", "not JSON of pytest-benchmark"),
        ("{}", "benchmarks"),
        ('{"benchmarks": 3}', "benchmarks"),
        ('{"benchmarks": [{"fullname": 3, "stats": {"mean": 1}}]}', "fullname"),
        ('{"benchmarks": [{"fullname": "t", "stats": {"mean": null}}]}', "mean"),
        ('{"benchmarks": [{"fullname": "t", "stats": {"mean": NaN}}]}', "not JSON of pytest-benchmark"),
        ('{"benchmarks": [{"fullname": "t", "stats": {"mean": 0}}]}', "took no time"),
        ('{"benchmarks": [{"fullname": "t", "stats": {"mean": -1}}]}', "took no time"),
        ('{"benchmarks": [{"fullname": "t", "stats": {"mean": 1e-310}}]}', "took no time"),
        ('{"benchmarks": [{"fullname": "t", "stats": {"mean": 1e999}}]}', "pytest"),
        ("[" * 100_000, "not JSON of pytest-benchmark"),
        ('{"machine_info": ' + '{"a":' * 50_000, "not JSON of pytest-benchmark"),
        ("\xff", "not JSON of pytest-benchmark"),
    ],
)
def test_what_is_no_such_file_is_told_in_one_line(tmp_path, text, says):
    """The file, the problem, and how such a file is written; nothing is guessed and nothing is a traceback."""
    path = tmp_path / "run.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=says) as error:
        read(path)
    assert "\n" not in str(error.value)
    assert "run.json" in str(error.value)


def test_a_benchmark_that_stands_there_twice_is_refused(tmp_path):
    """Which of the two is meant cannot be told."""
    with pytest.raises(UsageError, match="'t' stands there twice"):
        read(written(tmp_path / "run.json", [timed("t", 1.0), timed("t", 2.0)]))


def test_a_file_that_is_gone_is_named(tmp_path):
    """By its path, with the reason."""
    with pytest.raises(UsageError, match=r"gone\.json: No such file"):
        read(tmp_path / "gone.json")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(JSON, JSON, JSON, JSON)
def test_any_json_is_an_allocation_or_one_line(tmp_path_factory, machine, extra, options, mean):
    """Whatever stands in the fields."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    stats = {"mean": mean if isinstance(mean, float) else 1.0, "data": []}
    benchmark = {"fullname": "t", "stats": stats, "extra_info": extra, "options": options}
    path.write_text(json.dumps({"machine_info": machine, "benchmarks": [benchmark]}))
    try:
        found = read(path)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(value, str) for value in found.facts.values())
        assert math.isfinite(found.cells["t"].mean)


def test_importers_import_without_torch_and_heavy_libraries():
    """Naming them needs neither torch nor pandas, pyarrow or pytest-benchmark."""
    code = (
        "import sys; absent = ['torch', 'pandas', 'pyarrow', 'scipy', 'pytest_benchmark']\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from bench import plugins\n"
        "print(*[plugins.load('importers', name).summary for name in plugins.names('importers')], sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(plugins.names("importers")) > 0


@pytest.mark.parametrize("name", plugins.names("importers"))
def test_an_importer_says_what_it_is_and_how_its_files_end(name, tmp_path):
    """A summary for `scalemark list`, a suffix, and one line for a file of something else."""
    importer = plugins.load("importers", name)
    assert importer.summary and importer.suffix.startswith(".")
    path = tmp_path / f"x{importer.suffix}"
    path.write_bytes(b"\0\1")
    with pytest.raises(UsageError):
        importer.read(path)
    assert importer.read.__annotations__["return"] is Allocation
