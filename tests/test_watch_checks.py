"""Mistakes of watched loops: what each is seen by, and what is said of it."""

import msgspec
import pytest

from bench.watch_checks import MISTAKES, PREFIX, Seen, mistakes, remedy_of, waits_without_workers

SOUND = Seen(
    steps=60, world=2, world_asked=2, local_rank=0, model="Net", wrapped=True, wrapper="DistributedDataParallel",
    device="cpu", device_index=None, device_count=0, sampler=None, epochs=(0, 1), gradients_kept=False,
    optimizer_steps=60, rebuilt=0, norms=2, synced=0, num_workers=2, cpus=8,
    local_ranks=2, threads=1, waited=0.5,
)  # fmt: skip


def test_a_sound_loop_has_no_mistakes():
    """Two ranks under DDP with a sampler whose epoch moves."""
    assert mistakes(SOUND) == {}


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("no-group", {"world": 1}),
        ("not-wrapped", {"wrapped": False, "agreed": False}),
        ("wrong-device", {"local_rank": 1, "device_index": 0, "device_count": 2}),
        ("same-data", {"sampler": "RandomSampler"}),
        ("set-epoch", {"epochs": (0, 0)}),
        ("zero-grad", {"gradients_kept": True}),
        ("rebuilt-optimizer", {"rebuilt": 3}),
        ("no-step", {"optimizer_steps": 0}),
        ("sync-bn-partly", {"synced": 1}),
        ("sync-bn-alone", {"synced": 2, "world": 1, "world_asked": 1, "wrapper": "DataParallel"}),
        ("no-workers", {"num_workers": 0}),
        ("threads-everywhere", {"num_workers": 0, "threads": 4}),
        ("no-free-cpu", {"num_workers": 0, "cpus": 2}),
    ],
)
def test_each_mistake_is_seen_by_its_sign(code, changes):
    """One change to a sound loop, one line, in words of its own and with a remedy."""
    found = mistakes(msgspec.structs.replace(SOUND, **changes))
    assert list(found) == [code]
    message, remedy = remedy_of(found[code])
    assert found[code] == f"{PREFIX}{message}; {remedy}"
    assert remedy.startswith(MISTAKES[code].remedy.partition("{")[0]) and "{" not in found[code]


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "raise num_workers, to 3 at most (CPUs here: 8, ranks: 2)"),
        ({"threads": 3}, "raise num_workers, to 1 at most (CPUs here: 8, ranks: 2)"),
        ({"threads": 8, "device": "cuda:0"}, "raise num_workers, to 3 at most (CPUs here: 8, ranks: 2)"),
        (
            {"threads": 8},
            "try num_workers=1 with OMP_NUM_THREADS=3, and watch again (CPUs here: 8, ranks: 2)",
        ),
        (
            {"cpus": 3},
            "make the batches cheaper, or use fewer ranks: workers would find no CPU free (CPUs here: 3, ranks: 2)",
        ),
        (
            {"cpus": 1},
            "make the batches cheaper, or use fewer ranks: workers would find no CPU free (CPUs here: 1, ranks: 2)",
        ),
    ],
)
def test_more_workers_are_advised_where_cpus_are_free(changes, remedy):
    """A rank's share of the CPUs, less its own threads where it computes on them, is what workers may have."""
    (text,) = mistakes(msgspec.structs.replace(SOUND, num_workers=0, **changes)).values()
    assert remedy_of(text) == (
        "num_workers=0: 50% of a step is waiting while the training process makes the batch",
        remedy,
    )
    assert waits_without_workers(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"wrapped": False, "agreed": True},  # the loop averages gradients itself
        {"wrapped": False, "agreed": None},  # not all ranks were heard
        {"local_rank": 1, "device_index": 0, "device_count": 1},  # one device visible to each rank
        {"epochs": (0,)},  # one pass
        {"epochs": ()},  # a sampler that does not shuffle
        {"num_workers": 0, "waited": 0.05},
        {"synced": 2},
    ],
)
def test_what_may_be_right_is_no_mistake(changes):
    """Each of these looks like a mistake and need not be one."""
    assert mistakes(msgspec.structs.replace(SOUND, **changes)) == {}


def test_of_all_mistakes_only_waiting_is_input():
    """Any other line is no case of `input-bound`."""
    others = {"sampler": "RandomSampler", "rebuilt": 3}
    assert not any(map(waits_without_workers, mistakes(msgspec.structs.replace(SOUND, **others)).values()))


def test_every_mistake_has_a_test():
    """A new row of the table needs a sign above."""
    marks = test_each_mistake_is_seen_by_its_sign.pytestmark[0].args[1]
    assert [code for code, _ in marks] == list(MISTAKES)
