"""The data sources: files cut once and whole, honest crops, folders read in order, paced items."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bench import plugins
from bench.case import Case
from bench.data.photos import ensure_photos
from bench.data.tokens import ensure_tokens
from bench.errors import UsageError
from bench.options import data_plugin

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
Sample = pytest.importorskip("bench.workload").Sample

IMAGE = Sample((3, 32, 32), 10)
TEXT = Sample((16,), 100, tokens=True)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "scalemark"


@pytest.fixture
def images(tmp_path):
    """Two classes of images, one of them a folder deeper, and files that are none."""
    for number, name in enumerate(
        ["dog/2.png", "dog/1.JPG", "cat/deep/x.jpeg", "cat/notes.txt", "stray.jpg"]
    ):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".txt":
            path.write_text("no image")
        else:
            Image.new("RGB", (40 + number, 30), (number * 50, 0, 0)).save(path)
    return tmp_path / "images"


def make(case, sample=IMAGE):
    """The data set of a case."""
    return data_plugin(case.data)[0].make(case, sample)


def size_of(file):
    """Width and height in pixels."""
    with Image.open(file) as image:
        return image.size


def test_photos_are_cut_once_with_the_same_bytes_for_a_seed(cache, tmp_path, monkeypatch):
    """A second call reads the cache; another cache gets the same files; another seed gets others."""
    first = ensure_photos(files=4)
    bytes_of = {file.name: file.read_bytes() for file in first.iterdir()}
    changed = [file.stat().st_mtime_ns for file in sorted(first.iterdir())]
    assert ensure_photos(files=4) == first == cache / "photos-v1-0-4"
    assert [file.stat().st_mtime_ns for file in sorted(first.iterdir())] == changed
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert {file.name: file.read_bytes() for file in ensure_photos(files=4).iterdir()} == bytes_of
    assert ensure_photos(files=4, seed=1).joinpath("0000.jpg").read_bytes() != bytes_of["0000.jpg"]


def test_photos_have_the_sizes_of_imagenet(cache):
    """Files are about 500 x 400 pixels and 110 kB in the mean, and no two alike."""
    files = sorted(ensure_photos(files=48).iterdir())
    sizes = [size_of(file) for file in files]
    width, height = (sum(column) / len(files) for column in zip(*sizes, strict=True))
    mean_bytes = sum(file.stat().st_size for file in files) / len(files)
    assert (width, height) == (pytest.approx(500, rel=0.1), pytest.approx(400, rel=0.1))
    assert mean_bytes == pytest.approx(110_000, rel=0.15)
    assert all(200 <= side <= 700 for size in sizes for side in size)
    assert len({file.read_bytes() for file in files}) == len(files)


def test_photos_cut_at_once_by_two_leave_one_whole_folder(cache):
    """Whoever is second finds the folder whole, and no scratch folder stays."""
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: ensure_photos(files=3), range(2)))
    assert folders[0] == folders[1] and len(list(folders[0].iterdir())) == 3
    assert [path.name for path in cache.iterdir()] == ["photos-v1-0-3"]


def test_photos_interrupted_leave_nothing_behind(cache, monkeypatch):
    """A cut that fails in the middle leaves no folder, so the next one starts anew."""

    def fail(folder, files, seed):
        (folder / "0000.jpg").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.data._cut.cut", fail)
    with pytest.raises(KeyboardInterrupt):
        ensure_photos(files=3)
    assert list(cache.iterdir()) == []


def test_photos_with_files_gone_say_what_to_do(cache):
    """A cache that lost files is named with the remedy."""
    folder = ensure_photos(files=3)
    (folder / "0001.jpg").unlink()
    with pytest.raises(UsageError, match=r"photos-v1-0-3 has 2 files of 3: remove it, it is cut anew"):
        ensure_photos(files=3)


def test_photos_without_a_cache_to_write_say_what_to_do(tmp_path, monkeypatch):
    """A cache folder that cannot be made is named with the remedy."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cannot write .*: set XDG_CACHE_HOME to a folder that can be"):
        ensure_photos(files=1)


