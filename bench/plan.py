"""Suites, overrides and a host -> the cells to run, what is skipped and why, what does not fit the time."""

from collections.abc import Container, Sequence
from typing import Any

import msgspec

from bench import estimate, legal, suite
from bench.case import Case
from bench.errors import UsageError
from bench.estimate import Estimate
from bench.machine import Host, device_kind
from bench.options import built_first, data_plugin, model_plugin
from bench.preflight import brought_by
from bench.records import Cell

MIN_LAUNCHES = 5
MAX_LAUNCHES = 10
TARGET = 0.02
STRICT_TARGET, STRICT_LAUNCHES = 0.01, 20  # with 2 % between launches, 20 of them reach ±1 %
TWIN = "-aa"  # what the id of a repeated cell ends in
WORTH_LAUNCHES = 3  # a cell is left out if not even this many launches of it fit the time


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a run: how many, whether they share this machine, and the link between them."""

    count: int = 1
    box: bool = False
    link: str | None = None
    no_link: str | None = legal.NO_LINK
    no_delay: str | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What will run. `estimates` are by cell id; `left_out` says in words what does not run for want of time."""

    suites: tuple[str, ...]
    cells: tuple[Cell, ...]
    factors: dict[str, tuple[Any, ...]]
    estimates: dict[str, Estimate]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    oversubscribe: bool = False
    devices: tuple[int, ...] | None = None
    nodes: int = 1
    box: bool = False  # the nodes share this machine

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """The cells that are not skipped."""
        return tuple(cell for cell in self.cells if cell.skipped is None)

    def launch_s(self, cell: Cell) -> float:
        """Expected seconds of a launch, which ends at its time limit."""
        return min(self.estimates[cell.id].seconds, cell.case.timeout_s)

    def too_slow(self, cell: Cell) -> bool:
        """Whether a launch is expected to end at its time limit; such a cell runs once."""
        return self.estimates[cell.id].seconds > cell.case.timeout_s

    @property
    def block_s(self) -> float:
        """Expected seconds of the first block: every runnable cell once."""
        return estimate.BLOCK_S + sum(map(self.launch_s, self.runnable))

    def blocks_s(self, blocks: int) -> float:
        """Expected seconds of so many blocks."""
        later = [self.launch_s(cell) for cell in self.runnable if not self.too_slow(cell)]
        return self.block_s + (blocks - 1) * (estimate.BLOCK_S + sum(later) if later else 0.0)


def check_words(names: Sequence[str], sets: Sequence[str]) -> None:
    """Raise UsageError for what is wrong whatever the host: suites that are not there, axes that nobody has."""
    for name in names:
        for part in _parts(suite.load(name)):
            suite.override(part, sets)


def make_plan(
    names: Sequence[str | suite.Suite],
    host: Host,
    *,
    sets: Sequence[str] = (),
    nproc: int | None = None,
    oversubscribe: bool = False,
    devices: tuple[int, ...] | None = None,
    budget_s: float | None = None,
    team: Nodes | None = None,
    aa: bool = False,
) -> Plan:
    """Expand suites, given or by name, on this host. Raises UsageError for anything no host could run.

    `team` says which nodes there are, where it is more than this one. `aa`: the first cell that can run, which is the
    base where there is one, stands in the plan twice.
    """
    if host.torch is None:
        raise UsageError(
            f"torch cannot be imported here ({host.device_error}): make setup, or install torch 2.9 or later"
        )
    _check_devices(devices, host)
    team = team or Nodes()
    context = legal.Context(
        host=host,
        oversubscribe=oversubscribe,
        devices=devices,
        nodes=team.count,
        box=team.box,
        no_link=team.no_link,
        no_delay=team.no_delay,
    )
    named = [name if isinstance(name, suite.Suite) else suite.load(name) for name in names]
    suites = [part for one in named for part in _parts(one)]
    limit = nproc or (len(devices) if devices else None)
    tagged: dict[str, tuple[suite.Suite, Case]] = {}
    used = [suite.override(one, sets) for one in suites]
    spread = not any(suite.says(one, "nodes") for one in used)
    for one in used:
        for case in suite.expand(one, host, limit, team.count, team.link, spread):
            tagged.setdefault(case.id, (one, case))
    cells, brought = _cells(tagged, context)
    guesses = estimate.estimates([cell.case for cell in cells], host, brought)
    left_out: list[str] = []
    composite = [one for one in named if one.parts]
    if composite:
        cells, left_out = _fit(cells, guesses, budget_s, context, composite)
    cells += _twin(cells) if aa else []
    return Plan(
        suites=tuple(name.name if isinstance(name, suite.Suite) else name for name in names),
        cells=tuple(cells),
        factors=suite.factors(used, [cell.case for cell in cells]),
        estimates={cell.id: guesses[cell.case.id] for cell in cells},
        left_out=tuple(left_out),
        notes=(
            *_notes(cells, host, team),
            *_emulated(cells, host),
            *_made_up(cells, tagged),
            *_too_slow(cells, guesses),
        ),
        oversubscribe=oversubscribe,
        devices=devices,
        nodes=team.count,
        box=team.box,
    )


