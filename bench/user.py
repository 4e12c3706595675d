"""A user's own model and data set: found, called and checked, with one line for what is wrong.

The classes and functions here load torch only when a workload is built.
"""

import importlib
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench import plugins
from bench.case import Case
from bench.errors import UsageError
from bench.failures import HOPELESS, REMEDIES, classify
from bench.options import check_model, check_options, model_plugin, option
from bench.spelling import did_you_mean

if TYPE_CHECKING:
    from bench.workload import Sample, Workload

VISIBLE = "CUDA_VISIBLE_DEVICES"
FORM = "package.module:factory, such as examples.my_training:build"


def workload(case: Case) -> "Workload":
    """The workload of a case: one of the models here, or what the user's factory returns.

    Raises UsageError for an unknown model, for options it does not have, and for a factory that fails.
    """
    found = model_plugin(case.model)
    if found is None:
        return load_factory(case.model)(case)
    check_model(case)
    plugin, name = found
    if name is None:
        return plugin.build(case)
    return _called(plugin.build, case, f"model {plugins.clip(case.model)!r}", "building it")


def load_factory(spec: str) -> "Callable[[Case], Workload]":
    """The factory `package.module:factory`, imported with the working directory last on the path.

    What it returns takes a Case and returns a checked Workload; a bare nn.Module is taken for a classifier
    trained with cross entropy and SGD. Both raise UsageError, one line, for what the user can correct.
    """
    where = f"model {plugins.clip(spec)!r}"
    module_name, _, name = spec.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        dotted = module_name.removesuffix(".py").strip("/").replace("/", ".")
        hint = f"; write {dotted}:{name}" if "/" in spec or ".py:" in spec else ""
        raise UsageError(f"{where}: a model of your own is named {FORM}{hint}")
    with _same_devices(where, f"importing {module_name}"):
        module = _import(module_name, where)
    if not hasattr(module, name):
        raise UsageError(f"{where}: {_file(module)} has no {name!r}; a function of the Case is needed there")
    factory = getattr(module, name)
    if not callable(factory):
        raise UsageError(f"{where}: {name} is a {type(factory).__name__}; a function of the Case is needed")

    def build(case: Case) -> "Workload":
        with _same_devices(where, "the factory"):
            made = _called(factory, case, where)
        return _checked(made, case, where)

    return build


def check_picklable(made: "Workload", where: str = "workload") -> None:
    """Raise UsageError, naming the attribute, where the data set or collate function cannot be pickled.

    Loader workers get both by pickle wherever processes are not forked. Contents of tensors and arrays are
    not copied for the check.
    """
    for name, value in (("dataset", made.dataset), ("collate", made.collate)):
        error = _pickle_error(value)
        if error is not None:
            raise UsageError(
                f"{where}: {_culprit(name, value)} cannot be pickled, as loader workers need "
                f"({_told(error)}): define it at the top level of a module, open files on first use"
            )


@contextmanager
def _same_devices(where: str, what: str) -> Iterator[None]:
    """Raise UsageError for code that sets CUDA_VISIBLE_DEVICES: it would have no effect, and look as if it had."""
    before = os.environ.get(VISIBLE)
    yield
    after = os.environ.get(VISIBLE)
    if after != before:
        raise UsageError(
            f"{where}: {what} set {VISIBLE} to {after!r}: CUDA reads it once, when it starts, and a rank has"
            " its device by then; set it in the shell, or use --devices"
        )


def _import(name: str, where: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)  # last: a user's folder named like one of ours, or of torch's, must not win
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            raise UsageError(f"{where}: importing {name} raised {_told(error)}") from error
    parent = sys.modules.get(missing.rpartition(".")[0])
    found = f"; {parent.__name__!r} is {_file(parent)}" if parent else ""
    raise UsageError(f"{where}: no module {missing!r} on the Python path or in {folder}{found}")


def _file(module: ModuleType) -> str:
    places = [module.__file__] if getattr(module, "__file__", None) else getattr(module, "__path__", [])
    return str(next(iter(places), module.__name__))