def test_photos_take_files_in_turn_with_fresh_crops(cache):
    """Index i is file i modulo their number: the same label, another crop each time."""
    made = make(Case(data="photos", data_args={"files": 3, "length": 7}))
    assert (len(made), data_plugin("photos")[0].length(Case(data_args={"length": 7}))) == (7, 7)
    assert [made[i][1] for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert not torch.equal(made[0][0], made[0][0])
    with pytest.raises(IndexError):
        made[7]


def test_image_data_refuses_a_model_of_other_samples(cache):
    """A model of vectors cannot be trained on photographs, and the line says what can be done."""
    with pytest.raises(UsageError, match=r"data 'photos' gives square colour images.*takes \(10,\): choose"):
        make(Case(data="photos", data_args={"files": 1}), Sample((10,), 10))


def test_crops_lie_inside_the_image_and_vary():
    """Random boxes stay inside, with a share of the area and an aspect ratio as legal as pixels allow."""
    from bench.data._images import random_box

    torch.manual_seed(0)
    boxes = [random_box(500, 400) for _ in range(300)]
    assert all(0 <= left < right <= 500 and 0 <= top < low <= 400 for left, top, right, low in boxes)
    shares = [(right - left) * (low - top) / 200_000 for left, top, right, low in boxes]
    ratios = [(right - left) / (low - top) for left, top, right, low in boxes]
    assert 0.07 < min(shares) < 0.15 and 0.85 < max(shares) <= 1.0
    assert 0.74 < min(ratios) < 0.8 and 1.25 < max(ratios) < 1.35


@pytest.mark.parametrize(
    ("size", "box"), [((1000, 2), (498, 0, 501, 2)), ((2, 1000), (0, 498, 2, 501)), ((1, 1), (0, 0, 1, 1))]
)
def test_crops_of_extreme_images_are_central(size, box):
    """Where no random box fits, the largest legal one in the middle is taken."""
    from bench.data._images import random_box

    assert random_box(*size) == box


def test_pixels_are_normalised_channels_first_and_flipped_half_the_time():
    """Values are (pixel / 255 - mean) / deviation by channel; a left-right gradient comes out both ways."""
    from bench.data._images import augmented

    flat = augmented(Image.new("RGB", (50, 50), (255, 0, 0)), 8)
    assert (flat.shape, flat.dtype, flat.is_contiguous()) == ((3, 8, 8), torch.float32, True)
    assert flat[:, 0, 0].tolist() == pytest.approx(
        [(1 - 0.485) / 0.229, -0.456 / 0.224, -0.406 / 0.225], rel=1e-5
    )
    ramp = Image.linear_gradient("L").rotate(90).convert("RGB")
    torch.manual_seed(0)
    rising = [bool(made[0, 4, 0] < made[0, 4, 7]) for made in (augmented(ramp, 8) for _ in range(100))]
    assert 30 < sum(rising) < 70


def test_imagefolder_reads_classes_in_order(images):
    """Files are sorted, sub-folders are read, other files are not; labels number the class folders."""
    case = Case(data=f"imagefolder:{images}")
    made = make(case)
    assert [os.path.relpath(file, images) for file in made.files] == [
        "cat/deep/x.jpeg",
        "dog/1.JPG",
        "dog/2.png",
    ]
    assert (made.labels, len(made), data_plugin(case.data)[0].length(case)) == ([0, 1, 1], 3, 3)
    assert make(Case(data="imagefolder", data_args={"path": str(images)})).files == made.files


def test_imagefolder_errors_are_one_line(images, tmp_path):
    """A missing path, a folder without images, no path, too many classes: each says what to do."""
    wrong = {
        f"imagefolder:{tmp_path / 'gone'}": "no such folder",
        f"imagefolder:{images / 'dog'}": r"no images in its subfolders; .*PATH/CLASS/ and end in .jpg",
        "imagefolder:": "no folder given; write imagefolder:PATH",
    }
    for name, text in wrong.items():
        with pytest.raises(UsageError, match=text) as caught:
            make(Case(data=name))
        assert "\n" not in str(caught.value)
    with pytest.raises(
        UsageError, match=r"2 class folders and a model of 1 classes: set model_args\.classes = 2"
    ):
        make(Case(data=f"imagefolder:{images}"), Sample((3, 8, 8), 1))


def test_damaged_image_is_named(images):
    """A file that cannot be decoded is named, rather than a decoder's own words alone."""
    (images / "dog" / "1.JPG").write_bytes(b"not a picture")
    with pytest.raises(UsageError, match=r"cannot read the image .*1\.JPG .*repair or remove it"):
        make(Case(data=f"imagefolder:{images}"))[1]


def test_tokens_are_written_once_with_the_same_bytes_for_a_seed(cache, tmp_path, monkeypatch):
    """A second call reads the cache; another cache gets the same file; another seed gets another."""
    file = ensure_tokens(3000)
    written, changed = file.read_bytes(), file.stat().st_mtime_ns
    assert ensure_tokens(3000) == file == cache / "tokens-v1-0-3000.bin" and len(written) == 6000
    assert file.stat().st_mtime_ns == changed and ensure_tokens(3000, seed=1).read_bytes() != written
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert ensure_tokens(3000) != file and ensure_tokens(3000).read_bytes() == written


def test_tokens_follow_the_law_of_zipf(cache):
    """The frequency of an id is that of the first over its rank, and the rarest are there too."""
    ids = torch.from_numpy(np.fromfile(ensure_tokens(1_500_000), "<u2").astype(np.int64))
    counts = torch.bincount(ids, minlength=2**16)
    for rank, near in ((1, 0), (2, 0), (9, 0), (99, 5), (999, 50)):
        around = counts[rank - near : rank + near + 1].float().mean()
        assert around == pytest.approx(counts[0].item() / (rank + 1), rel=0.1), rank
    assert ids.max() > 65_000


def test_tokens_interrupted_or_written_twice_leave_whole_files_only(cache, monkeypatch):
    """Two that write at once leave one file; a failure in the middle leaves none, and no scratch file."""
    with ThreadPoolExecutor(2) as pool:
        files = list(pool.map(lambda _: ensure_tokens(2000), range(2)))
    assert files[0] == files[1] and [path.name for path in cache.iterdir()] == ["tokens-v1-0-2000.bin"]

    def fail(file, tokens, seed):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.data._zipf.write_tokens", fail)
    with pytest.raises(KeyboardInterrupt):
        ensure_tokens(4000)
    assert [path.name for path in cache.iterdir()] == ["tokens-v1-0-2000.bin"]


def test_tokens_are_windows_side_by_side_in_turn(cache):
    """Item i is window i modulo their number; a target is the id that follows; ids stay below the vocabulary."""
    case = Case(data="tokens", data_args={"tokens": 65, "length": 9})
    made, ids = make(case, TEXT), np.fromfile(ensure_tokens(65), "<u2").astype(np.int64) % 100
    assert (len(made), made.windows) == (9, 4)
    for index in range(9):
        start = index % 4 * 16
        assert made[index][0].tolist() == ids[start : start + 16].tolist()
        assert made[index][1].tolist() == ids[start + 1 : start + 17].tolist()


def test_token_errors_say_what_to_do(cache, tmp_path, monkeypatch):
    """A model of images, a file too short for a sequence, one cut short, a cache that cannot be written."""
    with pytest.raises(
        UsageError, match=r"gives token ids and the model takes \(3, 32, 32\): choose a token"
    ):
        make(Case(data="tokens", data_args={"tokens": 100}))
    with pytest.raises(UsageError, match=r"16 tokens do not hold a sequence of 16 and its targets: raise"):
        make(Case(data="tokens", data_args={"tokens": 16}), TEXT)
    made, file = make(Case(data="tokens", data_args={"tokens": 100}), TEXT), ensure_tokens(100)
    file.write_bytes(file.read_bytes()[:150])
    with pytest.raises(UsageError, match=r"tokens-v1-0-100\.bin was cut short: remove it"):
        made[5]
    with pytest.raises(UsageError, match=r"tokens-v1-0-100\.bin has 150 bytes of 200: remove it"):
        ensure_tokens(100)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"cannot write .*: set XDG_CACHE_HOME to a folder that can be"):
        ensure_tokens(100)


