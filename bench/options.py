"""What a case may pass to a plug-in: names, types and ranges, checked before anything runs."""

import difflib
import math
from collections.abc import Mapping
from typing import Any

from bench import plugins
from bench.case import Case
from bench.errors import UsageError

FIELDS = {"models": "model_args", "data": "data_args"}


def check_options(kind: str, name: str, given: Mapping[str, Any], options: plugins.Options) -> None:
    """Raise UsageError unless every given option is known, of its default's type and in range.

    The default says what is allowed: an integer is fine where it is a float; a positive integer counts
    something, so it stays at least 1; other numbers stay at least 0, or at a default below that.
    """
    for key, value in given.items():
        where = f"{FIELDS.get(kind, kind)} of {plugins.clip(name)!r}"
        if key not in options:
            raise UsageError(f"{where}: {_unknown(key, options)}")
        problem = _problem(value, options[key])
        if problem:
            shown = plugins.clip(repr(value))
            raise UsageError(f"{where}: {key} = {shown}: {problem} (default {options[key]!r})")


def option(given: Mapping[str, Any], options: plugins.Options, key: str) -> Any:
    """The given value of an option, or its default, in the default's type."""
    default = options[key]
    return type(default)(given.get(key, default))


def check_divides(case: Case, options: plugins.Options, whole: str, part: str) -> None:
    """Raise UsageError unless one option of the case's model is a multiple of another."""
    size, parts = (option(case.model_args, options, key) for key in (whole, part))
    if size % parts:
        raise UsageError(
            f"model_args of {plugins.clip(case.model)!r}: {whole} = {size} does not divide by {part} = {parts}: "
            f"make it a multiple of {parts}"
        )


def model_plugin(name: str) -> tuple[plugins.Model, str | None] | None:
    """The model plug-in of a case and what follows a ':' in its name; None for a `module:factory` of the user's.

    A plug-in takes such a name where it says so (`hf:gpt2`), and then it needs one; `resnet50:build` is the
    user's own file resnet50.py. Raises UsageError for an unknown name and for a missing one.
    """
    base, colon, argument = name.partition(":")
    known = base in plugins.names("models")
    if colon and not (known and plugins.load("models", base).named):
        return None
    plugin: plugins.Model = plugins.load("models", base)
    if plugin.named and not argument:
        raise UsageError(
            f"model {plugins.clip(name)!r}: a name is missing; write {base}:NAME, such as {plugin.named}"
        )
    return plugin, argument or None


def check_model(case: Case) -> None:
    """Raise UsageError for an unknown model, for options that it does not have and for those that do not go together.

    A user's own model is not looked at.
    """
    found = model_plugin(case.model)
    if found is None:
        return
    plugin, _ = found
    given = {k: v for k, v in case.model_args.items() if k in plugin.options or not plugin.open_options}
    check_options("models", case.model, given, plugin.options)
    plugin.check(case)


def built_first(case: Case) -> bool:
    """Whether what the model brings is known only once it has been built: the user's own, and those by name."""
    found = model_plugin(case.model)
    return found is None or bool(found[0].named)


def data_plugin(name: str) -> tuple[plugins.Data, str | None]:
    """The data plug-in of a case, and what follows a ':' in its name (`imagefolder:PATH`), or None.

    A plug-in takes such an argument where it has an option `path`, which the argument stands for.
    Raises UsageError for an unknown name and for an argument that nothing reads.
    """
    base, colon, argument = name.partition(":")
    plugin: plugins.Data = plugins.load("data", base)
    if colon and "path" not in plugin.options:
        raise UsageError(f"data {plugins.clip(name)!r}: {base!r} takes nothing after a ':'; write {base!r}")
    return plugin, argument or None


def _unknown(key: str, options: plugins.Options) -> str:
    allowed = ", ".join(f"{known} = {default!r}" for known, default in options.items()) or "none"
    near = difflib.get_close_matches(key, options, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown option {plugins.clip(key)!r}; allowed, with defaults: {allowed}{hint}"


def _problem(value: Any, default: Any) -> str | None:
    """What is wrong with a value, or None."""
    accepted = (int, float) if isinstance(default, float) else (type(default),)
    if isinstance(value, bool) != isinstance(default, bool) or not isinstance(value, accepted):
        return f"wrong type {type(value).__name__}, needs {type(default).__name__}"
    if isinstance(default, bool | str):
        return None
    least = 1 if isinstance(default, int) and default > 0 else min(default, 0)
    if not math.isfinite(value) or value < least:
        return f"out of range, needs at least {least}"
    return None
