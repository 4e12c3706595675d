"""Batches, samplers and what is read back: built as a rank builds them."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset  # noqa: E402

from bench import plugins  # noqa: E402
from bench.build import make_source, move, tensor_bytes  # noqa: E402
from bench.case import Case  # noqa: E402
from bench.errors import UsageError  # noqa: E402
from bench.measuring import _counts, _Window  # noqa: E402
from bench.place import Place  # noqa: E402
from bench.readback import weights_hash  # noqa: E402
from bench.workload import Workload, leading_size  # noqa: E402
from tests.traces import effective  # noqa: E402


class Numbers(Dataset):
    """The numbers from 0 on."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index


def source(length=10, world=1, rank=0, batch=1, **settings):
    """A rank's batches of `Numbers`."""
    case = Case(strategy="ddp", ranks=world, batch=batch, model="a.b:c", data="own", **settings)
    place = Place(
        rank=rank, local_rank=rank, world_size=world, node=0, device=torch.device("cpu"), devices=()
    )
    workload = Workload(torch.nn.Linear(1, 1), dataset=Numbers(length))
    return make_source(case, workload, plugins.load("strategies", "ddp"), place)


def epochs(one, count):
    """The indices of so many epochs, a list each."""
    steps = one.steps_per_epoch
    return [[int(i) for _, ids in itertools.islice(one.batches, steps) for i in ids] for _ in range(count)]


def test_every_epoch_is_shuffled_anew_and_repeatably():
    """set_epoch is called: orders differ between epochs and are equal in two runs with one seed."""
    first, second = epochs(source(), 3), epochs(source(), 3)
    assert first == second
    assert len({tuple(epoch) for epoch in first}) == 3
    assert all(sorted(epoch) == list(range(10)) for epoch in first)
    assert epochs(source(seed=1), 1) != first[:1]


def test_ranks_share_an_epoch():
    """Two ranks see every sample once between them."""
    parts = [epochs(source(world=2, rank=rank), 1)[0] for rank in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(10))


@pytest.mark.parametrize(
    ("length", "world", "batch", "per_epoch", "padded", "dropped"),
    [(10, 4, 1, 3, 2, 0), (1000, 7, 1, 143, 1, 0), (10, 1, 4, 8, 0, 2), (10, 2, 2, 4, 0, 2)],
)
def test_padded_and_dropped_samples_are_counted(length, world, batch, per_epoch, padded, dropped):
    """What the sampler repeats to make ranks equal and what the loader leaves over, over all ranks an epoch."""
    one = source(length, world, batch=batch)
    place = Place(rank=0, local_rank=0, world_size=world, node=0, device=torch.device("cpu"), devices=())
    from bench.records import Cut, RankMemory

    window = _Window(None, [batch] * 5, Cut(first=2, state="assumed"), [5], RankMemory(), "cpu", 0, 0)
    found = _counts(window, one, place, effective(batch=batch))
    assert (found.per_epoch, found.padded, found.dropped) == (per_epoch, padded, dropped)
    assert (found.seen, found.in_window) == (5 * batch, 3 * batch)


def test_a_data_set_without_one_whole_batch_is_refused():
    """3 samples over 4 ranks at batch 64: one line, and nothing is divided by zero."""
    with pytest.raises(UsageError, match="data set of 3 samples, 4 ranks, batch 64: no whole batch a rank"):
        source(3, world=4, batch=64)


def test_a_batch_on_the_device_is_one_batch_for_ever():
    """data=device takes the first samples of the user's own data set once, and repeats them."""
    case = Case(model="a.b:c", data="device", batch=4)
    place = Place(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"), devices=())
    one = make_source(
        case,
        Workload(torch.nn.Linear(1, 1), dataset=Numbers(10)),
        plugins.load("strategies", "single"),
        place,
    )
    a, b = next(one.batches), next(one.batches)
    assert a is b
    assert a[1].tolist() == [0, 1, 2, 3]
    assert one.loader is None


class Batch(dict):
    """A batch class of a library: a mapping that moves itself."""

    moved_to = None

    def to(self, device):
        self.moved_to = device
        return self


class Own:
    """A batch that is no container at all, with a `to` of its own."""

    def to(self, device, non_blocking=False):
        return ("moved", str(device), non_blocking)


def test_batches_of_every_kind_are_moved():
    """Tensors in lists, tuples, named tuples and dictionaries move; other classes move themselves; the rest stays."""
    from collections import namedtuple

    Pair = namedtuple("Pair", "x y")
    device = torch.device("meta")
    moved = move(
        {"a": torch.ones(2), "b": [torch.ones(1), Pair(torch.ones(1), "word")], "c": 3}, device, Case()
    )
    assert moved["a"].device == moved["b"][0].device == moved["b"][1].x.device == device
    assert (moved["b"][1].y, moved["c"]) == ("word", 3)
    assert move(Own(), device, Case(non_blocking=True)) == ("moved", "meta", True)


def test_images_move_channels_last_where_asked():
    """Only tensors of four dimensions have such a layout; the others stay as they are."""
    images, labels = move(
        (torch.ones(2, 3, 4, 4), torch.ones(2)), torch.device("cpu"), Case(channels_last=True)
    )
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.shape == (2,)
    assert not move(images.contiguous(), torch.device("cpu"), Case()).is_contiguous(
        memory_format=torch.channels_last
    )


def test_samples_of_a_batch_are_its_first_dimension():
    """The first tensor of a batch says how many samples it holds; what has none is refused."""
    assert leading_size((torch.ones(5, 2), torch.ones(5))) == 5
    assert leading_size({"x": torch.ones(3, 2)}) == 3
    with pytest.raises(TypeError, match="cannot count the samples of a str"):
        leading_size("words")


def test_bytes_of_a_batch_are_those_of_its_tensors():
    """Two float32 values and one int64 are 16 bytes."""
    assert tensor_bytes((torch.ones(2), {"y": torch.ones(1, dtype=torch.int64)}, "z")) == 16


def test_the_weights_hash_sees_values_and_passes_over_extra_state():
    """Equal weights hash alike, one changed value does not, and a layer's extra state is no tensor."""

    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return {"scale": 1}

        def set_extra_state(self, state):
            pass

    torch.manual_seed(0)
    one, two = Extra(2, 2), Extra(2, 2)
    two.load_state_dict(one.state_dict())
    assert weights_hash(one) == weights_hash(two)
    with torch.no_grad():
        two.weight[0, 0] += 1
    assert weights_hash(one) != weights_hash(two)
