"""The nearest name to one that Python did not know: for messages about a user's own code."""

import contextlib
import difflib
import inspect
import re
import sys
from types import ModuleType

# Where the nearest word is another thing: by its letters this one would be get_global_rank.
MEANT = {"get_local_rank": "get_node_local_rank"}


def did_you_mean(error: BaseException) -> str:
    """`; did you mean 'device_count'?` for a misspelt name of a module or argument of torch, else an empty text."""
    if "id you mean" in str(error):  # Python says it itself, for arguments from 3.13 on
        return ""
    wrong, known = _attribute(error) if isinstance(error, AttributeError) else _argument(str(error))
    meant = MEANT.get(wrong)
    near = [meant] if meant in known else difflib.get_close_matches(wrong, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]!r}?" if near else ""


def _attribute(error: AttributeError) -> tuple[str, list[str]]:
    """The name that was looked for, and the public ones of the module that lacks it."""
    known = dir(error.obj) if isinstance(error.obj, ModuleType) else []
    return error.name or "", [name for name in known if not name.startswith("_")]


def _argument(text: str) -> tuple[str, list[str]]:
    """The keyword that was not taken, and those that torch's class or function of this name takes."""
    found = re.search(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'", text)
    if found is None:
        return "", []
    name, wrong = found.groups()
    for path, module in list(sys.modules.items()):
        made = getattr(module, "__dict__", {}).get(name) if path.partition(".")[0] == "torch" else None
        if inspect.isclass(made) or inspect.isfunction(made):
            with contextlib.suppress(ValueError, TypeError):  # written in C: its arguments are not known
                return wrong, list(inspect.signature(made).parameters)
    return wrong, []
