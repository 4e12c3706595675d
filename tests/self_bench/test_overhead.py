"""What the instrumentation costs a step, beside a bare loop in the same process, step by step in turn."""

import itertools
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bench.build import make_source, move  # noqa: E402
from bench.case import Case  # noqa: E402
from bench.loop import CpuClock, timed_steps  # noqa: E402
from bench.place import Place  # noqa: E402
from bench.plugins import load  # noqa: E402
from bench.recipe import make_training  # noqa: E402
from bench.stats import mean_interval  # noqa: E402
from bench.telemetry import Telemetry  # noqa: E402
from bench.user import workload as build_workload  # noqa: E402

pytestmark = pytest.mark.self_bench

PLACE = Place(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"), devices=())


def training(case):
    """One training, as a rank builds it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = build_workload(case)
    source = make_source(case, workload, load("strategies", "single"), PLACE)
    optimizer = workload.optimizer(workload.model.parameters())
    return (
        workload,
        optimizer,
        make_training(
            case,
            workload,
            PLACE,
            workload.model,
            optimizer,
            source.batches,
            lambda b: move(b, PLACE.device, case),
        ),
    )


def bare(one, steps):
    """The loop anybody would write; returns seconds."""
    workload, optimizer, training = one
    began = time.perf_counter()
    for batch in itertools.islice(training.batches, steps):
        loss = workload.loss(workload.model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - began


def instrumented(one, steps):
    """The suite's own loop with everything on; returns seconds."""
    began = time.perf_counter()
    timed_steps(one[-1], CpuClock(), steps, lambda: None, [0])
    return time.perf_counter() - began


def alternate(case, steps, rounds):
    """Seconds a step of bare and instrumented rounds, (rounds,) each; the order turns every round."""
    one = training(case)
    bare(one, 5)
    seconds = {bare: [], instrumented: []}
    for i in range(rounds):
        for run in (bare, instrumented) if i % 2 else (instrumented, bare):
            telemetry = Telemetry().start() if run is instrumented else None
            time.sleep(0.5)  # as in a launch, the sampler runs before the steps begin; both rounds rest alike
            bare(one, 2)
            seconds[run].append(run(one, steps) / steps)
            if telemetry is not None:
                telemetry.stop()
    return np.array(seconds[bare]), np.array(seconds[instrumented])


def test_a_paced_step_costs_at_most_a_third_of_a_millisecond_more(benchmark):
    """Paced steps of 50 ms, 20 rounds in turn: the difference a step is at most 0.3 ms."""
    case = Case(model="paced", data="device", batch=4)
    plain, ours = benchmark.pedantic(alternate, (case, 10, 20), rounds=1)
    difference = ours - plain
    half = 2.09 * difference.std(ddof=1) / len(difference) ** 0.5
    benchmark.extra_info |= {"ms_a_step": 1e3 * difference.mean(), "plus_minus_ms": 1e3 * half}
    print(f"\noverhead a step: {1e3 * difference.mean():+.3f} +- {1e3 * half:.3f} ms")
    assert difference.mean() <= 0.3e-3


def test_a_real_network_on_photographs_keeps_its_throughput(benchmark):
    """resnet-small on photos, 40 rounds in turn: at least 99 % of the bare loop's throughput, as far as can be told."""
    case = Case(model="resnet-small", data="photos", batch=8)
    plain, ours = benchmark.pedantic(alternate, (case, 8, 40), rounds=1)
    ratio = mean_interval(np.log(plain) - np.log(ours))
    benchmark.extra_info |= {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    print(f"\nthroughput against the bare loop: {ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]")
    print(f"bare: {mean_interval(-np.log(plain)).value * 8:.1f} samples/s")
    assert ratio.high >= 0.99
