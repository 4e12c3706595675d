"""What a launch costs beside its steps, in turn with torchrun of an equal script."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from bench import temporary
from bench.case import Case
from bench.launch import Engine, Launch, run

pytestmark = pytest.mark.self_bench

CASE = Case(strategy="ddp", ranks=2, model="paced", data="device", batch=4, steps=20)
SCRIPT = """
import os, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from bench.case import Case
from bench.models.paced import PLUGIN
torch.set_num_threads(1)
dist.init_process_group("gloo")
workload = PLUGIN.build(Case(batch=4))
model = DistributedDataParallel(workload.model)
optimizer = workload.optimizer(model.parameters())
batch = (torch.zeros(4, *workload.sample.shape), torch.zeros(4, dtype=torch.long))
began = time.perf_counter()
for _ in range(20):
    workload.loss(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.get_rank() == 0:
    print("STEPS", time.perf_counter() - began, flush=True)
os._exit(0)
"""


def ours(engine, folder):
    """Seconds of a launch beside its steps."""
    with temporary.folder() as scratch:
        launch = Launch(
            launch="x",
            case=CASE,
            scratch=str(scratch),
            logs=str(folder),
            conductor_pid=os.getpid(),
        )
        result = run(engine, launch, 2, lambda where: None)
    assert result.failure is None
    return result.wall_s - max(sum(trace.step_s) for trace in result.traces)


def torchrun(script):
    """Seconds of torchrun beside the script's steps."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    return time.perf_counter() - began - float(done.stdout.split("STEPS")[1].split()[0])


def test_a_launch_of_two_ranks_is_cheap(benchmark, tmp_path):
    """At most 0.8 s beside its steps, and at most a fifth of torchrun's, over five pairs in turn."""
    script = tmp_path / "equal.py"
    script.write_text(SCRIPT)

    def pairs():
        with Engine(tmp_path / "engine.log") as engine:
            ours(engine, tmp_path)
            return [(ours(engine, tmp_path), torchrun(script)) for _ in range(5)]

    found = benchmark.pedantic(pairs, rounds=1)
    mine, theirs = median(a for a, _ in found), median(b for _, b in found)
    benchmark.extra_info |= {"launch_s": mine, "torchrun_s": theirs, "ratio": mine / theirs}
    print(f"\nbeside its steps: {mine:.2f} s a launch, torchrun {theirs:.2f} s: a {theirs / mine:.1f}th")
    assert mine <= 0.8
    assert mine <= theirs / 5


def test_help_is_quick(benchmark):
    """`scalemark --help` answers within 0.3 s."""
    command = [Path(sys.executable).parent / "scalemark", "--help"]
    benchmark.pedantic(
        subprocess.run, (command,), {"capture_output": True, "check": True}, rounds=10, warmup_rounds=2
    )
    assert benchmark.stats.stats.median <= 0.3
