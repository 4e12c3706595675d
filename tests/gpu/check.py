"""`make gpu-check`: everything that needs a GPU, in four minutes at most, under the torch that is installed there.

    python3 tests/gpu/check.py

Looks for an interpreter whose torch (2.9 or later) finds an accelerator: .venv first, then the one that runs this.
Without one it says so and exits 0. Packages of the suite that are missing there are installed beside it, into
.gpu-site, from .wheels/ (make gpu-wheels) or else by pip. The study goes to results/gpu-check. Exits 1 if a check
failed, 2 if it could not be made. Until then only the standard library is used.
"""

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SITE, WHEELS = ROOT / ".gpu-site", ROOT / ".wheels"
STUDY = Path("results/gpu-check")
SUITES = [f"tests/gpu/{name}.toml" for name in ("loader", "precision", "strategies", "step", "compile")]
LIMIT_S = 240.0
CELLS = 22
NEEDED = {
    "msgspec": "msgspec", "typer": "typer", "rich": "rich", "psutil": "psutil", "pynvml": "nvidia-ml-py", "numpy": "numpy",
    "scipy": "scipy", "pandas": "pandas", "pyarrow": "pyarrow", "matplotlib": "matplotlib", "PIL": "pillow",
    "jinja2": "jinja2",
}  # fmt: skip
PROBE = (
    "import torch; a = torch.accelerator.current_accelerator(check_available=True);"
    " print(torch.__version__, a.type if a else 'none', torch.accelerator.device_count())"
)


def main() -> int:
    """Find an interpreter and go on in it; 0 where there is no GPU."""
    began = time.monotonic()
    if os.environ.get("SCALEMARK_GPU_CHECK"):
        return check(float(os.environ["SCALEMARK_GPU_CHECK"]))
    candidates = [str(ROOT / ".venv/bin/python"), sys.executable]
    seen = {python: _torch(python) for python in dict.fromkeys(candidates) if Path(python).exists()}
    for python, (version, kind, count) in seen.items():
        if kind not in ("none", ""):
            print(f"gpu-check: {python}: torch {version}, {count} x {kind}", flush=True)
            if tuple(map(int, version.split("+")[0].split(".")[:2])) < (2, 9):
                print(f"gpu-check: torch {version} is too old; 2.9 or later is needed")
                return 2
            environment = os.environ | {"SCALEMARK_GPU_CHECK": str(began), "PYTHONPATH": str(SITE)}
            return subprocess.run([python, "-P", __file__], env=environment, cwd=ROOT).returncode
    said = "; ".join(f"{python}: torch {version or 'none'}" for python, (version, _, _) in seen.items())
    print(f"gpu-check: no GPU at hand ({said}): nothing was checked")
    return 0


def _torch(python: str) -> tuple[str, str, str]:
    """Version of an interpreter's torch, type and number of its accelerators; empty where it has no torch."""
    try:
        done = subprocess.run([python, "-P", "-c", PROBE], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return "", "", "0"
    words = done.stdout.split()
    return (words[-3], words[-2], words[-1]) if done.returncode == 0 and len(words) >= 3 else ("", "", "0")


def check(began: float) -> int:
    """Install what is missing, run the study, look at what it wrote."""
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing and not _install(missing):
        return 2
    sys.path.append(str(ROOT))
    shutil.rmtree(ROOT / STUDY, ignore_errors=True)
    code, _ = _scalemark("run", *SUITES, "--quick", "-o", str(STUDY), limit_s=LIMIT_S - 30)
    print(f"gpu-check: run ended with {code} after {time.monotonic() - began:.0f} s", flush=True)
    found = list(_findings(ROOT / STUDY, code))
    left_s = LIMIT_S - 10 - (time.monotonic() - began)
    if left_s > 15:
        found += _by_uuid(ROOT / STUDY, left_s)
    _scalemark("report", str(STUDY), "-o", "reports/gpu-check.html", limit_s=30)
    bad = [text for ok, text in found if not ok]
    for ok, text in found:
        print(f"{'ok  ' if ok else 'FAIL'}  {text}")
    print(
        f"gpu-check: {len(found) - len(bad)} of {len(found)} checks passed in {time.monotonic() - began:.0f} s; {STUDY}"
    )
    return 1 if bad or not found else 0


def _install(missing: list[str]) -> bool:
    source = ["--no-index", "--no-deps", "--find-links", str(WHEELS)] if WHEELS.is_dir() else []
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(SITE), *source, *missing]
    done = subprocess.run(command, capture_output=True, text=True)
    importlib.invalidate_caches()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(
            f"gpu-check: {', '.join(missing)} missing and not installed ({last}); bring them by make gpu-wheels"
        )
    return done.returncode == 0


