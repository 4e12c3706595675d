"""scalemark checkpoint as a user runs it: what comes back, what torch refuses, what is left behind."""

import json
import os
import subprocess

import pytest

from bench.checkpoint_records import AS_IT_IS, BY_DEFAULT, CUT
from bench.checkpoint_rows import read
from tests.e2e.command import ours, scalemark

pytestmark = pytest.mark.e2e
SMALL = ("--set", "model=mlp", "--set", "model_args.width=32", "--set", "batch=2")
KNOWN = {BY_DEFAULT, AS_IT_IS, CUT}  # ways that are mistakes


def checked(rows):
    """Rows of a run on a CPU host: whatever torch took came back bit by bit, and it refused nothing but mistakes."""
    loads = [row for row in rows if row.kind == "load"]
    assert all(row.equal for row in loads if row.outcome == "ok")
    assert {row.outcome for row in rows if row.way in (CUT, BY_DEFAULT)} == {"refused"}
    elsewhere = {row.way: row.outcome for row in loads if row.made == "location tag"}
    assert elsewhere == {
        "none": "refused",
        "device": "ok",
        "dict": "ok",
        "other dict": "refused",
        "cpu": "ok",
    }
    groupless = [
        row
        for row in loads
        if row.saver == "ddp" and row.format == "model" and row.loader in ("single", "dp")
    ]
    assert {row.outcome for row in groupless} <= {"refused"}
    rest = [row for row in loads if not row.made and row.way not in KNOWN and row not in groupless]
    assert rest and {row.outcome for row in rest} == {"ok"}
    for row in (row for row in loads if row.format == "state_dict" and not row.made and row.outcome == "ok"):
        wrapped, into = row.saver in ("dp", "ddp"), row.loader in ("dp", "ddp")
        assert row.prefix == ("as it is" if wrapped == into else "stripped" if wrapped else "added")
    prefixes = [row for row in loads if row.way == AS_IT_IS]
    assert all(
        (row.outcome == "ok") == ((row.saver == "single") == (row.loader == "single")) for row in prefixes
    )
    return loads


@pytest.mark.timeout(200)
def test_saved_and_loaded_on_one_rank(tmp_path):
    """Two strategies save and load each other's files; rows, findings and the report say so; no file stays."""
    code, said = scalemark(
        tmp_path, "checkpoint", "--quick", "--nproc", "1", *SMALL, "-o", "results/c", "--json"
    )
    assert code == 0, said
    answer = json.loads(said[said.index("{") :])
    rows, broken = read(tmp_path / "results" / "c")
    assert broken == 0 and len(answer["rows"]) == len(rows)
    checked(rows)
    assert json.loads((tmp_path / "results/c/study.json").read_text())["suites"] == ["checkpoint"]
    saves = [row for row in rows if row.kind == "save"]
    assert {(row.saver, row.format) for row in saves} == {
        (saver, form) for saver in ("single", "ddp") for form in ("state_dict", "model", "dcp")
    }
    assert all(row.outcome == "ok" and 0 < row.rank0_s <= row.seconds < row.durable_s for row in saves)
    codes = {finding["code"] for finding in answer["findings"]}
    assert {"checkpoint-prefix", "checkpoint-weights-only", "checkpoint-absent-device"} <= codes
    assert {finding["level"] for finding in answer["findings"]} == {"info"}
    assert not (tmp_path / "results" / "c" / "checkpoints").exists() and ours(tmp_path) == []
    code, said = scalemark(tmp_path, "report", "results/c")
    assert code == 0, said
    page = (tmp_path / "reports" / "c.html").read_text()
    assert 'id="checkpoints"' in page and "What came of saving and loading?" in page


def test_what_cannot_be_written_is_one_line(tmp_path):
    """A folder that is not there, and one where nobody can write: exit code 2, nothing but the reason, and no study."""
    (tmp_path / "file").touch()
    for folder, why in (("missing", "No such file or directory"), ("file", "Not a directory")):
        words = ("checkpoint", "--quick", *SMALL, "-o", f"results/{folder}", "--to", folder)
        code, said = scalemark(tmp_path, *words)
        assert code == 2, said
        assert said.count("\n") == 1 and f"no checkpoint can be written there ({why})" in said
    assert not list(tmp_path.glob("results/*"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_strategy_loads_what_every_other_one_saved(tmp_path):
    """Single, DataParallel, DDP on one node and on two, and FSDP: each format, each kind of map_location."""
    code, said = scalemark(tmp_path, "checkpoint", "--nproc", "2", "--nodes", "2", *SMALL, "-o", "results/c")
    assert code == 0, said
    rows, _ = read(tmp_path / "results" / "c")
    loads = checked(rows)
    ways = {("single", 1), ("dp", 1), ("ddp", 1), ("fsdp", 1), ("ddp", 2)}
    pairs = {
        (row.saver, row.saver_nodes, row.loader, row.loader_nodes) for row in loads if row.outcome == "ok"
    }
    assert pairs == {(*saver, *loader) for saver in ways for loader in ways}
    assert {row.writer for row in rows if row.saver == "ddp" and row.format == "model"} == {
        "rank 0",
        "every rank",
    }
    dp = [row for row in rows if row.saver == "dp"]
    assert all(row.stand_in == "reference DataParallel" for row in dp)
    wrapped = {row.came_as for row in loads if row.format == "model" and row.outcome == "ok"}
    assert wrapped == {None, "ReferenceDataParallel", "DistributedDataParallel"}


@pytest.mark.long
def test_a_rank_that_dies_while_it_loads_costs_its_own_launch_only(tmp_path):
    """Rank 1 of DDP is killed in its first load: rows of that launch have failed, with the reason; all others stay."""
    (tmp_path / "dying.py").write_text(
        "import os\nfrom torch import nn\n"
        "from bench.workload import Sample, Workload\n"
        "class Net(nn.Linear):\n"
        "    def _load_from_state_dict(self, *args):\n"
        "        if os.environ['RANK'] == '1':\n"
        "            os.kill(os.getpid(), 9)\n"
        "        super()._load_from_state_dict(*args)\n"
        "def build(case):\n    return Workload(Net(4, 2), sample=Sample((4,), 2))\n"
    )
    words = ("--quick", "--nproc", "2", "--set", "model=dying:build", "--set", "batch=2", "-o", "results/c")
    code, said = scalemark(tmp_path, "checkpoint", *words)
    assert code == 1, said
    rows, _ = read(tmp_path / "results" / "c")
    lost = [row for row in rows if row.loader == "ddp"]
    assert lost and {row.outcome for row in lost} == {"failed"}
    assert all("rank 1" in row.message and "SIGKILL" in row.message for row in lost)
    assert "failed" not in {row.outcome for row in rows if row.loader != "ddp"}
    assert not (tmp_path / "results" / "c" / "checkpoints").exists() and ours(tmp_path) == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_is_full_is_a_row(tmp_path):
    """On a file system of 100 KiB nothing fits: every save has failed, in one line with the sizes; exit code 4."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(small)], check=True)
    try:
        words = ("--quick", "--nproc", "1", "--set", "model=mlp", "--set", "batch=2", "--to", str(small))
        code, said = scalemark(tmp_path, "checkpoint", *words, "-o", "results/c")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
    rows, _ = read(tmp_path / "results" / "c")
    assert code == 4, said
    assert {row.outcome for row in rows} == {"failed"}
    assert all("No space left on device: " in row.message and "are needed" in row.message for row in rows)
