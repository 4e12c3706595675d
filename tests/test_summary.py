"""From traces to a record."""

import pytest

from bench import summary
from bench.case import Case
from bench.records import PHASES
from tests.traces import effective, trace

DDP2 = Case(strategy="ddp", ranks=2, batch=4, data="synthetic")


def test_throughput_is_samples_really_stepped_over_the_slowest_ranks_time():
    """Samples of all ranks over the longest window; never world size times one rank's rate."""
    fast, slow = trace(0, step_s=(0.1,) * 10), trace(1, step_s=(0.2,) * 10)
    window = summary.window([fast, slow])
    assert window.samples == 2 * 4 * 8
    assert window.wall_s == pytest.approx(1.6)
    assert window.samples_per_s == pytest.approx(64 / 1.6)
    assert window.step_s == pytest.approx(0.2)


def test_a_mix_of_fast_and_slow_steps_is_not_averaged_by_rate():
    """Nine steps at 100/s and one at 10/s: 52.6 samples/s by the clock, where a mean of rates says 91."""
    step_s = (0.1, 0.1) + (0.01,) * 9 + (0.1,)
    window = summary.window([trace(step_s=step_s, samples=1)])
    assert window.samples_per_s == pytest.approx(10 / 0.19)


def test_real_batches_count_not_nominal_ones():
    """A rank whose batches vary is counted by what it stepped."""
    one = trace(samples=3)
    assert summary.window([one]).samples == 3 * 8


def test_percentiles_are_of_the_slowest_rank_in_each_step():
    """p50 is taken over the per-step maxima of all ranks."""
    a = trace(0, step_s=(0.1, 0.1) + (0.1, 0.3) * 4)
    b = trace(1, step_s=(0.1, 0.1) + (0.3, 0.1) * 4)
    window = summary.window([a, b])
    assert window.p50_s == pytest.approx(0.3)
    assert window.step_s == pytest.approx(0.2)  # wall time / steps, not the mean of the maxima


def test_outliers_are_counted_and_kept():
    """A step far outside the quartiles is counted and stays in the window."""
    step_s = (0.1,) * 30 + (0.5,) + (0.101,) * 20
    window = summary.window([trace(step_s=step_s)])
    assert window.outliers >= 1
    assert window.steps == len(step_s) - 2


def test_a_rank_without_a_window_means_no_number():
    """Where one rank has no cut there is no throughput of the others."""
    assert summary.window([trace(0), trace(1, cut=None)]) is None
    assert summary.window([]) is None


def test_a_window_of_no_length_has_no_throughput():
    """Zero duration is null, not infinity."""
    assert summary.window([trace(step_s=(0.0,) * 10)]).samples_per_s is None


def test_a_phase_that_was_not_measured_stays_null():
    """Null phases are null in the rank's summary and in the mean; they are never 0."""
    ranks = [summary.rank_summary(trace(0)), summary.rank_summary(trace(1, phases={"data_wait": None}))]
    mean = summary.mean_phases(ranks)
    assert ranks[0].phases_s["h2d"] is None
    assert mean["h2d"] is None
    assert mean["data_wait"] is None
    assert mean["forward"] == pytest.approx(0.1)


def test_phases_of_a_rank_sum_to_its_step():
    """The means of a rank's phases add up to its step time."""
    step = {
        "data_wait": (0.02,) * 10,
        "forward": (0.03,) * 10,
        "backward": (0.04,) * 10,
        "optimizer": (0.01,) * 10,
    }
    one = summary.rank_summary(trace(phases=step))
    assert sum(one.phases_s[name] or 0 for name in PHASES) == pytest.approx(one.step_s)


def test_what_ran_as_asked_has_no_mismatch():
    """Equal settings give nothing to report."""
    assert summary.mismatches(DDP2, 2, [trace(0), trace(1)]) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"wrapper": "Linear"}, "ddp asked for, the model is a Linear"),
        ({"world_size": 1}, "world size: 2 asked for, 1 in effect"),
        ({"threads": 4}, "threads: 1 asked for, 4 in effect"),
        ({"batch": 3}, "batch: 4 asked for, 3 in effect"),
        ({"num_workers": 2}, "num_workers: 0 asked for, 2 in effect"),
    ],
)
def test_what_ran_otherwise_is_named(changes, says):
    """A setting that was not in effect is named with both values."""
    found = summary.mismatches(DDP2, 2, [trace(0, effective=effective(**changes)), trace(1)])
    assert says in found


def test_pinning_and_syncbn_that_did_nothing_are_named():
    """pin_memory without effect and SyncBN without a BatchNorm layer are mismatches."""
    asked = Case(strategy="ddp", ranks=2, batch=4, data="synthetic", pin_memory=True, sync_bn=True)
    found = summary.mismatches(asked, 2, [trace(0), trace(1)])
    assert "pin_memory asked for, not in effect" in found
    assert any("no SyncBN layer" in text for text in found)


def test_a_missing_rank_is_a_mismatch():
    """Three of four ranks are not silently averaged."""
    four = Case(strategy="ddp", ranks=4, batch=4, data="synthetic")
    traces = [trace(r, effective=effective(world_size=4)) for r in range(3)]
    assert summary.mismatches(four, 4, traces) == ("3 of 4 ranks left a trace",)


