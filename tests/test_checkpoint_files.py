"""Files of checkpoints with the real torch: what it refuses, what comes back, what is never unpickled."""

import ast
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from bench import checkpoint_formats as formats
from bench import checkpoint_state as state
from bench.checkpoint_desk import TOLD, Desk, told
from bench.checkpoint_loading import Loader, elsewhere
from bench.checkpoint_records import MAPS, Checkpointing, File, Load, Save
from bench.checkpoint_saving import Saver
from bench.errors import BenchError
from bench.peaks import Peak
from bench.place import Place
from bench.strategies._reference_dp import ReferenceDataParallel

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


class Net(nn.Module):
    """A part whose name begins like the prefix, and buffers."""

    def __init__(self):
        super().__init__()
        self.module_list = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4)])

    def forward(self, inputs):
        for layer in self.module_list:
            inputs = layer(inputs)
        return inputs


def trained(wrap=lambda model: model, seed=0):
    """A model and its optimizer after a step: momentum and running statistics are there."""
    torch.manual_seed(seed)
    model = wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def wrapped(model):
    """In the reference of DataParallel."""
    return ReferenceDataParallel(model, 2)


def file_of(path, saved_on="cpu"):
    """A file that this run wrote."""
    return File(name=path.name, bytes=path.stat().st_size, saved_on=saved_on, sha256=formats.sha256(path))


def load_of(way="cpu", form="state_dict", by_default=True):
    """A load without files."""
    return Load(id="x", format=form, files=(), way=way, map_location=way, default_weights_only=by_default)


@pytest.mark.parametrize("form", ["state_dict", "model", "dcp"])
@pytest.mark.parametrize("into", [wrapped, lambda model: model], ids=["wrapped", "bare"])
@pytest.mark.parametrize("wrap", [wrapped, lambda model: model], ids=["from wrapped", "from bare"])
def test_what_was_saved_comes_back_bit_by_bit(tmp_path, form, wrap, into):
    """Model, buffers and optimizer, in every format, with a wrapper on either side; other weights were there before."""
    model, optimizer = trained(wrap)
    path = tmp_path / "a"
    formats.write(form, path, model, optimizer)
    state.write_reference(tmp_path / "r.json", state.digests(model, optimizer))

    other, its_optimizer = trained(into, seed=1)
    state.wipe(other, its_optimizer)
    assert state.differing(state.digests(other, its_optimizer), tmp_path, ("r.json",)) is not None
    if form == "dcp":
        formats.fill_from_dcp(path, other, its_optimizer)
    else:
        read = formats.read(load_of("none", form, form != "model"), path, file_of(path), CPU)
        prefix, came_as = formats.fill(other, its_optimizer, read, fix=True)
        same = isinstance(model, ReferenceDataParallel) == isinstance(other, ReferenceDataParallel)
        assert (prefix == "as it is") == same
        assert came_as == ("ReferenceDataParallel" if form == "model" and wrap is wrapped else None)
    found = state.digests(other, its_optimizer)
    assert state.differing(found, tmp_path, ("r.json",)) is None
    assert "model.module_list.1.running_mean" in found
    assert "optimizer.module_list.0.weight.momentum_buffer" in found


def test_a_prefix_that_nobody_looks_at_is_refused_by_torch(tmp_path):
    """Strict loading of DataParallel's keys into the bare model raises, and names them."""
    formats.write("state_dict", tmp_path / "a", *trained(wrapped))
    read = formats.read(load_of(), tmp_path / "a", file_of(tmp_path / "a"), CPU)
    with pytest.raises(RuntimeError, match=r"Missing key.*module_list\.0\.weight"):
        formats.fill(*trained(), read, fix=False)


@pytest.mark.parametrize("kind", MAPS)
def test_a_file_of_another_machines_device_opens_only_where_it_is_told_to(tmp_path, kind):
    """torch itself refuses the tag of a device that is not here, unless map_location leads away from it."""
    path, tag = tmp_path / "a", formats.absent_device()
    with formats.tagged(tag):
        formats.write("state_dict", path, *trained())
    file = file_of(path, tag)
    if kind in ("device", "dict", "cpu"):
        assert formats.read(load_of(kind), path, file, CPU)["model"]
    else:
        with pytest.raises(RuntimeError, match="Attempting to deserialize object on"):
            formats.read(load_of(kind), path, file, CPU)


def test_the_tag_ends_with_the_file(tmp_path):
    """What is saved afterwards opens anywhere again."""
    with formats.tagged(formats.absent_device()):
        formats.write("state_dict", tmp_path / "a", *trained())
    formats.write("state_dict", tmp_path / "b", *trained())
    assert torch.load(tmp_path / "b", map_location=None)["model"]


