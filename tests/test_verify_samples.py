"""Every sample once an epoch, and each epoch in another order: what the ranks' indices say of it."""

import numpy as np
import pytest

from bench.verify_epochs import epochs, samples


def shares(length, ranks, drop_last=False, epoch=0):
    """The indices that torch's own sampler gives each rank."""
    sampler = pytest.importorskip("torch.utils.data").DistributedSampler
    found = []
    for rank in range(ranks):
        one = sampler(range(length), ranks, rank, shuffle=True, seed=3, drop_last=drop_last)
        one.set_epoch(epoch)
        found.append(np.array(list(one), dtype=np.int64))
    return found


@pytest.mark.parametrize(
    ("length", "ranks", "drop_last", "each", "told"),
    [
        (10, 4, False, 3, "every one once, and 2 again, so that each rank has 3"),
        (10, 4, True, 2, "each at most once, 2 left out, so that each rank has 2"),
        (1000, 7, False, 143, "every one once, and 1 again, so that each rank has 143"),
        (1000, 7, True, 142, "each at most once, 6 left out, so that each rank has 142"),
        (3, 4, True, 0, "each at most once, 3 left out, so that each rank has 0"),
        (12, 4, False, 3, "every one once, 3 a rank"),
        (1, 4, False, 1, "every one once, and 3 again, so that each rank has 1"),
    ],
)
def test_padding_and_dropping_are_counted_exactly(length, ranks, drop_last, each, told):
    """What torch's sampler repeats or leaves out to make ranks equal is known, said, and no failure."""
    orders = shares(length, ranks, drop_last)
    assert {len(order) for order in orders} == {each}
    check = samples(orders, length, 1)
    assert check.outcome == "pass"
    assert check.detail == f"{length} samples, {ranks} ranks: {told}"


def test_the_tail_that_fills_no_batch_is_said():
    """10 samples a rank in batches of 4: the last 2 of each are dropped by the loader."""
    assert samples(shares(20, 2), 20, 4).detail.endswith(
        "; the last 2 of each rank fill no batch of 4 and are dropped"
    )


@pytest.mark.parametrize(
    ("orders", "length", "told"),
    [
        ([[0, 1, 2], [0, 1, 2]], 6, "sample 0 is seen 2 times (rank 0, 1); 3 of 6 never, such as sample 3"),
        ([[0, 1, 2], [3, 3, 4]], 6, "sample 3 is seen 2 times (rank 1); 1 of 6 never, such as sample 5"),
        ([[0, 1], [2, 3]], 6, "2 of 6 never, such as sample 4"),
        ([[0, 1, 2, 3], [0, 1, 2, 3]], 4, "sample 0 is seen 2 times (rank 0, 1)"),
        ([[0, 1, 2], [3, 4]], 5, "ranks get 2 to 3 samples an epoch: they must be equal"),
        ([[0, 1, 2], [3, 4, 6]], 6, "index 6 is asked for, of a data set of 6 samples"),
    ],
)
def test_overlap_gaps_and_unequal_shares_fail(orders, length, told):
    """Ranks that share samples, or leave some to nobody, beyond what makes them equal: the sample is named."""
    check = samples([np.array(order) for order in orders], length, 1)
    assert (check.outcome, check.detail) == ("fail", told)


def test_set_epoch_reshuffles_and_a_seed_gives_the_same_order():
    """torch's sampler passes; one whose epochs are alike fails, and so does one that is different every time."""
    orders = [shares(50, 2, epoch=epoch)[0] for epoch in range(3)]
    assert epochs(orders, shares(50, 2)[0]).outcome == "pass"
    same = epochs([orders[0]] * 3, orders[0])
    assert (same.outcome, same.detail) == ("fail", "set_epoch has no effect: 3 epochs in the same order")
    assert epochs(orders, orders[1]).outcome == "fail"


@pytest.mark.parametrize(
    ("length", "outcome", "told"),
    [
        (1, "not applicable", "1 sample a rank: 4 epochs have the same order by a chance of 1"),
        (2, "not applicable", "2 samples a rank: 4 epochs have the same order by a chance of 0.1"),
        (3, "not applicable", "3 samples a rank: 4 epochs have the same order by a chance of 0.005"),
        (4, "fail", "set_epoch has no effect"),
        (1000, "fail", "set_epoch has no effect"),
    ],
)
def test_orders_that_may_be_equal_by_chance_are_not_judged(length, outcome, told):
    """Of n samples four epochs have the same order by a chance of n! to the power of -3: up to 1 in 1000 it says nothing."""
    check = epochs([np.arange(length)] * 4, np.arange(length))
    assert check.outcome == outcome
    assert check.detail.startswith(told)


@pytest.mark.parametrize("reshuffles", [True, False])
def test_the_epochs_of_the_measured_loop_are_looked_at(monkeypatch, reshuffles):
    """A loop that forgets set_epoch fails, though the sampler itself would shuffle."""
    data = pytest.importorskip("torch.utils.data")
    from bench import verify_samples
    from bench.build import Source

    def forgetful(source):
        while True:
            yield from source.loader

    if not reshuffles:
        monkeypatch.setattr(verify_samples, "endless", forgetful)
    sampler = data.DistributedSampler(range(20), 2, 1)
    source = Source(iter(()), data.DataLoader(range(20), batch_size=3, sampler=sampler), sampler, 20, [7])
    orders, again = verify_samples._orders(source, 4), verify_samples._orders(source, 1)
    assert epochs(orders, again[0]).outcome == ("pass" if reshuffles else "fail")
    assert len(orders[0]) == 10
    assert source.epochs == [7]