def _scalemark(*words: str, limit_s: float, **variables: str) -> tuple[int, str]:
    """Run a verb, its output shown; exit code (124: stopped at its limit) and output."""
    command = [
        sys.executable,
        "-P",
        "-c",
        f"import sys; sys.path.append({str(ROOT)!r}); from bench.__main__ import main; main()",
    ]
    try:
        done = subprocess.run(
            [*command, *words], cwd=ROOT, timeout=limit_s, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | variables,
        )  # fmt: skip
    except subprocess.TimeoutExpired as stopped:
        said = stopped.stdout
        print(said.decode(errors="replace") if isinstance(said, bytes) else said or "")
        return 124, ""
    print(done.stdout, flush=True)
    return done.returncode, done.stdout


def _findings(study: Path, code: int) -> Iterator[tuple[bool, str]]:
    """What must hold of every launch on a device, and of each kind of cell."""
    lines = (study / "launches.jsonl").read_text().splitlines() if (study / "launches.jsonl").exists() else []
    rows = [json.loads(line) for line in lines]
    yield code == 0, "run: every cell ran"
    yield len(rows) >= CELLS, f"{len(rows)} launches recorded"
    good = [row for row in rows if row["status"] == "ok"]
    for row in rows:
        if row["status"] != "ok":
            yield False, f"{row['cell']}: {row['reason']}: {row['detail']}"
    for name, holds in EVERY.items():
        broken = [row["cell"] for row in good if not held(holds, row, row["ranks"][0])]
        yield not broken and bool(good), name + (f": not in {', '.join(broken[:3])}" if broken else "")
    for name, chosen, holds in SOME:
        of = [row for row in good if chosen(row["requested"])]
        yield bool(of) and all(held(holds, row["ranks"][0]["effective"]) for row in of), name
    yield _pinned_copies_faster(good), "copies from pinned memory are no slower than from pageable memory"
    yield _events_agree(), "device time of steps by events is the wall time around them, to 5 %"


def held(holds: Callable[..., bool], *parts: Any) -> bool:
    """Whether a check holds; of what was not measured it does not."""
    try:
        return bool(holds(*parts))
    except (TypeError, KeyError, ZeroDivisionError):
        return False


Row = dict[str, Any]
EVERY: dict[str, Callable[[Row, Row], bool]] = {
    "steps are timed by device events": lambda row, rank: row["clock"] == "events",
    "settings asked for are in effect": lambda row, rank: not row["mismatches"],
    "phases are measured and none is negative": lambda row, rank: all(
        row["phases_s"][name] is not None and row["phases_s"][name] >= 0
        for name in ("forward", "backward", "optimizer")
    ),
    "phases sum to the step": lambda row, rank: (
        abs(sum(value for value in rank["phases_s"].values() if value is not None) / rank["step_s"] - 1)
        < 0.01
    ),
    "peak memory: allocated <= reserved <= used": lambda row, rank: (
        0
        < (rank["memory"]["peak_allocated_bytes"] or 1)  # not known with CUDA graphs
        <= rank["memory"]["peak_reserved_bytes"]
        <= rank["memory"]["device_used_bytes"]
    ),
    "the device is named by its UUID": lambda row, rank: len(rank["effective"]["device_uuids"]) == 1,
    "telemetry of that device is there": lambda row, rank: any(
        key.startswith(uuid) and key.endswith("/power_w") and stat.get("mean")
        for uuid in rank["effective"]["device_uuids"]
        for key, stat in row["telemetry"].items()
    ),
    "the loss is finite": lambda row, rank: rank["last_loss"] is not None,
}
SOME: list[tuple[str, Callable[[Row], bool], Callable[[Row], bool]]] = [
    ("pin_memory pins", lambda case: case.get("pin_memory", False), lambda e: e["pinned"] is True),
    ("without pin_memory nothing is pinned", lambda case: case.get("num_workers") == 4 and not case.get("pin_memory"),
     lambda e: e["pinned"] is False),
    ("bf16 computes in bfloat16", lambda case: case.get("precision") == "bf16", lambda e: e["compute_dtype"] == "bfloat16"),
    ("fp16 computes in float16, with a scaler", lambda case: case.get("precision") == "fp16",
     lambda e: e["compute_dtype"] == "float16" and (e["loss_scale"] or 0) > 0),
    ("tf32 is in effect", lambda case: case.get("precision") == "tf32", lambda e: e["precision"] == "tf32"),
    ("fp32 is in effect", lambda case: case.get("precision") == "fp32", lambda e: e["precision"] == "fp32"),
    ("torch's own precision is said", lambda case: case.get("precision") is None, lambda e: "tf32" in e["precision"]),
    ("hooks run over nccl", lambda case: case.get("comm_hook") is not None, lambda e: (e["backend"], e["stand_ins"]) == ("nccl", [])),
    ("AdamW is fused", lambda case: case.get("fused", False), lambda e: (e["optimizer"], e["fused"]) == ("AdamW", True)),
    ("two micro-batches a step", lambda case: case.get("grad_accumulation") == 2, lambda e: e["micro_batches"] == 2),
    ("torch.compile makes graphs, in bf16", lambda case: bool(case.get("compile")),
     lambda e: (e["compiled_graphs"] or 0) > 0 and e["precision"] == "bf16"),
    ("channels_last is in effect", lambda case: case.get("channels_last", False), lambda e: e["channels_last"] is True),
    ("DDP runs over nccl", lambda case: case["strategy"] == "ddp",
     lambda e: (e["wrapper"], e["backend"], e["world_size"]) == ("DistributedDataParallel", "nccl", 1)),
    ("DataParallel is torch's own", lambda case: case["strategy"] == "dp",
     lambda e: (e["wrapper"], e["implementation"], e["devices_used"]) == ("DataParallel", "torch", 1)),
    ("fully_shard and ZeRO-1 run over nccl", lambda case: case["strategy"] in ("fsdp", "zero1"), lambda e: e["backend"] == "nccl"),
]  # fmt: skip


