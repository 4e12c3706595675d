"""bench.watch where something is wrong: wrong calls raise at once; from then on no loop ever fails by it."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bench import watch_facts  # noqa: E402
from bench.store import Store  # noqa: E402
from bench.watch import watch  # noqa: E402
from bench.watch_marks import HostStamps  # noqa: E402
from bench.workload import leading_size  # noqa: E402
from tests.test_watch import Loop, quick, record  # noqa: E402, F401


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (
            {"model": "x"},
            TypeError,
            r"watch\(model=\.\.\.\) takes the nn\.Module that the loop calls, not 'x'",
        ),
        ({"steps": "a"}, TypeError, r"watch\(steps=\.\.\.\) takes how many batches to measure, not 'a'"),
        ({"steps": True}, TypeError, "how many batches to measure, not True"),
        ({"steps": 2.5}, TypeError, "not 2.5"),
        ({"steps": 0}, ValueError, r"watch\(steps=0\): 1 or more"),
        ({"steps": -3}, ValueError, r"watch\(steps=-3\): 1 or more"),
        ({"samples": 16}, TypeError, "a function of a batch, not 16"),
        ({"output": 3}, TypeError, "a folder, not 3"),
    ],
)
def test_a_wrong_call_raises_at_once(capfd, arguments, kind, says):
    """What nobody can mean is refused in the line that asks for it, and nothing more is said at the end."""
    model = arguments.pop("model", None) or nn.Linear(3, 2)
    with pytest.raises(kind, match=says) as caught:
        watch(model, **arguments)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_one_step_and_a_path_will_do():
    """The least number of steps gives a study; a folder may be a Path."""
    loop = Loop()
    with watch(loop.model, steps=1, output=Path("mine")) as watched:
        loop.run(watched)
    assert record().requested.steps == 1


def test_a_model_that_is_watched_already_is_not_watched_twice(capfd):
    """watch() inside the loop over epochs: it is said, and the first watch goes on over all of them."""
    loop = Loop()
    first = watch(loop.model, steps=15, output="mine")
    loop.run(first)
    again = watch(loop.model, output="other")
    assert again is first
    assert "this Sequential is watched already" in capfd.readouterr().err
    loop.run(again)
    assert (record().requested.steps, Path("other").exists()) == (15, False)
    later = watch(loop.model)  # the first one is over
    assert later is not first and capfd.readouterr().err.count("already") == 0
    later.done()


def test_a_loop_beside_the_watch_is_told_by_rank_0_alone(monkeypatch, capfd):
    """No batch came: all ranks know it, one says it."""
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        watch(nn.Linear(3, 2)).done()
    assert capfd.readouterr().err.count("for batch in watched.loader(loader):") == 1


@pytest.mark.parametrize(("said", "rank"), [("3", 3), ("", 0), ("none", 0)])
def test_a_rank_without_a_group_is_what_the_launcher_says(monkeypatch, said, rank):
    """What is no number is no rank, and no reason for a training to fail."""
    monkeypatch.setenv("RANK", said)
    assert watch_facts.own_rank() == rank


def test_a_folder_that_cannot_be_written_is_named_as_the_script_names_it(capfd):
    """There is no option -o in a script."""
    loop = Loop()
    with watch(loop.model, output="/proc/none") as watched:
        loop.run(watched)
    said = capfd.readouterr().err
    assert "name another folder by watch(output=...)" in said and " -o" not in said


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("samples", "give watch(samples=...)"),
        ("model", "was called to train in none of 10 batches"),
        ("clock", "no clock"),
        ("unused", "write the loop as: for batch in watched.loader(loader):"),
    ],
)
def test_what_fails_in_a_watch_is_a_line_and_the_loop_goes_on(monkeypatch, capfd, wrong, says):
    """The loop gets all its batches, its hooks are gone, and one line says why there is no study."""
    loop = Loop()
    stamps = iter(range(20))  # and then none
    if wrong == "clock":
        monkeypatch.setattr(HostStamps, "stamp", lambda _: next(stamps, None) or _fail(OSError("no clock")))
    model = nn.Linear(3, 2) if wrong == "model" else loop.model
    watched = watch(model, samples=_uncounted if wrong == "samples" else len, output="mine")
    trained = 0
    for inputs, targets in loop.loader if wrong == "unused" else watched.loader(loop.loader):
        loop.step(inputs, targets)
        trained += 1
    watched.done()
    assert trained == 10
    assert not loop.model._forward_hooks
    blank, line = capfd.readouterr().err.splitlines()
    assert blank == ""  # the script's own output may stand in the middle of a line
    assert line.startswith("scalemark: no study is written: ") and says in line
    again = watch(model)  # the one that failed stands in nobody's way
    assert again is not watched
    again.done()


def _fail(error):
    raise error


def _uncounted(batch):
    return leading_size("text")


def test_a_loop_that_fails_fails_with_its_own_error(capfd):
    """The exception is the user's, and no study is written."""
    loop = Loop()
    with pytest.raises(ZeroDivisionError), watch(loop.model, output="mine") as watched:
        for _ in watched.loader(loop.loader):
            raise ZeroDivisionError
    assert "the loop ended with ZeroDivisionError" in capfd.readouterr().err
    assert not Store(Path("mine")).root.exists()
