"""Options of plug-ins: what is accepted, and the one line for what is not."""

import pytest

from bench.errors import UsageError
from bench.options import check_options, data_plugin, option

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