def _parts(one: suite.Suite) -> list[suite.Suite]:
    return [part for name in one.parts for part in _parts(suite.load(name))] if one.parts else [one]


def _cells(
    tagged: dict[str, tuple[suite.Suite, Case]], context: legal.Context
) -> tuple[list[Cell], dict[str, legal.Brought]]:
    """Every case checked, each once, and what the models bring that had to be built to know it, by cell.

    That is done once a distinct set of arguments, in a process of its own.
    """
    built: dict[str, legal.Brought] = {}
    cells: dict[str, Cell] = {}
    brought: dict[str, legal.Brought] = {}
    for one, case in tagged.values():
        legal.check(case, context)
        if built_first(case):
            key = case.model + repr(sorted(case.model_args.items()))
            if key not in built:
                built[key] = brought_by(case)
            context = msgspec.structs.replace(context, brought=built[key])
            if case.data == "own" and suite.chooses_data(one):
                case = msgspec.structs.replace(case, data=_data(case, built[key]))
            brought[case.id] = built[key]
        cell = Cell(id=case.id, case=case, suite=one.name, skipped=legal.why_not(case, context))
        cells.setdefault(case.id, cell)
    return list(cells.values()), brought


def _twin(cells: Sequence[Cell]) -> list[Cell]:
    """The first cell that can run once more: what two equal cells differ by is what the method itself makes."""
    first = next((cell for cell in cells if cell.skipped is None), None)
    return [] if first is None else [msgspec.structs.replace(first, id=first.id + TWIN, twin_of=first.id)]


def _data(case: Case, brought: legal.Brought) -> str:
    """What `auto` is for a model that had to be built: what it brings; data of its kind only for another library's."""
    if brought.has_dataset:
        return "own"
    if model_plugin(case.model) is None:
        return "synthetic"
    return "photos" if brought.image else "tokens" if brought.tokens else "synthetic"


def _fit(
    cells: list[Cell],
    guesses: dict[str, Estimate],
    budget_s: float | None,
    context: legal.Context,
    composite: Sequence[suite.Suite],
) -> tuple[list[Cell], list[str]]:
    """The cells of a suite of parts that are worth their time here, in the parts' order."""
    kept: list[Cell] = []
    left_out: list[str] = []
    spent = estimate.BLOCK_S
    for cell in cells:
        reason = _pointless(cell.case, context)
        if reason is None and any(suite.excluded(one, cell.case) for one in composite):
            reason = f"kept for: scalemark run {cell.suite}"
        seconds = min(guesses[cell.id].seconds, cell.case.timeout_s) if cell.skipped is None else 0.0
        if reason is None and kept and budget_s and (spent + seconds) * WORTH_LAUNCHES > budget_s:
            reason = f"no room beside {len(kept)} other cells: {WORTH_LAUNCHES} launches of each in {budget_s:.0f} s"
        if reason is None:
            kept.append(cell)
            spent += seconds
        else:
            left_out.append(f"{cell.suite}: {cell.id}: {reason}")
    return kept, left_out