def test_image_data_refuses_a_model_of_tokens(cache):
    """Photographs are no ids, whatever the shape of the sequence."""
    with pytest.raises(UsageError, match=r"data 'photos' gives square colour images"):
        make(Case(data="photos", data_args={"files": 1}), TEXT)


def test_files_are_prepared_before_the_study_without_torch(cache):
    """What takes long the first time is made from a case alone, where torch is not."""
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['torch'] = None; from bench.case import Case; from bench import plugins\n"
        "for name, args in (('tokens', {'tokens': 50}), ('photos', {'files': 1}), ('synthetic', {})):\n"
        "    plugins.load('data', name).prepare(Case(data=name, data_args=args))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
    assert sorted(path.name for path in cache.iterdir()) == ["photos-v1-0-1", "tokens-v1-0-50.bin"]


def test_a_study_prepares_the_files_of_the_cells_that_run(cache):
    """Files of cells that are skipped are not made."""
    from bench.begin import prepare
    from bench.plan import Plan
    from bench.records import Cell

    cases = [Case(data="tokens", data_args={"tokens": count}) for count in (50, 60)]
    cells = tuple(
        Cell(id=case.id, case=case, suite="s", skipped=skipped)
        for case, skipped in zip(cases, (None, "no room"), strict=True)
    )
    prepare(Plan(suites=("s",), cells=cells, factors={}, estimates={}))
    assert [path.name for path in cache.iterdir()] == ["tokens-v1-0-50.bin"]