def _called(factory: Callable[[Case], Any], case: Case, where: str, what: str = "the factory") -> Any:
    import torch

    process = os.getpid()
    try:
        made = factory(case)
        if os.getpid() != process:  # it forked, and this is the child: two would train as one rank
            print(
                f"{where}: {what} forked, and the child came back: it ends here", file=sys.stderr, flush=True
            )
            os._exit(1)
        return made
    except (UsageError, MemoryError, torch.OutOfMemoryError):
        raise  # already one line; or a matter of the host, which the launch record names
    except (Exception, SystemExit) as error:
        raise UsageError(f"{where}: {what} raised {_told(error)}") from error


def _checked(made: Any, case: Case, where: str) -> "Workload":
    """What a factory returned, as a Workload whose parts are what they must be."""
    from torch import nn
    from torch.utils.data import IterableDataset

    from bench.workload import Workload

    if isinstance(made, nn.Module):
        made = Workload(made)
    if not isinstance(made, Workload):
        kind = type(made).__name__
        raise UsageError(f"{where}: the factory returned a {kind}; return an nn.Module or a Workload")
    if not isinstance(made.model, nn.Module):
        raise UsageError(f"{where}: Workload.model is a {type(made.model).__name__}, not an nn.Module")
    for name in ("loss", "optimizer", "samples"):
        if not callable(getattr(made, name)):
            raise UsageError(
                f"{where}: Workload.{name} is a {type(getattr(made, name)).__name__}, no function"
            )
    if made.dataset is not None:
        if isinstance(made.dataset, IterableDataset) or not (
            hasattr(made.dataset, "__len__") and hasattr(made.dataset, "__getitem__")
        ):
            raise UsageError(
                f"{where}: dataset is a {type(made.dataset).__name__}; ranks share a data set by index, so a"
                " map-style one is needed (__len__ and __getitem__)"
            )
        return made
    return made if made.sample is not None else replace(made, sample=_image_sample(made.model, case))


def _image_sample(model: Any, case: Case) -> "Sample":
    """Without a data set and a sample: square images, as most classifiers take them.

    Sized by the case's `image_size` (224) and `classes` (outputs of the model's last linear layer, or 1000).
    """
    from torch import nn

    from bench.workload import Sample

    outputs = [module.out_features for module in model.modules() if isinstance(module, nn.Linear)]
    assumed = {"image_size": 224, "classes": outputs[-1] if outputs else 1000}
    given = {key: value for key, value in case.model_args.items() if key in assumed}
    check_options("models", case.model, given, assumed)
    size, classes = (option(given, assumed, key) for key in assumed)
    return Sample((3, size, size), classes)


def _told(error: BaseException) -> str:
    """An exception in one line, with the user's line that it came from, and what to do where that is known."""
    text = re.sub(r"(?<!\.)\.$", "", plugins.clip(" ".join(str(error).split()), 160))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(os.getcwd())]
    own = [f for f in frames if not f.filename.startswith((os.path.dirname(__file__), sys.prefix))]
    place = f", {os.path.relpath(own[-1].filename)}:{own[-1].lineno}" if own else ""
    reason = classify(type(error).__name__, str(error))
    advice = did_you_mean(error) or (f"; {REMEDIES[reason]}" if reason in HOPELESS else "")
    return f"{type(error).__name__}: {text}{place}{advice}"


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


def _pickle_error(value: Any) -> Exception | None:
    import torch

    class Pickler(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            return (int, ()) if isinstance(obj, torch.Tensor) else NotImplemented

    try:
        Pickler(_Nowhere(), protocol=5, buffer_callback=lambda buffer: None).dump(value)
    except Exception as error:  # noqa: BLE001 - pickling runs the user's code
        return error
    return None


def _culprit(path: str, value: Any, seen: tuple[int, ...] = ()) -> str:
    """The innermost attribute or element below `path` that cannot be pickled."""
    if isinstance(value, list | tuple):
        parts = {f"{path}[{i}]": part for i, part in enumerate(value)}
    elif isinstance(value, dict):
        parts = {f"{path}[{key!r}]": part for key, part in value.items()}
    else:
        parts = {f"{path}.{key}": part for key, part in getattr(value, "__dict__", {}).items()}
    seen = (*seen, id(value))
    for inner, part in parts.items():
        if id(part) not in seen and _pickle_error(part) is not None:
            return _culprit(inner, part, seen)
    return path
