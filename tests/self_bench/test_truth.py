"""Reported numbers against a known answer: paced models and data of stated times, through real launches."""

import pytest

from tests.e2e.command import records, scalemark

pytestmark = pytest.mark.self_bench

FORWARD_S, BACKWARD_S = 0.004, 0.0085  # a sample: the paced model's defaults


@pytest.mark.parametrize(("ranks", "batch", "within"), [(1, 16, 0.01), (2, 16, 0.01), (4, 40, 0.02)])
def test_throughput_and_phases_are_the_paced_ones(benchmark, tmp_path, ranks, batch, within):
    """Steps of 200 ms at 1 and 2 ranks, 500 ms at 4: throughput within 1, 1 and 2 %, each phase within 2 ms."""
    truth = {"forward": FORWARD_S * batch, "backward": BACKWARD_S * batch}
    words = ["strategy=ddp", f"ranks={ranks}", "model=paced", "data=device", f"batch={batch}", "steps=40"]
    sets = [part for word in words for part in ("--set", word)]
    benchmark.pedantic(scalemark, (tmp_path, "run", "single", "--quick", *sets, "-o", "results/t"), rounds=1)
    (record,) = records(tmp_path / "results/t")
    real = ranks * batch / sum(truth.values())
    error = record.window.samples_per_s / real - 1
    off = {name: 1e3 * (record.phases_s[name] - seconds) for name, seconds in truth.items()}
    rest = 1e3 * sum(record.phases_s[name] or 0 for name in ("data_wait", "optimizer", "other"))
    benchmark.extra_info |= {"error": error, "rest_ms": rest} | {f"{k}_off_ms": v for k, v in off.items()}
    print(f"\n{ranks} ranks: throughput off by {error:+.2%}; phases off by {off} ms; the rest {rest:.2f} ms")
    assert abs(error) <= within
    assert all(abs(ms) <= 2 for ms in off.values())
    assert rest <= 2


def test_waiting_for_a_paced_loader_is_found_in_the_right_phase(benchmark, tmp_path):
    """Items of 5 ms loaded in the rank itself, batch 8: 40 ms of data_wait a step, within 2 ms, and nowhere else."""
    words = ["model=paced", "data=paced", "batch=8", "steps=40"]
    sets = [part for word in words for part in ("--set", word)]
    benchmark.pedantic(scalemark, (tmp_path, "run", "single", "--quick", *sets, "-o", "results/t"), rounds=1)
    (record,) = records(tmp_path / "results/t")
    off = 1e3 * (record.phases_s["data_wait"] - 0.040)
    print(f"\ndata_wait off by {off:+.2f} ms; forward {1e3 * record.phases_s['forward']:.2f} of 32 ms")
    assert abs(off) <= 2
    assert abs(1e3 * record.phases_s["forward"] - 32) <= 2
