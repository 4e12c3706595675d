"""The timed loop and its clocks, on a CPU and on a device that is made up."""

import itertools
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bench.case import Case  # noqa: E402
from bench.loop import CpuClock, EventClock, split, timed_steps  # noqa: E402
from bench.memory import MemoryWindow  # noqa: E402
from bench.place import Place  # noqa: E402
from bench.recipe import make_training  # noqa: E402
from bench.records import PHASES, marks_a_step  # noqa: E402
from bench.workload import Workload  # noqa: E402

PLACE = Place(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"), devices=())


class FakeDevice:
    """An asynchronous device: work is queued at once and takes its time on the device's own time line."""

    def __init__(self):
        self.done_s = 0.0  # when everything queued so far will be done
        self.synchronised = 0
        self.resets = []
        device = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                device.done_s = max(device.done_s, time.perf_counter())
                self.at_s = device.done_s

            def elapsed_time(self, other):
                return (other.at_s - self.at_s) * 1e3

        self.Event = Event

    def run(self, seconds):
        self.done_s = max(self.done_s, time.perf_counter()) + seconds

    def synchronize(self):
        self.synchronised += 1
        time.sleep(max(0.0, self.done_s - time.perf_counter()))

    def reset_peak_memory_stats(self, device):
        self.resets.append(device)

    def max_memory_allocated(self, device):
        return 100 + device

    def max_memory_reserved(self, device):
        return 200 + device

    def mem_get_info(self, device):
        return 600, 1000

    def host_memory_stats(self):
        return {"allocated_bytes.current": 7}


class Slow:
    """A training whose phases take a stated time each."""

    def __init__(self, run, data_s=0.0, forward_s=0.0, backward_s=0.0, h2d_s=0.0, **settings):
        self.run, self.data_s, self.forward_s, self.backward_s, self.h2d_s = (
            run,
            data_s,
            forward_s,
            backward_s,
            h2d_s,
        )
        self.model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        workload = Workload(self.model, loss=self.loss)
        self.training = make_training(
            Case(**settings), workload, PLACE, self.model, optimizer, self.batches(), self.to_device
        )

    def batches(self):
        for _ in itertools.count():
            time.sleep(self.data_s)
            yield torch.ones(3, 2)

    def to_device(self, batch):
        self.run(self.h2d_s)
        return batch

    def loss(self, model, batch):
        self.run(self.forward_s)
        found = model(batch).sum()
        found.register_hook(lambda grad: self.run(self.backward_s))
        return found


def test_an_asynchronous_device_is_waited_for():
    """Ten steps of 5 ms queued on a device that returns at once are reported as 50 ms at least."""
    device = FakeDevice()
    slow = Slow(device.run, forward_s=0.005)
    phases, samples = timed_steps(slow.training, EventClock(device), 10, lambda: None, [0])
    assert phases.sum() >= 0.05
    assert samples == [3] * 10


def test_a_window_has_two_synchronisations():
    """The device is synchronised before the first and after the last step, and never inside."""
    device = FakeDevice()
    timed_steps(Slow(device.run).training, EventClock(device), 20, lambda: None, [0])
    assert device.synchronised == 2


def test_phases_on_a_device_are_the_devices_own():
    """Copy, forward and backward take what the device took, though the host only queued them."""
    device = FakeDevice()
    slow = Slow(device.run, h2d_s=0.002, forward_s=0.004, backward_s=0.006)
    phases, _ = timed_steps(slow.training, EventClock(device), 5, lambda: None, [0])
    per_step = dict(zip(PHASES, np.median(phases, axis=0), strict=True))
    assert per_step["h2d"] == pytest.approx(0.002, abs=5e-4)
    assert per_step["forward"] == pytest.approx(0.004, abs=5e-4)
    assert per_step["backward"] == pytest.approx(0.006, abs=5e-4)


def test_waiting_for_data_that_the_device_hides_is_not_a_loss():
    """A loader of 2 ms beside 10 ms of device work is hidden: the device never waits for it."""
    device = FakeDevice()
    slow = Slow(device.run, data_s=0.002, forward_s=0.010)
    phases, _ = timed_steps(slow.training, EventClock(device), 10, lambda: None, [0])
    assert np.median(phases[2:, PHASES.index("data_wait")]) < 0.001


def test_waiting_for_data_that_the_device_sees_is_data_wait():
    """A loader of 10 ms beside 2 ms of device work leaves the device idle, and that is `data_wait`."""
    device = FakeDevice()
    slow = Slow(device.run, data_s=0.010, forward_s=0.002)
    phases, _ = timed_steps(slow.training, EventClock(device), 10, lambda: None, [0])
    assert np.median(phases[2:, PHASES.index("data_wait")]) > 0.005


@pytest.mark.parametrize("clock", [CpuClock, lambda: EventClock(FakeDevice())])
def test_phases_sum_to_the_step_and_none_is_negative(clock):
    """Six marks a step leave nothing out: phases of a step add up to the time between its ends."""
    began = time.perf_counter()
    phases, _ = timed_steps(Slow(time.sleep, forward_s=0.001).training, clock(), 8, lambda: None, [0])
    assert phases.shape == (8, len(PHASES))
    assert (phases >= 0).all()
    assert 0.008 <= phases.sum() <= time.perf_counter() - began


def test_micro_batches_are_summed_into_their_step():
    """With 3 micro-batches of 2 ms data and 3 ms forward a step has 6 and 9 ms of them, and 9 samples."""
    slow = Slow(time.sleep, data_s=0.002, forward_s=0.003, grad_accumulation=3)
    phases, samples = timed_steps(slow.training, CpuClock(), 4, lambda: None, [0])
    per_step = dict(zip(PHASES, np.median(phases, axis=0), strict=True))
    assert phases.shape == (4, len(PHASES))
    assert samples == [9] * 4
    assert 0.006 <= per_step["data_wait"] < 0.009
    assert 0.009 <= per_step["forward"] < 0.012


def test_a_device_that_waits_for_each_micro_batch_waits_for_data():
    """The gap before every micro-batch is data_wait where the host was in the loader, not only before the first."""
    device = FakeDevice()
    slow = Slow(device.run, data_s=0.010, forward_s=0.001, grad_accumulation=2)
    phases, _ = timed_steps(slow.training, EventClock(device), 5, lambda: None, [0])
    assert np.median(phases[2:, PHASES.index("data_wait")]) > 0.010


def test_gaps_are_split_by_micro_batch_and_step():
    """Ten gaps of two micro-batches: four and four of these, and the optimizer and the rest of the step."""
    micro, step = split(np.arange(20.0), 2)
    assert micro.tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[10, 11, 12, 13], [14, 15, 16, 17]]]
    assert step.tolist() == [[8, 9], [18, 19]]


