"""What the device probe said, kept where it cannot change."""

import msgspec
import pytest

from bench import machine, probe_cache
from bench.errors import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_an_answer_is_kept_and_read_until_a_variable_changes(tmp_path, monkeypatch):
    """The same host gives the same file; a variable that torch reads gives another."""
    place = probe_cache.place(tmp_path)
    probe_cache.keep(place, b"answer")
    assert probe_cache.read(probe_cache.place(tmp_path)) == b"answer"
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert probe_cache.read(probe_cache.place(tmp_path)) is None


@pytest.mark.parametrize("name", ["nvidia0", "nvidiactl", "dri", "kfd", "accel", "dxg"])
def test_where_there_may_be_a_device_nothing_is_kept(tmp_path, name):
    """A device file of an accelerator: its state can change at any time, so torch is asked every time."""
    (tmp_path / name).touch()
    assert probe_cache.place(tmp_path) is None
    probe_cache.keep(None, b"answer")
    assert probe_cache.read(None) is None


def test_a_cache_that_cannot_be_written_is_none(tmp_path, monkeypatch):
    """A file in the place of the folder: nothing is kept, nothing is raised."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    probe_cache.keep(probe_cache.place(tmp_path), b"answer")
    assert probe_cache.read(probe_cache.place(tmp_path)) is None


def test_a_kept_answer_spares_the_probe_and_a_broken_one_does_not_matter(monkeypatch):
    """What is kept is what is answered, without a process; rubbish in its place is passed over."""
    monkeypatch.setattr(probe_cache, "DEVICE_FILES", ())
    place = probe_cache.place()
    if place is None:
        pytest.skip("no torch here")
    probe_cache.keep(place, msgspec.json.encode(machine.Probe(torch="9.9", backends=["gloo"])))
    monkeypatch.setattr(machine, "own_python", lambda statement: ["false"])
    assert machine.probe_devices.__wrapped__().torch == "9.9"
    probe_cache.keep(place, b"{rubbish")
    assert machine.probe_devices.__wrapped__().torch is None


def test_a_user_without_a_home_has_no_cache(tmp_path, monkeypatch):
    """No home and no XDG_CACHE_HOME: the probe goes on without, and data that needs a cache says what to set."""
    from bench.data import photos

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", nowhere)
    assert probe_cache.place(tmp_path) is None
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME"):
        photos.ensure_photos()
