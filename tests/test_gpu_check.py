"""The GPU check: silent success without a GPU, and on made-up records it passes and fails as it should."""

import copy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench import legal, suite
from tests.gpu import check
from tests.hosts import gpu_host
from tests.simulate import GPU_HOST, simulate

ROOT = Path(__file__).parents[1]


def test_without_a_gpu_it_says_so_and_succeeds(monkeypatch):
    """No accelerator in any interpreter: one line, exit code 0."""
    monkeypatch.delenv("SCALEMARK_GPU_CHECK", raising=False)
    if check._torch(sys.executable)[1] not in ("none", ""):
        pytest.skip("this host has an accelerator")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/gpu/check.py")], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0
    assert done.stdout.startswith("gpu-check: no GPU at hand (")
    assert done.stdout.endswith("nothing was checked\n")


def cases():
    """Every cell of the check's suites on a host with one GPU."""
    host = gpu_host(devices=1)
    found = {}
    for name in check.SUITES:
        for case in suite.expand(suite.load(str(ROOT / name)), host):
            legal.check(case, legal.Context(host=host))
            assert legal.why_not(case, legal.Context(host=host)) is None, case
            found[case.id] = case
    return list(found.values())


def facts(case):
    """What a rank on a GPU would read back."""
    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(case.precision, "float32")
    wrapper = {"dp": "DataParallel", "ddp": "DistributedDataParallel", "zero1": "DistributedDataParallel"}
    return {
        "precision": case.precision or "tf32 convolutions",
        "compute_dtype": dtype,
        "loss_scale": 65536.0 if case.precision == "fp16" else None,
        "channels_last": case.channels_last,
        "pinned": case.pin_memory,
        "wrapper": wrapper.get(case.strategy, "FSDPModule" if case.strategy == "fsdp" else "ResNet"),
        "device_uuids": ["GPU-0"],
        "batch": case.batch,
        "optimizer": {"adamw": "AdamW"}.get(case.optimizer, "SGD"),
        "fused": case.fused,
        "micro_batches": case.grad_accumulation,
        "compiled_graphs": 1 if case.compile else None,
        "comm_hook": case.comm_hook,
    }


def rows(tmp_path):
    """Records of the whole check as a GPU would leave them, as plain data."""
    store = simulate(tmp_path / "s", cases(), host=GPU_HOST, quick=True, blocks=1)
    found = []
    for record in store.records()[0]:
        row = msgspec.json.decode(msgspec.json.encode(record))
        row["telemetry"] = {"GPU-0/power_w": {"mean": 300.0, "max": 400.0}}
        for rank in row["ranks"]:
            rank["effective"] |= facts(record.requested)
            rank["last_loss"] = 6.9
        found.append(row)
    return found


def broken(found):
    """Names of the checks that fail on these rows."""
    every = [
        name
        for name, holds in check.EVERY.items()
        if not all(check.held(holds, row, row["ranks"][0]) for row in found)
    ]
    some = []
    for name, chosen, holds in check.SOME:
        of = [row for row in found if chosen(row["requested"])]
        if not of or not all(check.held(holds, row["ranks"][0]["effective"]) for row in of):
            some.append(name)
    return every + some


def test_the_check_covers_what_it_promises_and_passes_on_a_good_device(tmp_path):
    """Workers and pinning, precisions and layout, strategies, hooks, compilation: all checks hold on good records."""
    found = rows(tmp_path)
    assert len(found) == check.CELLS
    assert broken(found) == []


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda row, rank: row.update(clock="cpu"), "steps are timed by device events"),
        (
            lambda row, rank: rank["memory"].update(peak_reserved_bytes=1),
            "peak memory: allocated <= reserved <= used",
        ),
        (lambda row, rank: row["telemetry"].clear(), "telemetry of that device is there"),
        (lambda row, rank: rank["effective"].update(backend="gloo"), "DDP runs over nccl"),
        (lambda row, rank: rank["effective"].update(pinned=False), "pin_memory pins"),
        (lambda row, rank: rank["effective"].update(precision="fp32"), "tf32 is in effect"),
        (lambda row, rank: rank.update(last_loss=None), "the loss is finite"),
    ],
)
def test_each_fault_is_found(tmp_path, spoil, name):
    """A row that is not as a device should leave it fails the check that is about it."""
    found = copy.deepcopy(rows(tmp_path))
    for row in found:
        spoil(row, row["ranks"][0])
    assert name in broken(found)
