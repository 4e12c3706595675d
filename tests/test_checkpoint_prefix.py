"""One leading `module.` is taken off or put on where all keys ask for it; nothing else is touched."""

import pytest

from bench.checkpoint_prefix import aligned, mismatch


@pytest.mark.parametrize(
    ("saved", "wanted", "prefix"),
    [
        (["module.a", "module.b.weight"], ["a", "b.weight"], "stripped"),
        (["a", "b.weight"], ["module.a", "module.b.weight"], "added"),
        (["module.a"], ["module.a"], "as it is"),
        # a part of the model that is called like it, alone and under a wrapper
        (["module_list.0.weight"], ["module_list.0.weight"], "as it is"),
        (["module.module_list.0.weight"], ["module_list.0.weight"], "stripped"),
        (["features.module.weight"], ["module.features.module.weight"], "added"),
        (["module.module.weight"], ["module.weight"], "stripped"),
        (["module.weight"], ["module.module.weight"], "added"),
    ],
)
def test_exactly_one_module_is_stripped_or_added(saved, wanted, prefix):
    """The keys become those of the model, values stay with them, and a `module` of the model's own stays."""
    state, found = aligned({key: key.encode() for key in saved}, wanted)
    assert (list(state), found) == (wanted, prefix)
    assert list(state.values()) == [key.encode() for key in saved]


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        (["module.a", "b"], ["a", "b"]),  # not all of them have it
        (["module_list.0"], ["list.0"]),  # no seven letters are cut off
        (["features.module.a"], ["features.a"]),  # in the middle
        (["module.module.a"], ["a"]),  # twice
        ([], ["a"]),
    ],
)
def test_where_one_module_is_not_the_difference_nothing_fits(saved, wanted):
    """A state that no single leading `module.` mends stays one that torch refuses."""
    state, _ = aligned(dict.fromkeys(saved), wanted)
    assert set(state) != set(wanted)


def test_a_mismatch_names_the_first_keys():
    """Missing and unexpected keys are counted, and the first of each is named."""
    assert mismatch(["module.a", "module.b"], ["a", "b", "c"]) == (
        "3 missing keys, first 'a'; 2 unexpected keys, first 'module.a'"
    )
    assert mismatch(["a"], ["a", "b"]) == "1 missing key, first 'b'"
    assert mismatch(["b", "a"], ["a", "b"]) == ""
