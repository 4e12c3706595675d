"""Options of plug-ins: what is accepted, and the one line for what is not."""

import pytest

from bench.case import Case
from bench.errors import UsageError
from bench.options import built_first, check_model, check_options, data_plugin, model_plugin, option

OPTIONS = {"width": 256, "item_s": 0.005, "seed": 0, "slow_rank": -1, "path": "", "deep": False}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"width": 1, "item_s": 0.0, "seed": 0, "slow_rank": -1, "path": "x", "deep": True},
        {"item_s": 1},
    ],
)
def test_legal_options_pass(given):
    """Values of the default's type and in range are accepted, an integer for a float too."""
    check_options("models", "mlp", given, OPTIONS)


def test_unknown_option_lists_the_allowed_ones_with_defaults():
    """A typo is answered with every option, its default, and the nearest name."""
    with pytest.raises(UsageError) as caught:
        check_options("models", "mlp", {"widht": 3}, {"width": 256, "depth": 2})
    assert str(caught.value) == (
        "model_args of 'mlp': unknown option 'widht'; allowed, with defaults: width = 256, depth = 2; "
        "did you mean 'width'?"
    )


def test_option_of_a_plugin_without_any_is_refused():
    """Where nothing can be set, the answer says so."""
    with pytest.raises(UsageError, match=r"data_args of 'device': unknown option 'x'; .*: none$"):
        check_options("data", "device", {"x": 3}, {})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"width": "many"}, "width = 'many': wrong type str, needs int (default 256)"),
        ({"width": 2.0}, "width = 2.0: wrong type float, needs int (default 256)"),
        ({"width": True}, "width = True: wrong type bool, needs int (default 256)"),
        ({"deep": 1}, "deep = 1: wrong type int, needs bool (default False)"),
        ({"path": 3}, "path = 3: wrong type int, needs str (default '')"),
        ({"width": 0}, "width = 0: out of range, needs at least 1 (default 256)"),
        ({"seed": -1}, "seed = -1: out of range, needs at least 0 (default 0)"),
        ({"slow_rank": -2}, "slow_rank = -2: out of range, needs at least -1 (default -1)"),
        ({"item_s": -0.1}, "item_s = -0.1: out of range, needs at least 0 (default 0.005)"),
        ({"item_s": float("nan")}, "item_s = nan: out of range, needs at least 0 (default 0.005)"),
        ({"item_s": float("inf")}, "item_s = inf: out of range, needs at least 0 (default 0.005)"),
    ],
)
def test_wrong_values_say_what_is_needed(given, problem):
    """Type and range follow from the default, and the line names both."""
    with pytest.raises(UsageError) as caught:
        check_options("data", "paced", given, OPTIONS)
    assert str(caught.value) == f"data_args of 'paced': {problem}"


def test_option_gives_the_default_in_its_type():
    """A missing option is its default; an integer given for a float becomes one."""
    assert option({}, OPTIONS, "width") == 256
    assert option({"width": 3}, OPTIONS, "width") == 3
    assert isinstance(option({"item_s": 1}, OPTIONS, "item_s"), float)


def test_argument_after_a_colon_belongs_to_data_with_a_path():
    """`imagefolder:PATH` is split once, so a path may hold colons itself."""
    assert data_plugin("imagefolder:/a:b")[1] == "/a:b"
    assert data_plugin("photos") == (data_plugin("photos")[0], None)


def test_argument_that_nothing_reads_is_refused():
    """A path after a name that takes none is an error, not ignored."""
    with pytest.raises(UsageError, match="data 'photos:/x': 'photos' takes nothing after a ':'"):
        data_plugin("photos:/x")


def test_unknown_data_is_answered_with_the_known_ones():
    """A typo before the colon names what there is."""
    with pytest.raises(UsageError, match=r"unknown name 'imagefodler'.*did you mean 'imagefolder'"):
        data_plugin("imagefodler:/x")


def test_name_after_a_colon_belongs_to_a_model_that_takes_one():
    """`hf:gpt2` is a plug-in and a name, split once; `module:factory` is the user's, also in a file called vit.py."""
    assert model_plugin("hf:gpt2")[1] == "gpt2" and model_plugin("timm:a:b")[1] == "a:b"
    assert model_plugin("vit")[1] is None
    assert model_plugin("my.module:build") is None and model_plugin("vit:build") is None
    assert [built_first(Case(model=name)) for name in ("vit", "hf:gpt2", "vit:build")] == [False, True, True]


@pytest.mark.parametrize("name", ["hf", "hf:"])
def test_missing_name_of_a_model_is_asked_for(name):
    """A plug-in that needs a name says how one is written."""
    with pytest.raises(
        UsageError, match=rf"model '{name}': a name is missing; write hf:NAME, such as hf:gpt2"
    ):
        model_plugin(name)


def test_open_options_are_left_to_the_model():
    """Options that only the built model knows pass here; the plug-in's own are checked; others take no others."""
    check_model(Case(model="hf:gpt2", model_args={"n_layer": 1, "sequence": 8}))
    check_model(Case(model="my.module:build", model_args={"anything": 1}))
    with pytest.raises(UsageError, match="sequence = 'long': wrong type str, needs int"):
        check_model(Case(model="hf:gpt2", model_args={"sequence": "long"}))
    with pytest.raises(UsageError, match=r"model_args of 'timm:resnet18': unknown option 'n_layer'"):
        check_model(Case(model="timm:resnet18", model_args={"n_layer": 1}))
