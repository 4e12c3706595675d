"""One file a plug-in: names come from a folder listing, code is imported only when it is used."""

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import UsageError

if TYPE_CHECKING:  # plug-ins load without torch; these are types only
    import torch
    from matplotlib.figure import Figure as Canvas
    from torch.utils.data import Dataset

    from bench.answers import Analysis
    from bench.case import Case
    from bench.compared import Allocation
    from bench.launchers._job import Job
    from bench.store import Store
    from bench.workload import Sample, Workload

Options = Mapping[str, "float | int | str | bool"]
Row = dict[str, Any]

KINDS = {
    "strategies": "how a model is spread over devices",
    "models": "what is trained",
    "data": "where batches come from",
    "samplers": "what is measured beside the ranks",
    "suites": "named sets of cells",
    "figures": "pictures in the report",
    "exporters": "formats that a study is written in for other programs",
    "importers": "files of other programs that can be compared",
    "launchers": "how the command comes to several nodes",
    "verbs": "commands of scalemark",
}


@dataclass(frozen=True)
class Strategy:
    """How one model is spread over devices.

    `wrap(model, case, place)` returns the module to train. `single_process` strategies drive all
    their devices from one rank. `reference_on_cpu` says that a stand-in runs where torch's own
    implementation does not. `optimizer(make, parameters)` makes the optimizer where the strategy has a
    word in it; `make(parameters)` is the workload's own. `sharded`: a rank holds a part of each parameter. `compiles`: `wrap` applies torch.compile itself, to
    parts of the model; else it gets a compiled one. `wrappers` are the class names that the trained
    module may have: any other is noticed.
    """

    summary: str
    wrap: "Callable[[torch.nn.Module, Case, Any], torch.nn.Module]"
    single_process: bool = False
    collective: bool = False
    one_device: bool = False
    reference_on_cpu: bool = False
    ddp_options: bool = False
    compiles: bool = False
    sharded: bool = False
    optimizer: "Callable[[Any, Any], torch.optim.Optimizer] | None" = None
    wrappers: tuple[str, ...] = ()

    def processes(self, case: "Case") -> int:
        """Ranks on a node: one where a single process drives every device."""
        return case.ranks if self.collective else 1


@dataclass(frozen=True)
class Model:
    """What is trained. `build(case)` imports torch itself; `options` are the legal `model_args`.

    `check(case)`, without torch, raises UsageError for options that do not go together.
    `image` and `tokens` say what a sample is. A plug-in with a `named` example takes a name after a ':', as
    in `timm:resnet50`; what such a model brings is found by building it once. With `open_options` it has
    options beside `options`, which `build` checks itself.
    """

    summary: str
    build: "Callable[[Case], Workload]"
    options: Options = field(default_factory=dict)
    check: "Callable[[Case], None]" = lambda case: None
    image: bool = False
    tokens: bool = False
    named: str = ""
    open_options: bool = False
    batch_norm: bool = False
    stand_in: bool = False


@dataclass(frozen=True)
class Data:
    """Where batches come from.

    `make(case, sample)` returns a map-style dataset whose items the default collate understands.
    `length(case)` is known without torch, or None (it is then found before the study starts).
    `prepare(case)`, without torch, makes what takes long the first time; it is called before the study.
    `loader` is False where no DataLoader is involved (a batch that lies on the device already). `image` and
    `tokens` say that it is for models of images or of token ids alone. `reads_files`: its data set has their
    paths in `files`, and puts each out of the page cache again once read where the case has a cold one.
    """

    summary: str
    make: "Callable[[Case, Sample], Dataset[Any]]"
    options: Options = field(default_factory=dict)
    length: "Callable[[Case], int | None]" = lambda case: None
    prepare: "Callable[[Case], Any]" = lambda case: None
    loader: bool = True
    image: bool = False
    tokens: bool = False
    reads_files: bool = False
    stand_in: bool = False


@dataclass(frozen=True)
class Figure:
    """One picture of the report, under the question that it answers.

    `frame(analysis)` gives its rows, which are its CSV and its table too: the same keys in every row,
    units in the keys, None where nothing was measured. `draw(rows, canvas)` draws at least one row on an
    empty matplotlib figure. `nothing(analysis)` says why there are no rows; `note(rows)` says what the
    picture leaves out. Pictures stand in the report by `order`; an `optional` one is left out without rows.
    """

    question: str
    how_to_read: str
    frame: "Callable[[Analysis], list[Row]]"
    draw: "Callable[[list[Row], Canvas], None]"
    nothing: "Callable[[Analysis], str]"
    order: int
    note: "Callable[[list[Row]], str | None]" = lambda rows: None
    half: bool = False  # half a page wide
    optional: bool = False


@dataclass(frozen=True)
class Exporter:
    """One format that studies are written in.

    `files(stores, steps)` gives every file's bytes by its name, which ends in `suffix`; with `steps` also a
    row a recorded step, where the format has `tables`. It raises UsageError where there is nothing to write.
    """

    summary: str
    suffix: str
    files: "Callable[[Sequence[Store], bool], dict[str, bytes]]"
    tables: bool = True


@dataclass(frozen=True)
class Importer:
    """One format of another program whose results can be compared.

    `read(path)` gives a file as an allocation; `suffix` is how such files end. It raises UsageError for a file
    that cannot be read or is no such file.
    """

    summary: str
    suffix: str
    read: "Callable[[Path], Allocation]"


@dataclass(frozen=True)
class Launcher:
    """One way to start the same command on every node.

    `job` is the struct of what it is told: `launchers._job.Job`, or one below it with settings of its own, all
    of which have defaults. `text(job)` is what a person can read, edit and start: lines for a shell, a batch
    script, a manifest. Equal jobs give equal texts.
    """

    summary: str
    job: "type[Job]"
    text: "Callable[[Any], str]"


@cache
def names(kind: str) -> tuple[str, ...]:
    """Names of the plug-ins of a kind, sorted, from file names alone."""
    folder = Path(__file__).parent / kind
    if kind == "suites":
        return tuple(sorted(path.stem for path in folder.glob("*.toml")))
    modules = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return tuple(sorted(name.replace("_", "-") for name in modules if not name.startswith("_")))


def load(kind: str, name: str) -> Any:
    """The PLUGIN of a named file.

    Raises UsageError naming the known names, and the nearest one, for a name that is not there.
    """
    check_name(kind, name)
    module = importlib.import_module(f"bench.{kind}.{name.replace('-', '_')}")
    return module.PLUGIN


def check_name(kind: str, name: str, where: str = "") -> None:
    """Raise UsageError unless `name` is a plug-in of this kind."""
    if name not in names(kind):
        raise UsageError(unknown(f"{where}{kind}", name, names(kind)))


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """One line for a name that is not known: what was said, what is allowed, the nearest."""
    known = list(known)
    lower = {word.lower(): word for word in reversed(known)}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"; did you mean {lower[near[0]]!r}?" if near else ""
    return f"{what}: unknown name {clip(name)!r}; known: {', '.join(known)}{hint}"


def clip(text: str, length: int = 80) -> str:
    """Text short enough to stand in one line, control characters replaced."""
    plain = "".join(ch if ch.isprintable() else "?" for ch in text)
    return plain if len(plain) <= length else plain[: length - 1] + "…"
