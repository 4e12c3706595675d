"""A real launch of every kind, looked at from inside the rank and from the record."""

import json
import math
import subprocess
import sys

import pytest

from bench.machine import own_python
from tests.e2e.command import records, scalemark, suite

pytestmark = pytest.mark.e2e

MIXED = """
[case]
model = "resnet-small"
data = "photos"
batch = 4
steps = 20
ranks = 2
[matrix]
strategy = ["ddp", "dp"]
sync_bn = [false, true]
[base]
strategy = "single"
ranks = 1
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Single device, DDP, DDP with SyncBN and DataParallel on real photographs, a launch each."""
    folder = tmp_path_factory.mktemp("mixed")
    code, out = scalemark(folder, "run", suite(folder, MIXED), "--quick", "-o", "results/mixed")
    assert code == 0, out
    rows = {(r.requested.strategy, r.requested.sync_bn): r for r in records(folder / "results/mixed")}
    return folder, out, rows


def test_illegal_combinations_are_skipped_with_the_reason(found):
    """DataParallel with SyncBN is skipped before the study and said; the other cells ran."""
    assert "sync_bn needs ddp: dp has no process group" in found[1]
    assert set(found[2]) == {("single", False), ("ddp", False), ("ddp", True), ("dp", False)}


def test_what_ran_is_read_back_inside_the_rank(found):
    """Wrapper, world size, backend, devices and SyncBN layers are those of the objects that ran."""
    rows = found[2]
    single, ddp = rows["single", False].ranks[0].effective, rows["ddp", False].ranks[1].effective
    assert (single.wrapper, single.world_size, single.backend) == ("ResNet", 1, None)
    assert (ddp.wrapper, ddp.world_size, ddp.backend) == ("DistributedDataParallel", 2, "gloo")
    synced = rows["ddp", True].ranks[0].effective
    assert (synced.sync_bn_layers, synced.sync_bn) == (synced.batch_norm_layers, "ReferenceSyncBatchNorm")
    dp = rows["dp", False].ranks[0].effective
    assert (dp.wrapper, dp.devices_used, dp.chunks) == ("ReferenceDataParallel", 2, (4, 4))
    assert all(not row.mismatches for row in rows.values())


def test_references_are_named_as_such(found):
    """On CPU the stand-ins for DataParallel and SyncBN say so in their rows, and DDP does not."""
    rows = found[2]
    kinds = {  # a busy host adds a mark of its own
        key: (row.implementation, tuple(mark for mark in row.marks if "busy host" not in mark))
        for key, row in rows.items()
    }
    assert kinds["dp", False] == ("reference", ("reference DataParallel on CPU",))
    assert kinds["ddp", True] == ("reference", ("reference SyncBN on CPU",))
    assert kinds["ddp", False] == ("torch", ())


def test_base_and_ranks_have_one_thread_each(found):
    """No launcher default: the base has as many threads as a rank."""
    assert {rank.effective.threads for row in found[2].values() for rank in row.ranks} == {1}


def test_ranks_start_from_the_same_weights(found):
    """The hash of the initial weights is one and the same under every strategy."""
    assert len({rank.effective.weights_hash for row in found[2].values() for rank in row.ranks}) == 1


def test_phases_of_each_rank_sum_to_its_step(found):
    """What the phases leave out is nothing: their means add up to the rank's step."""
    for row in found[2].values():
        for rank in row.ranks:
            total = sum(value for value in rank.phases_s.values() if value is not None)
            assert math.isclose(total, rank.step_s, rel_tol=1e-6)
            assert rank.phases_s["h2d"] is None


def test_every_rank_times_its_own_marks(found):
    """What a step pays for them is on record, and hardly anything beside the step."""
    for row in found[2].values():
        assert all(0 < rank.instrumentation_s < 0.01 * rank.step_s for rank in row.ranks)


def test_samples_are_counted_and_shared_out(found):
    """Two ranks at batch 4 step 8 samples a step and share an epoch; nothing is padded or dropped."""
    row = found[2]["ddp", False]
    assert row.window.samples == 8 * row.window.steps
    counts = row.ranks[0].counts
    assert (counts.dataset_len, counts.per_epoch, counts.padded, counts.dropped) == (20_000, 10_000, 0, 0)


