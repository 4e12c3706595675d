"""The nearest name to one that was not known."""

import json
import subprocess
import sys

import pytest

from bench.spelling import did_you_mean


def raised(code, **names):
    """The exception of an expression."""
    with pytest.raises(Exception) as caught:
        eval(code, names)
    return caught.value


def test_a_misspelt_name_of_a_module_is_answered_with_the_nearest():
    """Public names of the module, and only near ones; other objects are left alone."""
    assert did_you_mean(raised("json.load_s", json=json)) == "; did you mean 'loads'?"
    assert did_you_mean(raised("json.banana", json=json)) == ""
    assert did_you_mean(raised("'text'.uper()")) == ""
    assert did_you_mean(ValueError("uper")) == ""


def test_arguments_of_torch_are_answered_with_the_nearest():
    """The signature of torch's own class is looked at; functions of others are not."""
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader
    assert did_you_mean(raised("loader([1], num_worker=2)", loader=loader)) in (
        "; did you mean 'num_workers'?",
        "",  # Python has said it in the message
    )
    assert did_you_mean(TypeError("DataLoader.__init__() got an unexpected keyword argument 'shufle'")) == (
        "; did you mean 'shuffle'?"
    )
    assert did_you_mean(TypeError("mine() got an unexpected keyword argument 'shufle'")) == ""
    assert did_you_mean(TypeError("DataLoader.__init__() got an unexpected keyword argument 'banana'")) == ""


def test_the_local_rank_is_not_taken_for_the_global_one():
    """By its letters the nearest to get_local_rank is get_global_rank, which is another thing."""
    torch = pytest.importorskip("torch")
    error = raised("dist.get_local_rank()", dist=torch.distributed)
    assert did_you_mean(error) == "; did you mean 'get_node_local_rank'?"


def test_what_python_suggests_is_not_said_twice():
    """From 3.13 on the message of a wrong argument has the nearest one itself."""
    assert did_you_mean(TypeError("f() got an unexpected keyword argument 'a'. Did you mean 'b'?")) == ""


def test_spelling_loads_without_torch():
    """The command line can use it where torch is not installed."""
    code = "import sys; sys.modules['torch'] = None; import bench.spelling"
    subprocess.run([sys.executable, "-c", code], check=True)