def test_a_whole_model_is_refused_by_default(tmp_path):
    """torch's own words are those that the finding looks for."""
    from bench.checks.checkpoints import UNSAFE

    formats.write("model", tmp_path / "a", *trained())
    with pytest.raises(Exception, match=UNSAFE) as refused:
        formats.read(load_of(form="model"), tmp_path / "a", file_of(tmp_path / "a"), CPU)
    text = told(refused.value)
    assert text.startswith(f"UnpicklingError: {UNSAFE}") and "\x1b" not in text and len(text) <= TOLD


def test_a_file_cut_short_is_refused(tmp_path):
    """By words that the finding knows."""
    from bench.checks.checkpoints import CORRUPT

    formats.write("state_dict", tmp_path / "b", *trained())
    formats.cut_short(tmp_path / "b")
    with pytest.raises(RuntimeError) as refused:
        formats.read(load_of(), tmp_path / "b", file_of(tmp_path / "b"), CPU)
    assert any(text in told(refused.value) for text in CORRUPT)


def test_only_what_this_run_wrote_is_unpickled(tmp_path):
    """Changed by a byte, without a digest, behind a link or outside the folder: it is not vouched for."""
    folder, outside = tmp_path / "own", tmp_path / "outside"
    folder.mkdir()
    path = folder / "a"
    path.write_bytes(b"abc")
    file = file_of(path)
    formats.vouch(folder, file)

    outside.write_bytes(b"abc")
    (folder / "link").symlink_to(outside)
    strangers = [
        File(name="a", bytes=3, saved_on="cpu"),
        File(name="../outside", bytes=3, saved_on="cpu", sha256=file.sha256),
        File(name="link", bytes=3, saved_on="cpu", sha256=file.sha256),
    ]
    for stranger in strangers:
        with pytest.raises(BenchError, match="not what this run wrote"):
            formats.vouch(folder, stranger)
    path.write_bytes(b"abd")
    with pytest.raises(BenchError, match="not what this run wrote"):
        formats.vouch(folder, file)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return Path.mkdir, (self.folder,)


