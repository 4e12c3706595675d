"""Files in and out of the page cache, seen by mincore."""

import os

import pytest

from bench import pagecache
from bench.data.photos import PLUGIN as PHOTOS
from bench.data.tokens import PLUGIN as TOKENS


@pytest.fixture
def file(tmp_path):
    """A file of 1 MiB on a disk that can forget it."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 20))
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)  # dirty pages cannot be put out
    os.close(handle)
    pagecache.evict(path)
    if pagecache.resident_share([path]) != 0:
        pytest.skip("the file system of the temporary folder keeps every file in memory")
    return path


def test_a_file_is_cold_once_put_out_and_warm_once_read(file):
    """Its pages are gone, all back after one reading, and gone again."""
    pagecache.warm(file)
    assert pagecache.resident_share([file]) == 1
    pagecache.evict(file)
    assert pagecache.resident_share([file]) == 0


def test_what_cannot_be_told_is_null(tmp_path):
    """Files that are missing or empty have no share; one that is missing is no error to warm or put out."""
    empty = tmp_path / "empty"
    empty.touch()
    assert pagecache.resident_share([empty, tmp_path / "none"]) is None
    assert pagecache.resident_share([]) is None
    pagecache.warm(tmp_path / "none")
    pagecache.evict(tmp_path / "none")


def test_a_file_of_somebody_else_tells_nothing(file):
    """The system answers "all in memory" to who neither owns nor may write a file: that is no answer."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    pagecache.evict(file)
    file.chmod(0o644)
    for folder in (file.parent, *file.parents):
        if folder.stat().st_mode & 0o005 != 0o005 and folder.is_relative_to(file.parents[2]):
            folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        os._exit(0 if pagecache.resident_share([file]) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pagecache.resident_share([file]) == 0


def test_cold_images_leave_the_cache_as_they_are_read(tmp_path, file):
    """With a cold cache a file is out again after its sample was made; without, it stays."""
    pytest.importorskip("torch")
    from PIL import Image

    from bench.data._images import ImageFiles

    path = tmp_path / "a.jpg"
    Image.effect_noise((256, 256), 50).convert("RGB").save(path)
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    for cold, share in ((False, 1), (True, 0)):
        images = ImageFiles([path], [0], 1, 32, cold=cold)
        assert images[0][1] == 0
        assert pagecache.resident_share(images.files) == share
    assert PHOTOS.reads_files


def test_cold_tokens_leave_the_cache_as_they_are_read(file):
    """With a cold cache a file of ids is out again after each window, and the window is what it was."""
    torch = pytest.importorskip("torch")
    from bench.data._tokens import TokenWindows

    warm, cold = (TokenWindows(file, 8, 1024, 50_000, cold=cold) for cold in (False, True))
    first = warm[3][0]
    assert pagecache.resident_share(warm.files) > 0
    assert torch.equal(cold[3][0], first)
    assert pagecache.resident_share(cold.files) == 0
    assert TOKENS.reads_files
