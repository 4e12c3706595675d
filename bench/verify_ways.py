"""Which ways of training a study has: cells that train alike are checked once."""

from collections.abc import Iterable, Sequence

import msgspec

from bench import plugins
from bench.case import FIELDS, Case, canonical
from bench.options import data_plugin, model_plugin
from bench.records import Cell
from bench.verify_records import Way

STEPS = 3
BATCH = 4  # samples a device: a few are as telling as many
MOST_RANKS = 8  # that a short check looks at, where there are fewer to choose from
SLEEPS = {  # stand-ins sleep for a stated time, which checks nothing
    "model_args": ("forward_s_per_sample", "backward_s_per_sample", "slow_forward_s", "slow_backward_s"),
    "data_args": ("item_s", "slow_item_s"),
}
_DEFAULT = Case()
# what changes the speed and not what is computed, but for rounding: left at its default
OF_SPEED = (
    *("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "non_blocking", "threads"),
    *("cpu_binding", "page_cache", "precision", "channels_last", "compile", "link"),
)


def ways(cells: Iterable[Cell], quick: bool = False) -> tuple[Way, ...]:
    """The ways of training of cells that can run, each with the cells that it stands for.

    With `quick`, of several rank counts only one is taken, on one node and over several; one device alone, which
    is what the others are held against, is left out.
    """
    groups: dict[bytes, list[Cell]] = {}
    for cell in cells:
        if cell.skipped is None and not (quick and cell.case.devices == 1):
            groups.setdefault(_key(cell.case, quick), []).append(cell)
    return tuple(_way(group) for group in groups.values())


def plain(case: Case) -> Case:
    """The case as it is checked: a few steps of a few samples, nothing that is there for speed."""
    neutral = {name: getattr(_DEFAULT, name) for name in OF_SPEED}
    return msgspec.structs.replace(
        case,
        **neutral,
        scaling="weak",
        batch=min(case.device_batch, BATCH),
        steps=STEPS,
        model_args=_awake(case, "model"),
        data_args=_awake(case, "data"),
    )


def words(case: Case) -> str:
    """A way of training in a few words: "ddp on 2 ranks, resnet-small, sync_bn"."""
    given = [
        f"{name} {value}" if value is not True else name
        for name in FIELDS
        if name not in _TOLD and (value := getattr(case, name)) != getattr(_DEFAULT, name)
    ]
    awake = _awake(case, "model") if case.model_args else {}
    args = [f"{name} {value}" for name, value in awake.items() if name not in SLEEPS["model_args"]]
    return ", ".join([f"{case.strategy} on {_size(case)}", case.model, *args, *given])


def _size(case: Case) -> str:
    """ "2 ranks", "1 device", "2 nodes of 4 ranks"."""
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    each = f"{case.ranks} {'rank' if strategy.collective else 'device'}{'s' * (case.ranks > 1)}"
    return each if case.nodes == 1 else f"{case.nodes} nodes of {each}"


_TOLD = (
    *("strategy", "ranks", "nodes", "model", "model_args", "data", "data_args", "batch", "scaling"),
    *("steps", "timeout_s"),
)


def _awake(case: Case, kind: str) -> dict:
    """The arguments of a stand-in with every sleep at zero."""
    given = getattr(case, f"{kind}_args")
    found = model_plugin(case.model) if kind == "model" else data_plugin(case.data)
    if found is None or not found[0].stand_in:
        return given
    zeros = {name: 0.0 for name in SLEEPS[f"{kind}_args"] if name in found[0].options}
    return given | zeros


def _key(case: Case, quick: bool) -> bytes:
    """Equal for cells that train alike; where the batches come from does not count."""
    size = {"ranks": 1, "nodes": min(case.nodes, 2)} if quick else {}
    neutral = {"data": _DEFAULT.data, "data_args": {}, "batch": 1, "timeout_s": _DEFAULT.timeout_s}
    return canonical(msgspec.structs.replace(plain(case), **neutral, **size))


def _way(cells: Sequence[Cell]) -> Way:
    """Of cells that train alike: the one to run, by its samples (a user's own first, those of a loader next)."""
    fit = [cell for cell in cells if cell.case.devices <= MOST_RANKS]
    most = max(cell.case.devices for cell in fit) if fit else min(cell.case.devices for cell in cells)
    chosen = max((cell.case for cell in cells if cell.case.devices == most), key=_telling)
    case = plain(chosen)
    return Way(name=words(case), case=case, cells=tuple(cell.id for cell in cells))


def _telling(case: Case) -> tuple[bool, bool]:
    plugin: plugins.Data = data_plugin(case.data)[0]
    return case.data == "own", plugin.loader
