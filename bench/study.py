"""The conductor: randomised complete blocks of launches, one record each, until the intervals are narrow.

Each block runs every cell that is still open once, in a random order, with an engine and a fork server
of its own. A cell closes when its interval is as narrow as wanted, at the cap, or when it keeps failing.
"""

import itertools
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench import launch as launching
from bench import link, plugins, summary, temporary
from bench.case import Case
from bench.joint import ordinals
from bench.launch import Engine, EngineLost, Progress, Result
from bench.machine import Host, device_kind, unwatched, watched_uuids
from bench.netns import Box
from bench.nodes import Team
from bench.parts import merged
from bench.plan import Plan
from bench.recording import Recorder
from bench.records import Cell, Launch, LaunchRecord, Part
from bench.stopping import Rules, Stopping
from bench.store import Store
from bench.telemetry import Recording, Telemetry, write_parquet


class Show(Protocol):
    """What is told while a study runs."""

    def block(self, block: int, cells: int) -> None:
        """A block of so many launches begins."""

    def launching(self, cell: Cell, block: int) -> None:
        """A launch begins."""

    def progress(self, progress: Progress) -> None:
        """The running launch has come this far."""

    def landed(self, record: LaunchRecord, left_s: float | None) -> None:
        """A launch has its record; about so many seconds are left."""

    def say(self, text: str) -> None:
        """Anything else, in one line."""


class Interrupted(Exception):
    """A signal asked the study to stop; everything measured is on disk."""


class FailedFast(Exception):
    """A cell failed, and the study was to stop at the first failure."""


