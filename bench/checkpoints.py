"""Checkpoints as a benchmark: launches that save under each strategy, then launches that load what was saved."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from bench import launch as launching
from bench import plugins, temporary
from bench.case import Case
from bench.checkpoint_plan import Saved, loads_of, saves_of
from bench.checkpoint_records import Checkpointing, Save
from bench.checkpoint_rows import append, attempts, load_row, save_row, saved_files
from bench.errors import UsageError
from bench.joint import ordinals
from bench.launch import Engine, EngineLost, Progress, Result
from bench.machine import Host, device_kind
from bench.nodes import Team
from bench.plan import Plan
from bench.records import Cell, Launch
from bench.store import Store
from bench.study import signals

REPEATS, LOADS = 5, 3  # of each save, and of each way of loading that stands for the others
FOLDER = "checkpoints"  # of a study, while it runs


class Bench:
    """One run: every strategy saves, then every strategy loads. The caller holds the store's lock."""

    def __init__(
        self, plan: Plan, store: Store, host: Host, folder: Path, quick: bool, say: Callable[[str], None],
        team: Team | None = None,
    ) -> None:  # fmt: skip
        self._plan, self._store, self._host, self._folder = plan, store, host, folder
        self._say, self._team = say, team
        self._repeats = 1 if quick else REPEATS
        self._saved: list[Saved] = []

    def run(self) -> None:
        """Raises Interrupted for a signal; the rows of finished launches are on disk."""
        temporary.sweep()
        self._store.root.joinpath("logs").mkdir(exist_ok=True)
        with signals(), Engine(self._store.root / "logs" / "engine-b00.log") as engine:
            if self._team is not None:
                self._team.block(0)
                with suppress(EngineLost):  # the first launch tells why
                    engine.ready()
                self._team.clocks()
            for number, cell in enumerate(self._plan.runnable):
                self._save(engine, cell, number)
            for cell in self._plan.runnable:
                self._load(engine, cell)

    def _save(self, engine: Engine, cell: Cell, number: int) -> None:
        name = f"{number}-{cell.case.strategy}"
        saves = saves_of(name, cell.case, first=number == 0)
        job = Checkpointing(folder=str(self._folder), name=name, repeats=self._repeats, saves=saves)
        self._say(f"saving under {_way(cell.case)}")
        result = self._launch(engine, cell.case, f"save-{name}", job)
        rows = []
        for save in saves:
            ranks = attempts(result.traces, save.id, self._ranks(cell.case))
            row = save_row(save, cell.case, ranks, _why(result), self._stand_in(cell.case, save))
            if not save.made or row.outcome != "ok":
                rows.append(row)
            if row.outcome == "ok":
                self._saved.append(Saved(save.id, row, saved_files(ranks)))
        append(self._store.root, rows)

    def _load(self, engine: Engine, cell: Cell) -> None:
        ways = loads_of(self._saved, cell.case, min(LOADS, self._repeats))
        if not ways:
            return
        name = f"{cell.case.strategy}-{cell.case.ranks}x{cell.case.nodes}"
        loads = tuple(load for load, _ in ways)
        job = Checkpointing(folder=str(self._folder), name=name, loads=loads)
        self._say(f"loading into {_way(cell.case)}: {len(loads)} ways")
        result = self._launch(engine, cell.case, f"load-{name}", job)
        kind = device_kind(self._host)
        here = "cpu" if kind == "cpu" else f"{kind}:{(self._plan.devices or (0,))[0]}"
        rows = [
            load_row(
                load, saved.row, cell.case, attempts(result.traces, load.id, self._ranks(cell.case)), here,
                _why(result), saved.row.stand_in or self._stand_in(cell.case),
            )
            for load, saved in ways
        ]  # fmt: skip
        append(self._store.root, rows)

    def _launch(self, engine: Engine, case: Case, name: str, job: Checkpointing) -> Result:
        """One launch of the task, on this node or on all."""
        with temporary.folder() as scratch:
            several = self._team is not None and case.nodes > 1
            launch = Launch(
                launch=name,
                case=case,
                task="checkpoint",
                scratch=str(scratch),
                logs=str(self._store.log_dir(name).resolve()),
                conductor_pid=os.getpid(),
                device_kind=device_kind(self._host),
                devices=ordinals(self._plan.devices, case, self._host, self._plan.box),
                store=self._team.store if self._team is not None and several else None,
                interface=self._team.interface if self._team is not None and several else None,
                checkpointing=job,
            )
            processes = plugins.load("strategies", case.strategy).processes(case)
            if self._team is not None and several:
                return self._team.run(engine, launch, processes, _quiet)[0]
            return launching.run(engine, launch, processes, _quiet)

    def _ranks(self, case: Case) -> int:
        return int(plugins.load("strategies", case.strategy).processes(case)) * case.nodes

    def _stand_in(self, case: Case, save: Save | None = None) -> str:
        """What is not the real thing in a row."""
        if save is not None and save.made == "location tag":
            return "a file of this host whose tensors carry the tag of a device that is not here"
        strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
        on_cpu = device_kind(self._host) == "cpu"
        return "reference DataParallel" if on_cpu and strategy.reference_on_cpu else ""


@contextmanager
def place(store: Store, elsewhere: Path | None, keep: bool) -> Iterator[Path]:
    """A new folder for the files, this user's alone; gone afterwards unless it is to be kept.

    Raises UsageError where it cannot be made.
    """
    above = elsewhere if elsewhere is not None else store.root
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = above.resolve() / (FOLDER if elsewhere is None else f"scalemark-{FOLDER}-{stamp}-{os.getpid()}")
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"{folder}: no checkpoint can be written there ({error.strerror}); name another folder by --to"
        ) from None
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _way(case: Case) -> str:
    ranks = f" on {case.devices} ranks" if case.devices > 1 else ""
    return f"{case.strategy}{ranks}" + (f" of {case.nodes} nodes" if case.nodes > 1 else "")


def _why(result: Result) -> str:
    failure = result.failure
    return f"{failure.reason}: {failure.detail}" if failure is not None else ""


def _quiet(_: Progress) -> None:
    pass
