"""What the adapters share: a library that may be missing or broken, and names that it may not have."""

import difflib
import importlib
import importlib.util
from collections.abc import Collection
from typing import Any

from bench.case import Case
from bench.errors import UsageError
from bench.plugins import clip


def name_of(case: Case) -> str:
    """What follows the ':' in the name of a case's model."""
    return case.model.partition(":")[2]


def library(case: Case, package: str) -> Any:
    """The imported package. Raises UsageError, one line, where it is missing or does not import."""
    where = f"model {clip(case.model)!r}"
    try:
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f"{where}: the package {package} is not installed: install the extra 'models' (in a clone:"
                " .venv/bin/pip install -e '.[models]'), or choose one of scalemark list models"
            )
        return importlib.import_module(package)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        import torch

        text = clip(" ".join(str(error).split()), 160)
        raise UsageError(
            f"{where}: importing {package} raised {type(error).__name__}: {text}: install the one that belongs to"
            f" torch {torch.__version__}"
        ) from error


def check_known(case: Case, what: str, known: Collection[str], name: str = "") -> None:
    """Raise UsageError with the nearest names for a name that a library does not have."""
    name = name or name_of(case)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise UsageError(f"model {clip(case.model)!r}: no {what} {clip(name)!r} among {len(known)}{hint}")
