"""What must be equal on every node: said by name where it is not, before anything is measured."""

import pytest

from bench import sameness
from bench.case import Case
from bench.sameness import Versions, differences

OURS = Versions(
    scalemark="1.2", source="aa", schema=1, python="3.11", torch="2.13.0", code={"mine:build": "c0"}
)


def other(**fields):
    """A node that differs from the leader in these fields."""
    return Versions(**{name: getattr(OURS, name) for name in OURS.__struct_fields__} | fields)


def test_equal_nodes_differ_in_nothing():
    """No words for what is the same."""
    assert differences(OURS, other()) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": 2}, "schema 2, the leader has 1"),
        ({"scalemark": "1.3"}, "scalemark 1.3, the leader has 1.2"),
        ({"python": "3.12"}, "python 3.12, the leader has 3.11"),
        ({"torch": "2.12.0"}, "torch 2.12.0, the leader has 2.13.0"),
        ({"torch": None}, "torch None, the leader has 2.13.0"),
        ({"source": "bb"}, "other source files of scalemark 1.2 (bb), the leader has aa"),
        ({"code": {"mine:build": "c1"}}, "other code of mine:build (c1), the leader has c0"),
    ],
)
def test_each_difference_has_its_line(fields, said):
    """What the node has, and what the leader has."""
    assert differences(OURS, other(**fields)) == [said]


def test_all_differences_are_told_at_once():
    """In one go, so that they can be mended in one go."""
    found = differences(OURS, other(python="3.12", torch="2.12.0", code={"mine:build": "c1"}))
    assert [text.split()[0] for text in found] == ["python", "torch", "other"]


def test_another_version_explains_other_files():
    """They are not told as well."""
    assert differences(OURS, other(scalemark="1.3", source="bb")) == ["scalemark 1.3, the leader has 1.2"]


def test_a_first_word_without_models_is_not_compared_in_them():
    """A follower says Hello before it knows which models there are."""
    assert differences(OURS, other(code={})) == []


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a package and a module of the user's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours_pkg").mkdir()
    (tmp_path / "ours_pkg/__init__.py").write_text("")
    (tmp_path / "ours_pkg/parts.py").write_text("width = 8\n")
    (tmp_path / "ours_one.py").write_text("raise SystemExit('imported')\n")
    return tmp_path


def test_a_model_is_told_by_its_files(place):
    """A module by its own file, a package by all of them; none of them is imported."""
    module, package = sameness.code("ours_one:build"), sameness.code("ours_pkg.parts:build")
    (place / "ours_pkg/parts.py").write_text("width = 9\n")
    assert sameness.code("ours_pkg.parts:build") != package
    assert sameness.code("ours_one:build") == module
    (place / "ours_one.py").write_text("raise SystemExit('changed')\n")
    assert sameness.code("ours_one:build") != module


def test_a_file_that_was_renamed_is_another_one(place):
    """Names count beside contents."""
    before = sameness.code("ours_pkg:build")
    (place / "ours_pkg/parts.py").rename(place / "ours_pkg/pieces.py")
    assert sameness.code("ours_pkg:build") != before


def test_what_python_leaves_behind_does_not_count(place):
    """Compiled files differ from node to node, and data files are not code."""
    before = sameness.code("ours_pkg:build")
    (place / "ours_pkg/__pycache__").mkdir()
    (place / "ours_pkg/__pycache__/parts.cpython-311.pyc").write_bytes(b"compiled")
    (place / "ours_pkg/notes.txt").write_text("data")
    assert sameness.code("ours_pkg:build") == before


def test_code_that_is_not_there_differs_from_code_that_is(place):
    """A node without the user's files says so, instead of failing in its first launch."""
    assert sameness.code("nowhere_to_be_found:build") == "not found"


def test_only_models_of_the_user_are_told(place):
    """The suite's own are in its version; each model of the user's is there once."""
    cases = [Case(model="paced"), Case(model="ours_one:build"), Case(model="ours_one:build", batch=8)]
    found = sameness.mine(cases)
    assert list(found.code) == ["ours_one:build"]
    assert found == sameness.mine(reversed(cases))
