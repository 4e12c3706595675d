"""`scalemark list`: everything that can be chosen, by name."""

import json

import pytest

from bench import plugins
from bench.case import FIELDS
from bench.errors import UsageError
from bench.verbs.list import list_


def test_json_names_every_kind_and_every_axis(capsys):
    """One object: the axes of a cell, and the plug-ins of each kind."""
    list_(None, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found.pop("axes") == list(FIELDS)
    assert found == {kind: list(plugins.names(kind)) for kind in plugins.KINDS}
    assert {"zero1", "fsdp"} <= set(found["strategies"])
    assert {"gpt2", "vit", "hf", "timm", "torchvision"} <= set(found["models"])


@pytest.mark.parametrize(
    "line",
    [
        "  precision               bf16, fp16, fp32, tf32, none [none]",
        "  num_workers             integer from 0 [0]",
        "  model_args              a table [empty]",
        "  broadcast_buffers       true, false [true]",
        "  compile                 true, false, max-autotune, reduce-overhead [false]",
    ],
)
def test_an_axis_says_what_it_may_be_and_what_it_is_by_default(capsys, line):
    """Levels, or the type and its smallest value, and the default in brackets."""
    list_("axes", json=False)
    assert line in capsys.readouterr().out.splitlines()


def test_an_unknown_kind_is_answered_with_the_nearest():
    """A typo names the kinds there are."""
    with pytest.raises(UsageError, match="did you mean 'axes'"):
        list_("axis", json=False)
