"""What every data source must do, run over every file in data/."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from bench import plugins
from bench.case import Case
from bench.options import check_options, data_plugin

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
DataLoader = torch.utils.data.DataLoader
Sample = pytest.importorskip("bench.workload").Sample

NAMES = plugins.names("data")
MADE = [name for name in NAMES if name != "own"]  # what the user brings is not made here
SAMPLES = {"images": Sample((3, 16, 16), 10), "tokens": Sample((16,), 50, tokens=True)}
QUICK = {"files": 4, "item_s": 0.0, "tokens": 2000}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One cache folder for all tests here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "data-cache"))


def kinds(name):
    """The kinds of sample that a source gives."""
    plugin = plugins.load("data", name)
    return ["images"] if plugin.image else ["tokens"] if plugin.tokens else list(SAMPLES)


@pytest.fixture
def case(request, tmp_path):
    """A case of the named data, small; with a folder of images where the data reads one."""
    name, kind = request.param
    options = plugins.load("data", name).options
    if "path" in options:
        for number in range(12):
            path = tmp_path / f"class{number % 3}" / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.effect_noise((40, 30), 90).convert("RGB").save(path)
        name = f"{name}:{tmp_path}"
    model = {"images": "resnet-small", "tokens": "gpt-small"}[kind]
    return Case(
        model=model, data=name, batch=12, data_args={key: QUICK[key] for key in QUICK if key in options}
    )


every_source = pytest.mark.parametrize(
    "case", [(name, kind) for name in MADE for kind in kinds(name)], indirect=True, ids="-".join
)


def sample(case):
    """What the model of a case takes."""
    return SAMPLES["tokens" if case.model == "gpt-small" else "images"]


def make(case):
    """The data set of a case."""
    return data_plugin(case.data)[0].make(case, sample(case))


def label(item):
    """What an item is labelled with: a class, or the ids that follow."""
    return item[1] if isinstance(item[1], int) else tuple(item[1].tolist())


def test_sources_load_without_torch():
    """Names, summaries, options and lengths of all sources are there where torch is not."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from bench import plugins; from bench.case import Case\n"
        "for name in plugins.names('data'):\n"
        "    plugin = plugins.load('data', name)\n"
        "    assert 'path' in plugin.options or plugin.length(Case(data=name)) != 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("name", NAMES)
def test_source_declares_itself(name):
    """A summary in one line, and defaults that pass their own check."""
    plugin = plugins.load("data", name)
    assert plugin.summary and "\n" not in plugin.summary
    check_options("data", name, plugin.options, plugin.options)


@every_source
def test_items_are_alike(case):
    """Any item is a float tensor of the sample's shape and a class, or ids and the ids that follow them."""
    made, wanted = make(case), sample(case)
    for index in (0, 1, len(made) // 2, len(made) - 1):
        inputs, target = made[index]
        assert inputs.shape == wanted.shape and inputs.float().std() > 0
        if wanted.tokens:
            assert inputs.dtype == target.dtype == torch.int64 and torch.equal(inputs[1:], target[:-1])
            assert all(ids.min() >= 0 and ids.max() < wanted.classes for ids in (inputs, target))
        else:
            assert inputs.dtype == torch.float32 and torch.isfinite(inputs).all()
            assert isinstance(target, int) and 0 <= target < wanted.classes


@every_source
def test_length_is_known_and_kept(case):
    """The length said beforehand is the data set's own, and there is no item beyond it."""
    made, said = make(case), data_plugin(case.data)[0].length(case)
    assert len(made) == len(make(case)) and said in (None, len(made))
    with pytest.raises(IndexError):
        made[len(made)]


@every_source
def test_labels_follow_from_the_index(case):
    """The same index gives the same label, also in a copy that a worker gets by pickle."""
    made = make(case)
    twin = pickle.loads(pickle.dumps(made))
    assert [label(made[i]) for i in range(8)] == [label(twin[i]) for i in range(8)]
    assert len({label(made[i]) for i in range(8)}) > 1


@every_source
def test_loader_makes_batches(case):
    """The default collate gives (inputs, targets), with workers and without, in the same order."""
    targets = []
    for workers in (0, 2):
        loader = DataLoader(make(case), batch_size=4, num_workers=workers)
        batches = [batch for _, batch in zip(range(3), loader, strict=False)]
        assert all(inputs.shape == (4, *sample(case).shape) for inputs, _ in batches)
        targets.append(torch.cat([labels for _, labels in batches]).tolist())
    assert targets[0] == targets[1]


class SameItem(torch.utils.data.Dataset):
    """The first item of a source, again and again."""

    def __init__(self, source, length):
        self.source, self.length = source, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.source[0]


@every_source
def test_workers_augment_differently(case):
    """Where an item is random, two workers draw different numbers; where not, the item stays the same."""
    loader = DataLoader(SameItem(make(case), 8), batch_size=2, num_workers=2)
    items = torch.cat([inputs for inputs, _ in loader])
    different = len({item.numpy().tobytes() for item in items})
    assert different == (8 if data_plugin(case.data)[0].image else 1)