def test_dataparallel_that_is_not_in_effect_is_named():
    """DataParallel asked for and a bare model measured: the row says so."""
    asked = Case(strategy="dp", ranks=2, batch=4)
    real = effective(wrapper="ResNet", world_size=1, batch=8, devices_used=1)
    found = summary.mismatches(asked, 1, [trace(0, effective=real)])
    assert "devices: 2 asked for, 1 in effect" in found
    assert "dp asked for, the model is a ResNet" in found


def test_a_very_short_window_is_marked():
    """Twenty milliseconds of steps are a number and a doubt; a second is none."""
    assert (
        summary.window_mark(summary.window([trace(step_s=(0.002,) * 12)])) == "window of 20 ms: raise steps"
    )
    assert summary.window_mark(summary.window([trace(step_s=(0.1,) * 12)])) is None


def test_sync_bn_without_a_group_is_marked():
    """A model's own SyncBN layers under single or dp compute plain BatchNorm; with a group there is nothing to say."""
    layers = {"batch_norm_layers": 2, "sync_bn_layers": 2}
    alone = trace(effective=effective(**layers, backend=None))
    assert summary.sync_bn_mark([alone]) == "SyncBN without a process group: plain BatchNorm"
    assert summary.sync_bn_mark([trace(effective=effective(**layers, backend="gloo"))]) is None
    assert summary.sync_bn_mark([trace(effective=effective(backend=None))]) is None


@pytest.mark.parametrize(
    ("asked", "real", "says"),
    [
        (
            {"precision": "bf16"},
            {"precision": "fp32", "compute_dtype": "float32"},
            "precision: bf16 asked for, fp32 in effect",
        ),
        ({"optimizer": "adamw"}, {"optimizer": "SGD"}, "optimizer: adamw asked for, SGD in effect"),
        (
            {"optimizer": "sgd", "fused": True},
            {"optimizer": "SGD", "fused": False},
            "fused: on asked for, off in effect",
        ),
        ({"grad_accumulation": 2}, {"micro_batches": 1}, "grad_accumulation: 2 asked for, 1 in effect"),
        ({"channels_last": True}, {"channels_last": False}, "channels_last: on asked for, off in effect"),
        ({"comm_hook": "fp16"}, {"comm_hook": None}, "comm_hook: fp16 asked for, None in effect"),
        (
            {"broadcast_buffers": False},
            {"broadcast_buffers": True},
            "broadcast_buffers: off asked for, on in effect",
        ),
        ({"static_graph": True}, {"static_graph": False}, "static_graph: on asked for, off in effect"),
        ({"compile": True}, {"compiled_graphs": 0}, "compile asked for, torch.compile made no graph"),
        (
            {"page_cache": "cold"},
            {"page_cache_share": 0.9},
            "page_cache: cold asked for, 90% of the files' pages",
        ),
        (
            {"page_cache": "warm"},
            {"page_cache_share": 0.4},
            "page_cache: warm asked for, 40% of the files' pages",
        ),
        ({"strategy": "zero1"}, {}, "zero1 asked for, the optimizer is a SGD"),
        ({"strategy": "fsdp"}, {}, "fsdp asked for, the model is a DistributedDataParallel"),
    ],
)
def test_settings_of_a_step_are_held_against_what_ran(asked, real, says):
    """Every axis that can be read back is: a row in which it is not in effect says which and how."""
    case = Case(**{"strategy": "ddp", "ranks": 2, "batch": 4, "data": "photos"} | asked)
    found = summary.mismatches(
        case, 2, [trace(0, effective=effective(**real)), trace(1, effective=effective(**real))]
    )
    assert any(text.startswith(says) for text in found), found


@pytest.mark.parametrize(
    ("asked", "real"),
    [
        ({"precision": "bf16"}, {"precision": "bf16", "compute_dtype": "bfloat16"}),
        ({"precision": "bf16"}, {"precision": "fp32", "compute_dtype": None}),
        ({"strategy": "zero1", "optimizer": "adamw"}, {"optimizer": "ZeroRedundancyOptimizer(AdamW)"}),
        ({"strategy": "fsdp"}, {"wrapper": "FSDPModule"}),
        ({"page_cache": "cold"}, {"page_cache_share": None}),
        ({"comm_hook": "powersgd"}, {"comm_hook": "powersgd"}),
    ],
)
def test_settings_in_effect_are_no_mismatch(asked, real):
    """What was asked for and ran is not marked, nor is what could not be told."""
    case = Case(**{"strategy": "ddp", "ranks": 2, "batch": 4, "data": "photos"} | asked)
    assert summary.mismatches(case, 2, [trace(rank, effective=effective(**real)) for rank in (0, 1)]) == ()


def test_a_loss_that_is_not_finite_is_marked():
    """One rank is enough; a rank that does not say is not."""
    assert (
        summary.loss_mark([trace(0, loss_finite=True), trace(1, loss_finite=False)]) == "loss is not finite"
    )
    assert summary.loss_mark([trace(0), trace(1, loss_finite=True)]) is None