def _pointless(case: Case, context: legal.Context) -> str | None:
    if device_kind(context.host) != "cpu":
        return None
    cpus = context.host.cpus_usable
    if case.pin_memory:
        return "pin_memory has no effect without an accelerator"
    if context.box and case.nodes > 1 and case.devices > cpus:
        return f"{case.devices} ranks on the {cpus} CPUs that the nodes of one box share: scalemark run multinode has it"
    return None


def _check_devices(devices: tuple[int, ...] | None, host: Host) -> None:
    if devices is None:
        return
    found = [device.index for device in host.devices]
    if not found:
        raise UsageError(
            f"--devices {','.join(map(str, devices))}: no accelerator here ({host.device_error or 'CPU only'})"
        )
    missing = sorted(set(devices) - set(found))
    if missing:
        raise UsageError(f"--devices: no device {missing[0]}; there are {', '.join(map(str, found))}")


def _notes(cells: Sequence[Cell], host: Host, team: Nodes) -> tuple[str, ...]:
    """What a reader should know before anything runs."""
    notes = []
    if team.box:
        notes.append(
            f"one box: {team.count} nodes are agents on this machine and share its CPUs: what they cost one another is"
            " in the numbers, the network between them is not a real one"
        )
    if device_kind(host) == "cpu":
        asked = [cell.case for cell in cells if cell.skipped is None]
        most = max((case.devices if team.box else case.ranks for case in asked), default=1)
        notes.append(
            f"no accelerator: every device slot is a CPU rank with gloo and one thread; {most} {'rank' if most == 1 else 'ranks'} on"
            f" {host.cpus_usable} usable CPUs"
            + (" cannot scale beyond the CPUs" if most > host.cpus_usable else "")
        )
    if any(data_plugin(cell.case.data)[0].stand_in or cell.case.model == "paced" for cell in cells):
        notes.append(
            "paced stand-ins sleep for a stated time instead of computing: they calibrate, they do not measure"
        )
    return tuple(notes)


def _made_up(cells: Sequence[Cell], asked: Container[str]) -> list[str]:
    """Of models whose samples are made because they bring none and the suite left it open."""
    made = [cell.case for cell in cells if cell.case.id not in asked and cell.case.data == "synthetic"]
    models = dict.fromkeys(case.model for case in made)
    return [f"{model} brings no data set: its samples are made up (data synthetic)" for model in models]


def _too_slow(cells: Sequence[Cell], guesses: dict[str, Estimate]) -> list[str]:
    """Of cells that are expected to hit their time limit, a line a limit."""
    needed: dict[float, list[float]] = {}
    for cell in cells:
        if cell.skipped is None and guesses[cell.case.id].seconds > cell.case.timeout_s:
            needed.setdefault(cell.case.timeout_s, []).append(guesses[cell.case.id].seconds)
    return [
        f"{len(some)} of {len(cells)} cells {'is' if len(some) == 1 else 'are'} expected to hit the time limit of"
        f" {limit_s:g} s a launch ({max(some):.0f} s needed): raise timeout_s, or lower steps or the batch"
        for limit_s, some in needed.items()
    ]


def _emulated(cells: Sequence[Cell], host: Host) -> list[str]:
    """Of precisions that CPU ranks only emulate."""
    if device_kind(host) != "cpu" or host.cpu_formats is None:
        return []
    asked = dict.fromkeys(cell.case.precision for cell in cells if cell.skipped is None)
    return [
        f"precision {name}: this CPU does not compute {name} in hardware: it is emulated, and may be many times slower"
        for name in asked
        if name in ("bf16", "fp16") and name not in host.cpu_formats
    ]
