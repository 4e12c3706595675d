"""One run over a suite that crosses the axes: every legal cell runs as asked, every other one says why not."""

import gzip
import json

import pytest

from bench.records import PHASES
from tests.e2e.command import records, scalemark, suite

pytestmark = pytest.mark.e2e

CROSSED = """
[case]
ranks = 2
model = "resnet-small"
data = "device"
batch = 4
steps = 10
[case.model_args]
image_size = 32
[matrix]
strategy = ["single", "dp", "ddp", "zero1", "fsdp"]
precision = ["tf32", "bf16"]
comm_hook = ["none", "fp16", "bf16", "powersgd"]
[base]
strategy = "single"
ranks = 1
"""
EVERYTHING = """
[case]
strategy = "ddp"
ranks = 2
model = "resnet-small"
data = "photos"
batch = 2
steps = 10
num_workers = 1
optimizer = "adamw"
fused = true
channels_last = true
grad_accumulation = 3
cpu_binding = "cores"
page_cache = "cold"
bucket_cap_mb = 1
gradient_as_bucket_view = true
broadcast_buffers = false
find_unused_parameters = true
[matrix]
strategy = ["ddp", "zero1"]
[base]
strategy = "single"
ranks = 1
model = "mlp"
data = "device"
compile = true
num_workers = 0
channels_last = false
page_cache = "none"
[base.model_args]
width = 64
depth = 1
"""


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """The output of a run over the crossing, with traces, and its records by setting."""
    folder = tmp_path_factory.mktemp("axes")
    code, out = scalemark(folder, "run", suite(folder, CROSSED), "--quick", "--trace", "-o", "results/axes")
    assert code == 0, out
    rows = {
        (r.requested.strategy, r.requested.precision, r.requested.comm_hook): r
        for r in records(folder / "results/axes")
    }
    return folder / "results/axes", out, rows


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Records of cells with many settings at once, by strategy."""
    folder = tmp_path_factory.mktemp("everything")
    code, out = scalemark(folder, "run", suite(folder, EVERYTHING), "--quick", "-o", "results/all")
    assert code == 0, out
    return {r.requested.strategy: r for r in records(folder / "results/all")}


def test_a_crossing_runs_what_is_legal_and_says_why_not(crossed):
    """Of 40 crossed cells and 2 bases, those that can run here did, each as asked; the rest are named with reasons."""
    _, out, rows = crossed
    expected = {(s, "bf16", None) for s in ("single", "dp", "ddp", "zero1", "fsdp")}
    expected |= {(s, "bf16", hook) for s in ("ddp", "zero1") for hook in ("fp16", "powersgd")}
    assert rows.keys() == expected
    assert all(row.status == "ok" and not row.mismatches for row in rows.values())
    skipped = [line for line in out.splitlines() if line.startswith("skipped: ")]
    assert len(skipped) == 42 - len(expected)
    for reason in (
        "single runs on one device, 2 were asked for",
        "precision tf32 needs CUDA devices",
        "comm_hook is DistributedDataParallel's: fsdp has none",
        "comm_hook bf16 needs nccl or xccl",
    ):
        assert any(reason in line for line in skipped), reason


def test_each_axis_is_read_back_in_the_rank(crossed):
    """Precision by what a layer gives out, the hook by what DDP reports, sharding by the bytes that a rank holds."""
    rows = crossed[2]
    said = {key: row.ranks[-1].effective for key, row in rows.items()}
    assert {(e.precision, e.compute_dtype) for e in said.values()} == {("bf16", "bfloat16")}
    assert said["ddp", "bf16", "fp16"].comm_hook == "fp16"
    assert said["fsdp", "bf16", None].wrapper == "FSDPModule"
    assert said["zero1", "bf16", None].optimizer == "ZeroRedundancyOptimizer(SGD)"
    whole, zero, sharded = (said[name, "bf16", None] for name in ("ddp", "zero1", "fsdp"))
    assert whole.parameter_bytes == zero.parameter_bytes > 1.8 * sharded.parameter_bytes
    assert whole.optimizer_state_bytes > 1.8 * max(zero.optimizer_state_bytes, sharded.optimizer_state_bytes)
    assert sum(whole.buckets_bytes) == whole.gradient_bytes
    assert len({e.weights_hash for e in said.values()}) == 1  # the same model, whatever is around it
    assert "PowerSGD over gloo, a bucket at a time" in rows["ddp", "bf16", "powersgd"].marks


def test_a_trace_a_rank_has_the_phases(crossed):
    """Every cell has a Chrome trace a rank, in which each phase of the three steps is a range."""
    study, out, rows = crossed
    assert f"traces: {study.relative_to(study.parents[1])}/traces" in out
    for row in rows.values():
        files = sorted(path.name for path in study.glob(f"traces/{row.launch}/*"))
        assert files == [f"rank{rank.rank}.json.gz" for rank in row.ranks]
    with gzip.open(study / "traces" / rows["ddp", "bf16", None].launch / "rank1.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert {phase: names.count(phase) for phase in PHASES} == dict.fromkeys(PHASES, 3)
    assert any("gloo:all_reduce" in event.get("name", "") for event in events)


def test_a_trace_that_fails_costs_no_window(tmp_path):
    """A rank that raises while it is traced, the other waiting for it: both windows are kept, and the reason is said."""
    text = """
    [case]
    strategy = "ddp"
    ranks = 2
    model = "faulty:build"
    data = "own"
    batch = 4
    steps = 8
    [case.model_args]
    fault = "traced"
    """
    code, out = scalemark(tmp_path, "run", suite(tmp_path, text), "--quick", "--trace", "-o", "results/t")
    assert code == 0, out
    (row,) = records(tmp_path / "results/t")
    assert row.status == "ok"
    assert row.window.samples_per_s > 0
    assert row.wall_s < row.requested.timeout_s / 2  # the other rank is not left to the time limit
    assert any("no profiler trace: ValueError: planted" in text for text in row.ranks[1].warnings)
    assert list((tmp_path / "results/t/traces").glob("*/*")) == []
    assert "traces:" not in out


def test_many_settings_at_once_are_all_in_effect(everything):
    """Accumulation, fused AdamW, channels_last, bound CPUs, cold files and DDP's options, together and read back."""
    for strategy in ("ddp", "zero1"):
        row = everything[strategy]
        assert not row.mismatches
        assert (
            sum(rank.counts.seen for rank in row.ranks) == 2 * 10 * 3 * 2
        )  # ranks, steps, micro-batches, batch
        facts = [rank.effective for rank in row.ranks]
        assert all(e.fused and e.channels_last and e.micro_batches == 3 for e in facts)
        assert all((e.page_cache_share or 0.0) < 0.2 for e in facts)  # a worker may be reading at that moment
        assert all(e.affinity == e.worker_affinity for e in facts)
        assert not set(facts[0].affinity) & set(facts[1].affinity)
        assert (facts[0].bucket_cap_bytes, facts[0].broadcast_buffers) == (1 << 20, False)
        assert (facts[0].gradient_as_bucket_view, facts[0].find_unused_parameters) == (True, True)


def test_compilation_is_told_and_kept_out_of_the_window(everything):
    """torch.compile made a graph before the window: its time is a field of its own, and no step holds it."""
    row = everything["single"]
    assert row.ranks[0].effective.compiled_graphs >= 1
    assert row.compile_s > 10 * row.first_step_s
    assert row.overhead_s < row.wall_s - row.compile_s