def test_the_window_begins_behind_the_barrier():
    """A rank that waits 0.2 s for the others at the barrier does not count it as a step."""
    phases, _ = timed_steps(Slow(time.sleep).training, CpuClock(), 3, lambda: time.sleep(0.2), [0])
    assert phases.sum() < 0.1


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_the_beat_counts_every_mark(micro_batches):
    """Others can see how far a rank is: every mark of a step counts, kept over both segments of a window."""
    beat = [0]
    slow = Slow(time.sleep, grad_accumulation=micro_batches)
    marks = marks_a_step(micro_batches)
    timed_steps(slow.training, CpuClock(), 4, lambda: None, beat)
    assert beat[0] == 4 * marks
    timed_steps(slow.training, CpuClock(), 4, lambda: None, beat)
    assert beat[0] == 8 * marks


def test_memory_peaks_are_reset_once_a_window_on_every_device():
    """Peak counters are reset when the window begins, so no earlier configuration leaks into it."""
    device = FakeDevice()
    window = MemoryWindow(device, (0, 1))
    window.start()
    found = window.end()
    assert device.resets == [0, 1]
    assert found.peak_allocated_bytes == 101
    assert found.per_device_allocated_bytes == (100, 101)
    assert found.peak_reserved_bytes == 201
    assert (found.device_used_bytes, found.device_total_bytes, found.pinned_bytes) == (400, 1000, 7)


def test_memory_of_a_cpu_rank_has_no_device_side():
    """On CPU every device field is null, not 0, and the host's side is there."""
    window = MemoryWindow(None, ())
    window.start()
    found = window.end()
    assert found.peak_allocated_bytes is None
    assert found.device_used_bytes is None
    assert found.rank_pss_bytes > 0