@pytest.mark.filterwarnings("ignore:Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
@pytest.mark.parametrize("form", ["state_dict", "model", "dcp"])
def test_a_file_that_was_changed_runs_no_code(tmp_path, monkeypatch, form):
    """Not even where the environment has torch unpickle all by default; an untouched file loads, a changed one fails."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    place = Place(rank=0, local_rank=0, world_size=1, node=0, device=CPU, devices=())
    desk = Desk(Checkpointing(folder=str(tmp_path), name="a"), place, *trained())
    saved = Saver(desk).save(Save(id="a", format=form)).files
    load = Load(id="x", format=form, files=saved, way="cpu", map_location="cpu", default_weights_only=True)
    good = Loader(desk).load(load)
    assert (good.outcome, good.equal) == ("ok", True)

    path = tmp_path / saved[0].name
    trap = pickle.dumps(Trap(tmp_path / "sprung"), protocol=2)
    if form == "dcp":
        (path / ".metadata").write_bytes(trap)
    else:
        torch.save({"model": Trap(tmp_path / "sprung"), "optimizer": {}}, path)
    bad = Loader(desk).load(load)
    assert not (tmp_path / "sprung").exists()
    # a state dict is opened as tensors only, which torch itself sees to: its refusal is a result
    assert bad.outcome == ("refused" if form == "state_dict" else "failed")


def test_a_folder_is_vouched_for_file_by_file(tmp_path):
    """A file of dcp that is changed, renamed, added, lost or a link: the folder is not what this run wrote."""
    path = tmp_path / "d"
    path.mkdir()
    for name in (".metadata", "__0_0.distcp"):
        (path / name).write_bytes(name.encode())
    file = File(name="d", bytes=1, saved_on="cpu", sha256=formats.sha256(path))
    formats.vouch(tmp_path, file)
    (tmp_path / "copy").write_bytes(b".metadata")
    changes = [
        lambda: (path / ".metadata").write_bytes(b"x"),
        lambda: (path / ".metadata").rename(path / ".other"),
        lambda: (path / "added").write_bytes(b""),
        lambda: (path / ".metadata").unlink(),
        lambda: [(path / ".metadata").unlink(), (path / ".metadata").symlink_to(tmp_path / "copy")],
    ]
    for change in changes:
        change()
        with pytest.raises(BenchError, match="not what this run wrote"):
            formats.vouch(tmp_path, file)
        formats.remove(path)
        path.mkdir()
        for name in (".metadata", "__0_0.distcp"):
            (path / name).write_bytes(name.encode())
        formats.vouch(tmp_path, file)


@pytest.mark.parametrize("other", [
    torch.tensor([0.0, -0.0]), torch.tensor([[0.0, 0.0]]), torch.tensor([0.0, 0.0], dtype=torch.float64),
    torch.tensor([0.0, 1e-45]),
])  # fmt: skip
def test_equal_means_bit_by_bit(other):
    """The sign of zero, shape, type and the last bit make a difference; a view of the same bytes makes none."""
    zeros = torch.zeros(2)
    assert state.digest(other) != state.digest(zeros)
    assert state.digest(torch.zeros(4)[::2]) == state.digest(zeros)
    nan = torch.tensor([float("nan")])
    assert state.digest(nan) == state.digest(nan.clone())


def test_one_of_several_ranks_has_to_have_had_it(tmp_path):
    """A replicated tensor may be any rank's; one that none had, that is missing or that is new is named."""
    state.write_reference(tmp_path / "0", {"a": "1", "b": "2"})
    state.write_reference(tmp_path / "1", {"a": "1", "b": "3"})
    both = ("0", "1")
    assert state.differing({"a": "1", "b": "3"}, tmp_path, both) is None
    assert state.differing({"a": "1", "b": "3"}, tmp_path, ("0",)) == "b"
    assert state.differing({"a": "1", "b": "4"}, tmp_path, both) == "b"
    assert state.differing({"a": "1"}, tmp_path, both) == "b (not there after the load)"
    assert state.differing({"a": "1", "b": "2", "c": "1"}, tmp_path, both) == "c (not in what was saved)"


def test_a_tensor_of_any_rank_has_to_come_back(tmp_path):
    """One that only the second rank had is missed where it is gone, and is none too many where it is there."""
    state.write_reference(tmp_path / "0", {"a": "1"})
    state.write_reference(tmp_path / "1", {"a": "1", "b": "3"})
    assert state.differing({"a": "1"}, tmp_path, ("0", "1")) == "b (not there after the load)"
    assert state.differing({"a": "1", "b": "3"}, tmp_path, ("0", "1")) is None


def test_tensors_on_the_device_of_another_rank_are_counted():
    """On three pretended devices: what lies on another one than the rank's counts, CPU tensors do not."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        held = {
            "mine": torch.empty(10, device="cuda:1"),
            "first": torch.empty(3, device="cuda:0"),
            "more": torch.empty(2, device="cuda:0"),
            "host": torch.empty(7),
        }
    assert elsewhere(held, (1,)) == {"cuda:0": 20}
    assert elsewhere(held, (0,)) == {"cuda:1": 40}
    assert elsewhere(held, (0, 1)) == {}


def test_every_torch_load_of_ours_says_where_to():
    """No file is opened without a word on map_location: every rank's context on device 0 comes from that."""
    files = [*(ROOT / "bench").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    calls = [
        (path.name, node)
        for path in files
        if "torch.load(" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert calls
    assert [name for name, call in calls if "map_location" not in {word.arg for word in call.keywords}] == []


def test_the_first_rank_that_speaks_is_quoted():
    """Of dcp's exception for several ranks the first one's own error is told."""
    from torch.distributed.checkpoint.api import CheckpointException

    inner = RuntimeError("Missing key in checkpoint state_dict: model.a.")
    error = CheckpointException("load", {1: (inner, None)})
    assert told(error) == "RuntimeError: Missing key in checkpoint state_dict: model.a."


def test_peak_memory_is_what_was_taken_meanwhile():
    """64 MiB that are gone again are seen; what the process held before, and another peak before, are not."""
    before = bytearray(96 << 20)
    del before
    peak = Peak(None, CPU)
    peak.start()
    held = bytearray(b"x") * (64 << 20)
    del held
    extra, allocated = peak.end()
    assert allocated is None
    if extra is not None:  # where /proc tells
        assert 60 << 20 < extra < 90 << 20


def test_syncing_covers_a_folder_and_its_files(tmp_path):
    """A folder of dcp and a file alike; what is not there is an error."""
    formats.write("dcp", tmp_path / "d", *trained())
    formats.sync(tmp_path / "d")
    assert len(formats.on_disk(tmp_path / "d")) == 2
    formats.remove(tmp_path / "d")
    formats.remove(tmp_path / "d")
    with pytest.raises(OSError):
        formats.sync(tmp_path / "d")