def test_first_step_and_first_batch_stand_on_their_own(found):
    """Start-up times are recorded beside the window, not in it."""
    for row in found[2].values():
        assert row.first_step_s > 0
        assert row.first_batch_s > 0
        assert row.window.cut.first >= 3
        assert row.window.cut.state == "assumed"


def test_memory_is_the_hosts_on_cpu(found):
    """Host memory is there, and what only devices have is null."""
    for row in found[2].values():
        for rank in row.ranks:
            assert rank.memory.rank_pss_bytes > 10 << 20
            assert rank.memory.peak_allocated_bytes is None
            assert abs(rank.memory.open_fds - rank.memory.open_fds_start) <= 8  # no batch is kept


def test_telemetry_is_of_the_ranks_and_null_with_a_reason_for_devices(found):
    """CPU of each rank was sampled from beside it; without NVML there is a reason and no zero."""
    row = found[2]["ddp", False]
    assert any(key.startswith("rank 1/") for key in row.telemetry)
    assert any("nvml" in key.lower() for key in row.telemetry_reasons)
    assert not any(key.startswith("GPU-") for key in row.telemetry)


def test_files_of_the_study_are_where_the_design_says(found):
    """study.json, one line a launch, steps and telemetry as Parquet, a log a rank."""
    folder, _, rows = found
    study = folder / "results/mixed"
    row = rows["ddp", False]
    assert json.loads((study / "study.json").read_text())["schema"] == 1
    assert (study / "steps" / f"{row.launch}.parquet").is_file()
    assert (study / "telemetry" / f"{row.launch}.parquet").is_file()
    assert sorted(p.name for p in (study / "logs" / row.launch).iterdir()) == ["0.log", "1.log"]


LOOK = """
import sys
from bench.workload import Workload
from torch import nn
from torch.utils.data import TensorDataset
import torch
def build(case):
    heavy = sorted({"pandas", "scipy", "matplotlib", "typer", "rich", "jinja2"} & sys.modules.keys())
    import threading
    print("HEAVY", heavy, "METHOD", torch.multiprocessing.get_start_method())
    return Workload(nn.Linear(4, 2), dataset=TensorDataset(torch.zeros(64, 4), torch.zeros(64, dtype=torch.long)))
"""


def test_a_measured_rank_carries_no_weight_of_ours(tmp_path):
    """In a real rank pandas, scipy, matplotlib, typer and rich are not loaded, and workers start as by default."""
    (tmp_path / "look.py").write_text(LOOK)
    code, out = scalemark(
        tmp_path, "run", "single", "--quick", "--set", "model=look:build", "--set", "data=own", "--set", "steps=4",
        "-o", "results/look",
    )  # fmt: skip
    assert code == 0, out
    (log,) = (tmp_path / "results/look/logs").glob("*/0.log")
    default = subprocess.run(
        [sys.executable, "-c", "import multiprocessing as m; print(m.get_start_method())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert f"HEAVY [] METHOD {default}" in log.read_text()


def test_pinning_without_an_accelerator_is_told_once_and_enters_no_comparison(tmp_path):
    """pin_memory on CPU: asked for, not in effect, one warning in the record, and the row is marked."""
    code, out = scalemark(
        tmp_path, "run", "loader", "--quick", "--set", "num_workers=1", "--set", "pin_memory=true",
        "--set", "steps=30", "--set", "data_args.length=64", "-o", "results/pin",
    )  # fmt: skip
    assert code == 0, out
    (record,) = records(tmp_path / "results/pin")
    (rank,) = record.ranks
    assert rank.effective.pinned is False
    assert record.mismatches == ("pin_memory asked for, not in effect",)
    assert sum("pin_memory" in text for text in rank.warnings) == 1
    assert rank.counts.epochs > 1  # an iterator an epoch, and still one warning


@pytest.mark.parametrize("module", ["cli", "plan", "report", "analysis", "study", "machine", "suite"])
def test_everything_but_ranks_loads_without_torch(module):
    """The command line, planning, analysis and report import where torch does not exist."""
    code = f"sys.modules['torch'] = None; import bench.{module}; from bench import plugins; " + (
        "[plugins.load(kind, name) for kind in ('strategies', 'models', 'data', 'figures') for name in plugins.names(kind)]"
    )
    subprocess.run(own_python(code), check=True, timeout=60)