def test_synthetic_items_follow_from_index_and_seed():
    """The same index and seed give the same item; another of either gives another."""
    first, same, other = (make(Case(data="synthetic", seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first[5][0], same[5][0]) and first[5][1] == same[5][1] == 5
    assert not torch.equal(first[5][0], first[6][0]) and not torch.equal(first[5][0], other[5][0])
    assert first[0][0].untyped_storage().data_ptr() == first[6][0].untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("case", "samples"),
    [
        (Case(strategy="ddp", ranks=4, batch=8), 8),
        (Case(strategy="ddp", ranks=4, batch=10, scaling="strong"), 3),
        (Case(strategy="dp", ranks=4, batch=8), 32),
        (Case(strategy="dp", ranks=4, batch=8, scaling="strong"), 8),
    ],
)
def test_device_holds_one_batch_of_one_process(case, samples):
    """A rank's own batch; the batch of all devices where one process drives them."""
    assert len(make(case)) == samples and not plugins.load("data", "device").loader


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now_s, self.slept = 0.0, []

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now_s += seconds


def test_paced_items_sleep_once_a_batch(monkeypatch):
    """A batch of n takes n times the item's time, in one sleep; the slow rank takes its own more."""
    clock = FakeTime()
    monkeypatch.setattr("bench.data._samples.time", clock)
    slow = {"item_s": 0.01, "slow_rank": 1, "slow_item_s": 0.02, "length": 40}
    for rank, seconds in (("0", 0.08), ("1", 0.24)):
        monkeypatch.setenv("RANK", rank)
        made = make(Case(data="paced", data_args=slow))
        next(iter(torch.utils.data.DataLoader(made, batch_size=8)))
        assert clock.slept == [pytest.approx(seconds)]
        clock.slept.clear()
    made[0]
    assert clock.slept == [pytest.approx(0.03)]


def test_photograph_is_found_without_importing_matplotlib():
    """The source photograph is where matplotlib is installed; a rank must not load matplotlib for it."""
    import subprocess
    import sys

    code = (
        "import sys; from bench.data._cut import source; assert source().is_file(); "
        "assert not {'matplotlib', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
