"""The `module.` that DataParallel and DDP put before every key of a state dict: taken off, or put on, exactly once."""

from collections.abc import Collection, Mapping
from typing import Any

from bench.checkpoint_records import Prefix

MODULE = "module."


def aligned(state: Mapping[str, Any], wanted: Collection[str]) -> tuple[dict[str, Any], Prefix]:
    """The state with keys as `wanted` has them, where one leading `module.` on all of them is the difference.

    Only whole leading parts count: `module_list.0` is left alone, and a model that has a part of its own called
    `module` keeps it. Where nothing fits, the state is returned as it is.
    """
    keys, asked = set(state), set(wanted)
    if keys == asked or not keys or not asked:
        return dict(state), "as it is"
    more = {MODULE + key: value for key, value in state.items()}
    if more.keys() == asked or (_all_have(asked) and not _all_have(keys)):
        return more, "added"
    less = {key.removeprefix(MODULE): value for key, value in state.items()}
    if _all_have(keys) and (less.keys() == asked or not _all_have(asked)):
        return less, "stripped"
    return dict(state), "as it is"


def _all_have(keys: Collection[str]) -> bool:
    return all(key.startswith(MODULE) for key in keys)


def mismatch(state: Collection[str], wanted: Collection[str]) -> str:
    """What a strict load would complain of, in one line; empty where the keys are the same."""
    missing = [key for key in wanted if key not in set(state)]
    unexpected = [key for key in state if key not in set(wanted)]
    said = [
        f"{len(keys)} {what} {'key' if len(keys) == 1 else 'keys'}, first {keys[0]!r}"
        for keys, what in ((missing, "missing"), (unexpected, "unexpected"))
        if keys
    ]
    return "; ".join(said)