def _pinned_copies_faster(rows: list[Row]) -> bool:
    """h2d of the cells with 4 workers; 10 % for noise."""
    copies = {
        row["requested"].get("pin_memory", False): row["phases_s"]["h2d"]
        for row in rows
        if row["requested"].get("num_workers") == 4
    }
    return len(copies) == 2 and None not in copies.values() and copies[True] <= 1.1 * copies[False]


CLOCKS = """
import time, torch
from bench.case import Case
from bench.loop import EventClock, timed_steps
from bench.place import Place
from bench.recipe import make_training
from bench.workload import Workload
device = torch.device("cuda", 0)
place = Place(rank=0, local_rank=0, world_size=1, node=0, device=device, devices=(0,))
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(16)]).to(device)
batch = (torch.randn(4096, 4096, device=device), torch.zeros(4096, dtype=torch.int64, device=device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
training = make_training(Case(), Workload(model), place, model, optimizer, iter(lambda: batch, None), lambda b: b)
timed_steps(training, EventClock(torch.cuda), 5, lambda: None, [0])
began = time.perf_counter()
phases, _ = timed_steps(training, EventClock(torch.cuda), 20, lambda: None, [0])
print(phases.sum() / (time.perf_counter() - began))
"""


def _events_agree() -> bool:
    """Device time of 20 steps by events against the wall time around them: what the events leave out is small."""
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.append({str(ROOT)!r})\n{CLOCKS}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    words = done.stdout.split()
    print(f"gpu-check: device time / wall time: {words[-1] if words else done.stderr[-300:]}", flush=True)
    return bool(words) and 0.95 < float(words[-1]) < 1.01


def _by_uuid(study: Path, left_s: float) -> list[tuple[bool, str]]:
    """The device named by its UUID in CUDA_VISIBLE_DEVICES is found, used and sampled."""
    uuids = {
        uuid
        for line in (study / "launches.jsonl").read_text().splitlines()
        for rank in json.loads(line)["ranks"]
        for uuid in (rank["effective"] or {}).get("device_uuids", ())
    }
    if len(uuids) != 1:
        return []
    (uuid,) = uuids
    words = (
        "run",
        "single",
        "--quick",
        "--trace",
        "--set",
        "data=device",
        "--set",
        "steps=10",
        "--set",
        "model=resnet18",
    )
    place = ROOT / "results/gpu-check-uuid"
    shutil.rmtree(place, ignore_errors=True)
    code, _ = _scalemark(*words, "-o", str(place), limit_s=left_s, CUDA_VISIBLE_DEVICES=uuid)
    traces = list(place.glob("traces/*/rank0.json.gz"))
    kernels = any(b'"cat": "kernel"' in gzip.decompress(trace.read_bytes()) for trace in traces)
    shutil.rmtree(place, ignore_errors=True)
    return [(code == 0, f"CUDA_VISIBLE_DEVICES={uuid} runs"), (kernels, "--trace shows the device's kernels")]


if __name__ == "__main__":
    raise SystemExit(main())
