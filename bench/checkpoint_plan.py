"""Which strategies save on this host, what each of them saves, and in which ways each of them loads it."""

from collections.abc import Iterator, Sequence

import msgspec

from bench import plugins
from bench.case import Case
from bench.checkpoint_records import (
    AS_IT_IS,
    BY_DEFAULT,
    CUT,
    MAPS,
    TYPICAL,
    CheckpointRow,
    File,
    Load,
    MapLocation,
    Save,
)
from bench.errors import UsageError
from bench.machine import Host, slots
from bench.suite import Suite, override

TIMEOUT_S = 600.0  # of a launch: it loads every file in every way
OWN = (
    "strategy",
    "ranks",
    "nodes",
    "scaling",
    "data",
    "compile",
    "link",
)  # axes that this benchmark sets itself


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint on the disk: the row that tells of it, and its files, in order of rank."""

    id: str
    row: CheckpointRow
    files: tuple[File, ...]


def suites(host: Host, sets: Sequence[str], nproc: int | None, nodes: int, quick: bool) -> list[Suite]:
    """The strategies that save, and load, on this host, each as a suite of one case.

    Raises UsageError for an axis that is not the user's to set here, or one with several values.
    """
    most = nproc or min(2, slots(host))
    ways: list[tuple[str, int, int]] = [("single", 1, 1)]
    if most > 1 and not quick:
        ways.append(("dp", most, 1))
    ways.append(("ddp", most, 1))
    if most > 1 and not quick:
        ways.append(("fsdp", most, 1))
    if nodes > 1:
        ways.append(("ddp", 1, nodes))
    found = []
    for strategy, ranks, count in ways:
        case = {
            "strategy": strategy,
            "ranks": ranks,
            "nodes": count,
            "data": "device",
            "timeout_s": TIMEOUT_S,
        }
        one = override(Suite(name="checkpoint", case=case), sets)
        for axis in (*one.matrix, *(axis for axis in OWN if one.case.get(axis) != case.get(axis))):
            raise UsageError(
                f"--set {axis}: checkpoint sets strategies, ranks and data itself, and takes one value of each other"
                " axis: --set model=NAME, --set batch=8"
            )
        found.append(one)
    return found


def saves_of(name: str, case: Case, first: bool) -> tuple[Save, ...]:
    """What a strategy saves; the `first` one also makes what stands in for files from elsewhere."""
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    if strategy.sharded:  # torch.save would write one rank's part
        return (Save(id=f"{name}.dcp", format="dcp", writer="every rank"),)
    several = strategy.collective and case.devices > 1
    found = [Save(id=f"{name}.state", format="state_dict"), Save(id=f"{name}.model", format="model")]
    if several:
        found.append(Save(id=f"{name}.state-each", format="state_dict", writer="every rank"))
        found.append(Save(id=f"{name}.model-each", format="model", writer="every rank"))
    found.append(Save(id=f"{name}.dcp", format="dcp", writer="every rank" if several else "rank 0"))
    if first:
        found.append(Save(id=f"{name}.elsewhere", format="state_dict", made="location tag"))
        found.append(Save(id=f"{name}.cut", format="state_dict", made="cut short"))
    return tuple(found)


def loads_of(saved: Sequence[Saved], case: Case, repeats: int) -> list[tuple[Load, Saved]]:
    """Every way in which a strategy loads what was saved; those that stand for all are repeated, and read cold too."""
    strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
    found = []
    for one in saved:
        for kind, way in _ways(one, strategy):
            load = Load(
                id=f"{one.id}/{way}",
                format=one.row.format,
                files=one.files,
                way=way,
                map_location=kind,
                repeats=repeats if way in TYPICAL else 1,
                cold=way in TYPICAL,
                default_weights_only=way == BY_DEFAULT or one.row.format != "model",
                fix_prefix=way != AS_IT_IS,
            )
            found.append((load, one))
    return found


def _ways(saved: Saved, loader: plugins.Strategy) -> Iterator[tuple[MapLocation, str]]:
    """Kinds of map_location, each with the name of the way: the mistakes are ways of their own."""
    form = saved.row.format
    if form == "dcp":
        yield "in place", "in place"
    elif loader.sharded:  # it has parts of tensors, and torch.load gives whole ones
        return
    elif saved.row.made == "cut short":
        yield "cpu", CUT
    else:
        for kind in MAPS:
            yield kind, kind
        if form == "model":
            yield "cpu", BY_DEFAULT
        elif not saved.row.made:
            yield "cpu", AS_IT_IS