class Study:
    """One run over a plan. `run()` returns when every cell has closed or the time is up."""

    def __init__(
        self, plan: Plan, store: Store, host: Host, rules: Rules, show: Show, team: Team | None = None,
        box: Box | None = None,
    ) -> None:  # fmt: skip
        """`team` are its nodes, where there are several; `box` has the links between them, where it can shape them."""
        self._plan, self._store, self._rules, self._show = plan, store, rules, show
        self._host, self._team, self._box = host, team, box
        self._link: str | None = None
        self._stopping = Stopping(plan, rules)
        self._recorder = Recorder(plan, host, team)
        self._traced: set[str] = set()  # cells

    def run(self) -> None:
        """Run blocks. Raises Interrupted for SIGINT, SIGTERM or SIGHUP, with the running launch recorded.

        The caller holds the store's lock.
        """
        temporary.sweep()
        with signals():
            self._stopping.resume(self._store.records()[0])
            for block in itertools.count(self._stopping.first_block):
                if not self._stopping.open_cells(block, lambda case: True):
                    break
                if self._team is not None:
                    self._team.admit()
                cells = self._stopping.open_cells(block, self._fits)
                if cells and not self._stopping.time_for(cells, block):
                    fitting = self._stopping.widest(cells)
                    self._show.say(self._stopping.out_of_time(cells, fitting))
                    if not fitting:
                        break
                    cells = fitting
                if not cells or not self._block(block, cells):
                    break  # what is open waits for lost nodes
            if self._rules.max_launches > 1:
                self._show.say(self._stopping.summed_up())

    def led(self, orders: Iterable[tuple[int, Iterable[tuple[int, Cell]]]]) -> None:
        """Run what another conductor asks for, as it asks: blocks, and their cells with the order of each.

        Raises Interrupted as `run` does. The caller holds the store's lock.
        """
        temporary.sweep()
        with signals():
            self._stopping.resume(self._store.records()[0])
            for block, cells in orders:
                self._store.root.joinpath("logs").mkdir(exist_ok=True)
                with Engine(self._store.root / "logs" / f"engine-b{block:02d}.log") as engine:
                    with suppress(EngineLost):  # the first launch tells why
                        engine.ready()
                    for order, cell in cells:
                        record = self._landed(engine, cell, block, order)
                        if self._stopping.repeats(record):  # at once: its pair is beside it
                            self._landed(engine, cell, block, order, record)

    def _landed(
        self, engine: Engine, cell: Cell, block: int, order: int, first: LaunchRecord | None = None
    ) -> LaunchRecord:
        record = self._launch(engine, cell, block, order, first)
        self._stopping.take(record)
        self._show.landed(record, None)
        if record.status == "interrupted":
            raise Interrupted
        return record

    def _fits(self, case: Case) -> bool:
        """Whether there are nodes enough: cells that need a lost one wait for it, or for --resume."""
        return case.nodes == 1 or (self._team is not None and case.nodes <= len(self._team.alive))

    def _block(self, block: int, cells: Sequence[Cell]) -> bool:
        """Run a block; False where no cell had nodes enough any more."""
        ran = False
        self._show.block(block, len(cells))
        self._store.root.joinpath("logs").mkdir(exist_ok=True)
        with Engine(self._store.root / "logs" / f"engine-b{block:02d}.log") as engine:
            if self._team is not None and any(cell.case.nodes > 1 for cell in cells):
                self._team.block(block)
                with suppress(EngineLost):  # the first launch tells why
                    engine.ready()
                self._team.clocks()
            asked: list[tuple[Cell, LaunchRecord | None]] = [(cell, None) for cell in cells]
            for order, (cell, first) in enumerate(
                asked
            ):  # disqualified launches come again, after all others
                if not self._fits(cell.case) or (first is not None and not self._stopping.repeats(first)):
                    continue
                ran = True
                self._show.launching(cell, block)
                record = self._launch(engine, cell, block, order, first)
                self._stopping.take(record)
                if self._stopping.repeats(record):
                    asked.append((cell, record))
                left = self._stopping.left_s([cell for cell, _ in asked[order + 1 :]])
                self._show.landed(record, left)
                if record.status == "interrupted":
                    raise Interrupted
                if self._rules.fail_fast and record.status != "ok":
                    raise FailedFast
        return ran

    def _launch(
        self, engine: Engine, cell: Cell, block: int, order: int, first: LaunchRecord | None = None
    ) -> LaunchRecord:
        """One launch and its record, on disk when this returns; `first` is the disqualified one that it replaces."""
        name = self._name(cell, block)
        began = time.monotonic()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        strategy: plugins.Strategy = plugins.load("strategies", cell.case.strategy)
        processes = strategy.processes(cell.case)
        telemetry, recording, result = None, None, None
        others: list[Part] = []
        interrupted = False
        with temporary.folder() as scratch:
            pids = scratch / "pids"
            telemetry = Telemetry(
                engine.pgid,
                rank_pids=pids,
                device_uuids=watched_uuids(self._host),
                device_reason=unwatched(self._host),
            ).start()
            try:
                launch = self._describe(cell, name, str(scratch))
                if self._team is not None and cell.case.nodes > 1:
                    self._shape(cell.case)
                    result, others = self._team.run(engine, launch, processes, self._show.progress, pids)
                else:
                    result = launching.run(engine, launch, processes, self._show.progress, pids)
            except KeyboardInterrupt:
                interrupted = True
                engine.kill()
            finally:
                recording = _all_nodes(telemetry.stop(), others)
        record = self._recorder.record(cell, name, block, order, result, recording, processes)
        record = msgspec.structs.replace(
            record,
            started_at=started_at,
            wall_s=time.monotonic() - began,
            retry_of=first.launch if first else None,
            run=self._stopping.run,
            **(
                {"status": "interrupted", "reason": "interrupted", "detail": "stopped by a signal"}
                if interrupted
                else {}
            ),
        )
        record = summary.with_overhead(record, result.traces if result else ())
        if record.status != "ok":
            self._traced.discard(cell.id)  # the next launch may get as far as that
        self._store.append(record)
        self._keep(name, result, recording, others)
        return record

    def _shape(self, case: Case) -> None:
        """Give the links between the nodes of one box the rate that the case asks for."""
        if self._box is not None and case.link != self._link:
            self._box.shape(link.parse(case.link) if case.link else None)
            self._link = case.link

    def _describe(self, cell: Cell, name: str, scratch: str) -> Launch:
        return Launch(
            launch=name,
            case=cell.case,
            scratch=scratch,
            logs=str(self._store.log_dir(name).resolve()),
            conductor_pid=os.getpid(),
            device_kind=device_kind(self._host),
            devices=ordinals(self._plan.devices, cell.case, self._host, self._recorder.shared),
            oversubscribed=self._recorder.oversubscribed(cell.case),
            traces=self._trace_folder(cell, name),
            store=self._team.store if self._team is not None and cell.case.nodes > 1 else None,
            interface=self._team.interface if self._team is not None and cell.case.nodes > 1 else None,
            probe_network=self._probe_network(cell),
        )

    def _probe_network(self, cell: Cell) -> bool:
        """All-reduces after the window, in a cell's first launch that is not a failure: they tell what the way can carry."""
        good = any(record.status == "ok" for record in self._stopping.records.get(cell.id, ()))
        return cell.case.devices > 1 and not good

    def _trace_folder(self, cell: Cell, name: str) -> str | None:
        """Where the ranks put profiler traces: those of a cell's first launch in this run."""
        if not self._rules.trace or cell.id in self._traced:
            return None
        self._traced.add(cell.id)
        try:
            return str(self._store.trace_dir(name).resolve())
        except OSError as error:
            self._show.say(f"{name}: no traces: {error.filename}: {error.strerror}")
            return None

    def _name(self, cell: Cell, block: int) -> str:
        """b03-ddp-n2-...-hash, with r1, r2, ... where a launch is run again."""
        tries = sum(r.block == block for r in self._stopping.records.get(cell.id, ()))
        return f"b{block:02d}-{cell.id}" + (f"-r{tries}" if tries else "")

    def _keep(self, name: str, result: Result | None, recording: Recording, others: Sequence[Part]) -> None:
        """Steps, telemetry and logs of other nodes; the record, which has all the numbers, is on disk already."""
        try:
            for part in others:
                for file, data in part.files.items():
                    folder = (
                        self._store.log_dir(name) if file.endswith(".log") else self._store.trace_dir(name)
                    )
                    (folder / Path(file).name).write_bytes(data)
            if result is not None:
                self._store.write_steps(name, result.traces)
            if recording.rows["time_s"]:
                write_parquet(self._store.telemetry_path(name), recording.rows)
        except OSError as error:
            self._show.say(f"{name}: steps or telemetry could not be written ({error.strerror or error})")


def _all_nodes(own: Recording, parts: Sequence[Part]) -> Recording:
    """Telemetry of this node, and of the others that took part in a launch."""
    if not parts:
        return own
    mine = Part(node=0, readings=own.rows, reasons=own.summary.reasons)
    rows, reasons = merged([mine, *(part for part in parts if part.node != 0)])
    return Recording(rows=rows, summary=msgspec.structs.replace(own.summary, reasons=reasons))


@contextmanager
def signals() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a study as Ctrl-C does; what is ignored (nohup) stays ignored."""
    numbers = [
        n for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT) if signal.getsignal(n) != signal.SIG_IGN
    ]

    def stop(*_: Any) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # stopping takes a second and keeps what was measured
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
