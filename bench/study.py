"""The conductor: randomised complete blocks of launches, one record each, until the intervals are narrow.

Each block runs every cell that is still open once, in a random order, with an engine and a fork server
of its own. A cell closes when its interval is as narrow as wanted, at the cap, or when it keeps failing.
"""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import msgspec
import numpy as np

from bench import launch as launching
from bench import link, plugins, summary
from bench.case import Case
from bench.environment import speed_variables
from bench.estimate import BLOCK_S
from bench.failures import HOPELESS
from bench.launch import Engine, EngineLost, Progress, Result
from bench.machine import Host, device_kind, fingerprint, unwatched, watched_uuids
from bench.netns import Box
from bench.nodes import Team
from bench.parts import merged
from bench.plan import MAX_LAUNCHES, MIN_LAUNCHES, TARGET, Plan
from bench.records import Cell, Launch, LaunchRecord, Part
from bench.series import summarise
from bench.stats import mean_interval
from bench.store import Store
from bench.telemetry import Recording, Telemetry, write_parquet

MAX_FAILURES = 2  # of one cell, in a row


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


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """When to stop. `budget_s` None: no limit on the time of the study."""

    min_launches: int = MIN_LAUNCHES
    max_launches: int = MAX_LAUNCHES
    target: float = TARGET
    budget_s: float | None = None
    seed: int = 0
    fail_fast: bool = False
    trace: bool = False  # profiler traces of a few steps after the window of each cell's first launch


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
        self._fingerprint = fingerprint(host)
        self._records: dict[str, list[LaunchRecord]] = {}
        self._began = time.monotonic()
        self._walls: dict[str, float] = {}
        self._traced: set[str] = set()  # cells
        self._earlier: set[str] = set()  # launches of earlier runs: what failed then is tried again

    def run(self) -> None:
        """Run blocks. Raises Interrupted for SIGINT, SIGTERM or SIGHUP, with the running launch recorded.

        The caller holds the store's lock.
        """
        launching.sweep_scratch()
        with signals():
            for record in self._store.records()[0]:
                self._take(record)
                self._earlier.add(record.launch)
            for block in range(self._rules.max_launches):
                if self._team is not None:
                    self._team.admit()
                cells = self._open_cells(block)
                if cells and not self._time_for(cells, block):
                    self._show.say(self._out_of_time(cells))
                    break
                if cells:
                    self._block(block, cells)

    def _open_cells(self, block: int) -> list[Cell]:
        """Cells that this block still has to run, in its random order."""
        cells = [
            cell
            for cell in self._plan.runnable
            if not self._closed(cell.id) and block not in self._blocks(cell.id) and self._fits(cell.case)
        ]
        random.Random(f"{self._rules.seed}/{block}").shuffle(cells)
        return cells

    def _fits(self, case: Case) -> bool:
        """Whether there are nodes enough: cells that need a lost one wait for it, or for --resume."""
        return case.nodes == 1 or (self._team is not None and case.nodes <= len(self._team.alive))

    def _blocks(self, cell: str) -> set[int]:
        """Blocks in which a cell has a result, good or bad."""
        return {r.block for r in self._counted(cell)}

    def _counted(self, cell: str) -> list[LaunchRecord]:
        """Records that are not run again: all but the interrupted, and those that failed in an earlier run."""
        return [
            r
            for r in self._records.get(cell, ())
            if r.status == "ok" or (r.status != "interrupted" and r.launch not in self._earlier)
        ]

    def _closed(self, cell: str) -> bool:
        records = self._counted(cell)
        failed = [r for r in records[-MAX_FAILURES:] if r.status != "ok"]
        if len(failed) == MAX_FAILURES or any(r.reason in HOPELESS for r in failed):
            return True
        good = [r for r in records if r.status == "ok"]
        return len(good) >= self._rules.max_launches or self._converged(good)

    def _converged(self, good: Sequence[LaunchRecord]) -> bool:
        y = [np.log(r.window.samples_per_s) for r in good if r.window and r.window.samples_per_s]
        if len(y) < self._rules.min_launches:
            return False
        half_width = mean_interval(np.array(y)).half_width
        return half_width is not None and half_width <= self._rules.target

    def _time_for(self, cells: Sequence[Cell], block: int) -> bool:
        """Whether a whole block fits the time that is left; the first block always runs."""
        budget = self._rules.budget_s
        if budget is None or block == 0 or not self._walls:
            return True
        return time.monotonic() - self._began + self._expected_s(cells) <= budget

    def _out_of_time(self, cells: Sequence[Cell]) -> str:
        budget = f"the time budget of {self._rules.budget_s:.0f} s"
        if self._rules.budget_s is not None and time.monotonic() - self._began >= self._rules.budget_s:
            return f"{budget} is spent"
        return f"the next block (about {self._expected_s(cells):.0f} s) does not fit {budget}"

    def _expected_s(self, cells: Sequence[Cell]) -> float:
        """Seconds of a block of these cells."""
        return sum(map(self._launch_s, cells)) + BLOCK_S if cells else 0.0

    def _launch_s(self, cell: Cell) -> float:
        """What the cell took here; else what was expected, put right by what other cells of its model took."""
        if cell.id in self._walls:
            return self._walls[cell.id]
        estimate = self._plan.estimates[cell.id]
        if estimate.measured:
            return estimate.seconds
        ratios = [
            self._walls[other.id] / self._plan.estimates[other.id].seconds
            for other in self._plan.runnable
            if other.case.model == cell.case.model
            and other.id in self._walls
            and not self._plan.estimates[other.id].measured
        ]
        return min(estimate.seconds * (median(ratios) if ratios else 1.0), cell.case.timeout_s)

    def _block(self, block: int, cells: Sequence[Cell]) -> None:
        self._show.block(block, len(cells))
        self._store.root.joinpath("logs").mkdir(exist_ok=True)
        with Engine(self._store.root / "logs" / f"engine-b{block:02d}.log") as engine:
            if self._team is not None and any(cell.case.nodes > 1 for cell in cells):
                self._team.block(block)
                with suppress(EngineLost):  # the first launch tells why
                    engine.ready()
                self._team.clocks()
            for order, cell in enumerate(cells):
                if not self._fits(cell.case):
                    continue
                self._show.launching(cell, block)
                record = self._launch(engine, cell, block, order)
                self._take(record)
                left = self._left_s(block, cells[order + 1 :])
                self._show.landed(record, left)
                if record.status == "interrupted":
                    raise Interrupted
                if self._rules.fail_fast and record.status != "ok":
                    raise FailedFast

    def _launch(self, engine: Engine, cell: Cell, block: int, order: int) -> LaunchRecord:
        """One launch and its record, on disk when this returns."""
        name = self._name(cell, block)
        began = time.monotonic()
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        strategy: plugins.Strategy = plugins.load("strategies", cell.case.strategy)
        processes = strategy.processes(cell.case)
        telemetry, recording, result = None, None, None
        others: list[Part] = []
        interrupted = False
        with launching.scratch_folder() as scratch:
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
        record = self._record(cell, name, block, order, result, recording, processes)
        record = msgspec.structs.replace(
            record,
            started_at=started_at,
            wall_s=time.monotonic() - began,
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
            devices=self._devices(cell.case),
            oversubscribed=self._oversubscribed(cell.case),
            traces=self._trace_folder(cell, name),
            store=self._team.store if self._team is not None and cell.case.nodes > 1 else None,
            interface=self._team.interface if self._team is not None and cell.case.nodes > 1 else None,
            probe_network=self._probe_network(cell),
        )

    def _devices(self, case: Case) -> tuple[int, ...] | None:
        """Visible ordinals to use; None: all. The nodes of one box get theirs from what is named here."""
        if self._plan.devices is None and self._shared and case.nodes > 1 and self._host.devices:
            return tuple(device.index for device in self._host.devices)
        return self._plan.devices

    def _probe_network(self, cell: Cell) -> bool:
        """All-reduces after the window, in a cell's first launch that is not a failure: they tell what the way can carry."""
        good = any(record.status == "ok" for record in self._records.get(cell.id, ()))
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
        """b03-ddp-n2-...-hash, with r1, r2, ... where an interrupted launch is run again."""
        tries = sum(r.block == block for r in self._records.get(cell.id, ()))
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

    def _record(
        self, cell: Cell, name: str, block: int, order: int,
        result: Result | None, recording: Recording, processes: int,
    ) -> LaunchRecord:  # fmt: skip
        traces = result.traces if result else ()
        failure = result.failure if result else None
        window = summary.window(traces) if result and not failure else None
        ranks = tuple(summary.rank_summary(trace) for trace in sorted(traces, key=lambda t: t.rank))
        telemetry = summarise(recording.rows, recording.summary.reasons, *summary.span_s(traces))
        effective = next((trace.effective for trace in traces if trace.effective), None)
        return LaunchRecord(
            launch=name,
            cell=cell.id,
            block=block,
            order=order,
            status="ok" if window else "timeout" if result and result.timed_out else "failed",
            **summary.why(failure, window is not None),
            requested=cell.case,
            clock=traces[0].clock if traces else None,
            window=window,
            phases_s=summary.mean_phases(ranks) if window else {},
            first_step_s=summary.largest(trace.first_step_s for trace in traces),
            first_batch_s=summary.largest(trace.first_batch_s for trace in traces),
            compile_s=summary.largest(trace.compile_s for trace in traces),
            implementation=effective.implementation if effective else None,
            marks=(*self._marks(cell.case, effective), *self._doubts(telemetry.measures, window, traces)),
            mismatches=summary.mismatches(cell.case, processes * cell.case.nodes, traces) if window else (),
            ranks=ranks,
            telemetry=telemetry.measures,
            telemetry_reasons=telemetry.reasons,
            environment=speed_variables(os.environ),
            fingerprint=self._fingerprint,
        )

    def _marks(self, case: Case, effective: Any) -> tuple[str, ...]:
        marks = list(effective.stand_ins) if effective else []
        if self._oversubscribed(case):
            marks.append(f"oversubscribed: {case.devices} ranks on {self._slots} devices")
        ranks = case.devices if self._shared else case.ranks
        needed = ranks * (case.threads or 1)
        if not self._host.devices and needed > self._host.cpus_usable:
            marks.append(f"oversubscribed: {needed} threads on {self._host.cpus_usable} CPUs")
        if case.link is not None and self._team is not None:
            marks += summary.link_mark(link.parse(case.link), self._team.pairs)
        return tuple(marks)

    @property
    def _shared(self) -> bool:
        """Whether nodes are agents on this machine, and share its CPUs."""
        return self._plan.box

    def _doubts(
        self, telemetry: dict[str, dict[str, float | None]], window: Any, traces: Sequence[Any]
    ) -> list[str]:
        """What to know beside this launch's numbers: a busy host, a short window, a loss gone wild."""
        found = (
            summary.busy_mark(telemetry, self._cpus(), self._shared, traces),
            summary.window_mark(window),
            summary.loss_mark(traces),
            summary.sync_bn_mark(traces),
        )
        return [mark for mark in found if mark]

    def _cpus(self) -> dict[int, int]:
        """CPUs of each node."""
        members = self._team.members if self._team is not None else ()
        counted = {member.node: int(member.host.get("cpus_counted") or 1) for member in members}
        return counted | {0: self._host.cpus_counted}

    def _oversubscribed(self, case: Case) -> bool:
        return bool(self._host.devices) and (case.devices if self._shared else case.ranks) > self._slots

    @property
    def _slots(self) -> int:
        """Accelerators that may be used."""
        return len(self._plan.devices) if self._plan.devices else len(self._host.devices)

    def _take(self, record: LaunchRecord) -> None:
        self._records.setdefault(record.cell, []).append(record)
        if record.wall_s and record.status == "ok":
            self._walls[record.cell] = record.wall_s

    def _left_s(self, block: int, rest: Sequence[Cell]) -> float:
        """Expected time to the end: this block's rest, then blocks up to the fewest launches, within the budget."""
        left = self._expected_s(rest)
        still = [cell for cell in self._plan.runnable if not self._closed(cell.id)]
        for later in range(block + 1, self._rules.min_launches):
            left += self._expected_s([cell for cell in still if later not in self._blocks(cell.id)])
        if self._rules.budget_s is not None:
            left = min(left, max(0.0, self._rules.budget_s - (time.monotonic() - self._began)))
        return left


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
