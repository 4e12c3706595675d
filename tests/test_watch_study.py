"""What ranks of a watched loop hand over: times of their marks, facts of the model and loader, one record."""

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from bench import watch_facts, watch_study  # noqa: E402
from bench.case import Case  # noqa: E402
from bench.records import PHASES  # noqa: E402
from bench.watch_marks import (  # noqa: E402
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    H2D,
    OPTIMIZER,
    OTHER,
    EventStamps,
    HostStamps,
    Step,
    phases_s,
)
from tests.test_watch_checks import SOUND  # noqa: E402
from tests.traces import effective, trace  # noqa: E402


def test_a_steps_phases_are_its_gaps_by_what_began():
    """Two forwards and two optimizers in one step add up, and what comes after them is other."""
    order = (DATA_WAIT, H2D, FORWARD, BACKWARD, FORWARD, BACKWARD, OPTIMIZER, OTHER, OPTIMIZER, OTHER)
    stamps = np.cumsum([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]) * 10**9
    (found,) = phases_s([Step(order, tuple(stamps), 1)], HostStamps())
    assert found.tolist() == [1, 2, 4 + 16, 8 + 32, 64 + 256, 128 + 512]


def test_on_a_device_only_the_loaders_time_is_waiting():
    """The device stood still for 5 s, the loader took 2 of them: the others are the host being late."""

    class Event:
        def __init__(self, at_s):
            self.at_s = at_s

        def elapsed_time(self, other):
            return (other.at_s - self.at_s) * 1e3

    at = [(Event(0.0), 0), (Event(5.0), 2 * 10**9), (Event(6.0), 3 * 10**9)]
    (found,) = phases_s([Step((DATA_WAIT, FORWARD), tuple(at), 1)], EventStamps(None))
    assert found.tolist() == [2, 0, 1, 0, 0, 3]


def test_the_phases_of_a_step_are_all_there():
    """The marks are numbered as the phases are."""
    assert [PHASES[phase] for phase in (DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER)] == list(PHASES)


DDP = Case(strategy="ddp", ranks=2)


def packets(seen=SOUND, case=DDP, steps=(10, 10), hashes=("a", "a")):
    """What two ranks hand over."""
    return [
        watch_study.Packet(
            case=case,
            trace=trace(rank, step_s=(0.1 + 0.1 * rank,) * count, effective=effective(weights_hash=weights)),
            seen=seen,
        )
        for rank, (count, weights) in enumerate(zip(steps, hashes, strict=True))
    ]


def test_the_window_is_of_the_steps_that_all_ranks_have():
    """Nine steps are common; four go as warm-up; the slower rank sets the time."""
    found = watch_study.launch_record(packets(steps=(10, 9)))
    assert (found.window.steps, found.window.cut.first) == (5, 4)
    assert found.window.wall_s == pytest.approx(5 * 0.2)
    assert found.window.samples == 2 * 5 * 4
    assert found.mismatches == ()


def test_plain_models_that_drift_apart_are_no_ddp():
    """Such a row enters no curve; where the parameters agree, the loop has averaged by itself."""
    plain = msgspec.structs.replace(SOUND, wrapped=False, wrapper="Net")
    own = Case(strategy="own", ranks=2)
    apart = watch_study.launch_record(packets(plain, own, hashes=("a", "b")))
    assert apart.mismatches == ("ddp asked for, the model is a Net",)
    assert any("trains a model of its own" in text for text in apart.ranks[0].warnings)
    together = watch_study.launch_record(packets(plain, own))
    assert (together.mismatches, together.requested.strategy) == ((), "own")


def test_processes_without_a_group_are_told():
    """WORLD_SIZE 2 and no process group: one rank's numbers, out of every curve."""
    alone = msgspec.structs.replace(SOUND, world=1)
    (first, _) = packets(alone, Case())
    found = watch_study.launch_record([first])
    assert found.mismatches == ("world size: 2 asked for, 1 in effect",)


def test_a_mistake_of_all_ranks_is_said_once():
    """Rank 0 says what both saw; rank 1 only what it alone saw."""
    one, two = packets(msgspec.structs.replace(SOUND, gradients_kept=True))
    seen = msgspec.structs.replace(two.seen, local_rank=1, device_index=0, device_count=2)
    ranks = watch_study.launch_record([one, msgspec.structs.replace(two, seen=seen)]).ranks
    assert [len(rank.warnings) for rank in ranks] == [1, 1]
    assert "LOCAL_RANK is 1" in ranks[1].warnings[0]


def test_late_ranks_are_waited_for_and_then_left_out(monkeypatch):
    """Packets come in order of rank; one that never comes is missing when the time is up."""
    monkeypatch.setattr(watch_study, "WAIT_S", 0.1)
    sent = dict(enumerate(packets()))

    class Group:
        def check(self, keys):
            return keys[0] == "key/1"

        def get(self, key):
            return msgspec.json.encode(sent[1])

    assert watch_study.collected(Group(), "key", 3) == [sent[1]]
    assert watch_study.collected(None, "key", 1) == []


def test_the_class_is_named_whatever_is_around_it():
    """In what torch.compile makes of a DataParallel it is still the user's class; the wrapper says the strategy."""
    compiled = nn.Module()
    compiled._orig_mod = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    assert watch_facts.model_name(compiled) == "watch:Sequential"
    assert watch_facts.compiled(compiled) and not watch_facts.compiled(nn.Linear(1, 1))
    assert watch_facts.strategy_of(compiled, None, 1) == "dp"
    assert watch_facts.strategy_of(nn.Linear(1, 1), None, 1) == "single"
    assert watch_facts.strategy_of(nn.Linear(1, 1), None, 2) == "own"


def test_samplers_that_do_not_share_are_named():
    """torch's own random and sequential order; of anything else nothing is claimed."""
    data = TensorDataset(torch.zeros(8, 1))
    assert watch_facts.unshared_sampler(DataLoader(data, shuffle=True)) == "RandomSampler"
    assert watch_facts.unshared_sampler(DataLoader(data)) == "SequentialSampler"
    assert watch_facts.unshared_sampler(DataLoader(data, sampler=DistributedSampler(data, 2, 0))) is None
    assert watch_facts.unshared_sampler(DataLoader(data, batch_sampler=[[0, 1]])) is None
    assert watch_facts.unshared_sampler([1, 2, 3]) is None
