"""What a step pays for its marks: timed in the rank, after the window."""

import time

import pytest

pytest.importorskip("torch")

from bench.loop import CpuClock, marks_cost_s

MARK_S = 20e-6


class SlowClock(CpuClock):
    """A clock whose marks take 20 microseconds more."""

    def mark(self) -> None:
        until = time.perf_counter() + MARK_S
        while time.perf_counter() < until:
            pass
        super().mark()


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_known_cost_of_a_mark_comes_out_times_the_marks_of_a_step(micro_batches) -> None:
    """Six marks a step, four more for each further micro-batch: each costs 20 microseconds and what the real one takes."""
    short = {"marks": 10, "rounds": 15}  # rounds so short that few of them lose the CPU
    plain, slow = (marks_cost_s(clock, micro_batches, **short) for clock in (CpuClock, SlowClock))
    least = (4 * micro_batches + 2) * MARK_S
    assert 0 < plain < least < slow < 3 * least
