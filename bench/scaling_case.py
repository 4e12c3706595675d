"""One case and its base, run and judged from a test: what the pytest fixture `scaling_case` calls.

It is a study like any other: planned, run in blocks by the conductor, stored, and read back from the disk.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench import legal, plugins
from bench.answers import Interval
from bench.begin import header, prepare
from bench.case import FIELDS
from bench.curves import threads_differ
from bench.errors import BenchError, UsageError
from bench.evidence import Cell, Evidence, gather, relative, scaled
from bench.machine import Host, probe_host
from bench.plan import Plan, make_plan
from bench.records import PHASES
from bench.stopping import Rules
from bench.store import Store
from bench.study import FailedFast, Interrupted, Study
from bench.suite import Suite, expand

Base = Mapping[str, Any] | Literal[False] | None


class ScalingResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a case gave. `speedup` and `efficiency` are relative to the base, paired by block.

    Intervals are of 95 %, over launches; with one launch `low` and `high` are None. `reject` says why the
    numbers may not be judged (what ran is not what was asked for, ...); there is no efficiency then.
    """

    study: Path
    cell: str
    base_cell: str | None
    devices: int
    samples_per_s: Interval
    speedup: Interval | None
    efficiency: Interval | None
    step_s: float | None
    phases_s: dict[str, float | None]
    launches: tuple[float, ...]  # samples/s of each launch
    marks: tuple[str, ...]
    reject: str | None


class CannotRun(Exception):
    """The case, or its base, cannot run on this host; the text says why."""


class LaunchFailed(BenchError):
    """A launch of the case or of its base gave no result."""


def run(name: str, fields: Mapping[str, Any], base: Base, launches: int, results: Path) -> ScalingResult:
    """Run a case, and its base, as the study results/NAME-1, -2, ...: so many launches of each.

    Without a `base` a case of several devices gets `strategy="single"` on one, and a case of one device
    none; False: none. Raises CannotRun, UsageError for what is wrong in the case on any host, LaunchFailed
    with the failure's class and log, and KeyboardInterrupt when a signal stopped the study.
    """
    host = _host()
    plan = _plan(_suite(name, fields, base, host), host)
    store = _new_store(results, name)
    _conduct(plan, store, host, launches)
    evidence = gather([store])
    for cell in evidence.cells.values():
        _check(store, cell)
    return _result(
        store, evidence, plan.cells[-1].id
    )  # base first; not the id asked for: data may be made up


@cache
def _host() -> Host:
    """Devices and versions take seconds to find, and stay the same for all tests of a process."""
    return probe_host()


def _suite(name: str, fields: Mapping[str, Any], base: Base, host: Host) -> Suite:
    """The case as a suite of one cell or, with its base, two."""
    if base is not None and base is not False and not isinstance(base, Mapping):
        raise UsageError("base: give a dict of settings, None for one device without a wrapper, or False")
    for field in (*fields, *(base or ())):
        if field not in FIELDS:
            raise UsageError(plugins.unknown("settings", field, FIELDS))
    alone = Suite(name=name, case=dict(fields))
    (case,) = expand(alone, host)
    if base is None:
        base = {"strategy": "single"} if case.devices > 1 else False
    return alone if base is False else msgspec.structs.replace(alone, base=dict(base))


def _plan(suite: Suite, host: Host) -> Plan:
    for case in expand(suite, host):
        legal.check(case, legal.Context(host=host, oversubscribe=True))
        try:
            legal.check(case, legal.Context(host=host))
        except UsageError as error:  # too few devices: another host may have them
            raise CannotRun(str(error)) from None
    plan = make_plan([suite], host)
    for cell in plan.cells:
        if cell.skipped:
            raise CannotRun(f"{cell.id}: {cell.skipped}")
    return plan


def _new_store(results: Path, name: str) -> Store:
    number = 1
    while (results / f"{name}-{number}").exists():
        number += 1
    return Store(results / f"{name}-{number}")


class _Silent:
    """A test says nothing while it runs."""

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    block = launching = progress = landed = say = _nothing


def _conduct(plan: Plan, store: Store, host: Host, launches: int) -> None:
    rules = Rules(min_launches=launches, max_launches=launches, fail_fast=True)
    with store.lock():
        store.create(header(store.name, plan, host, rules, ("pytest", store.name), quick=launches == 1))
        prepare(plan)
        try:
            Study(plan, store, host, rules, _Silent()).run()
        except FailedFast:
            pass  # the record says what failed
        except Interrupted:
            raise KeyboardInterrupt from None


def _check(store: Store, cell: Cell) -> None:
    """Raise LaunchFailed for the first launch that failed: class, detail, and the log to look into."""
    for row in cell.failures:
        rank = 0 if row.first_rank is None or row.first_rank != row.first_rank else int(row.first_rank)
        log = store.log_dir(row.launch) / f"{rank}.log"
        found = log if log.exists() else store.root
        raise LaunchFailed(f"{cell.id}: {row.reason or row.status}: {row.detail}; see {found}")


def _result(store: Store, evidence: Evidence, cell_id: str) -> ScalingResult:
    cell = evidence.cells[cell_id]
    others = [other for other in evidence.cells.values() if other.id != cell_id]
    base = others[0] if others else None
    if cell.samples_per_s is None:
        raise LaunchFailed(f"{cell.id}: {cell.doubt or 'no launch finished'}; see {store.root}")
    speedup = relative(base, cell).interval() if base and base.usable and cell.usable else None
    threads = threads_differ(evidence, base, cell) if base else None
    return ScalingResult(
        study=store.root,
        cell=cell.id,
        base_cell=base.id if base else None,
        devices=cell.case.devices,
        samples_per_s=cell.samples_per_s,
        speedup=speedup,
        efficiency=scaled(speedup, base.case.devices / cell.case.devices) if speedup and base else None,
        step_s=cell.average("step_s"),
        phases_s={phase: cell.average(f"{phase}_s") for phase in PHASES},
        launches=cell.rates,
        marks=cell.marks + ((f"baseline not comparable: {threads}",) if threads else ()),
        reject=_reject(cell, base),
    )


def _reject(*cells: Cell | None) -> str | None:
    doubts: Sequence[str] = [f"{c.id}: {c.doubt}" for c in cells if c is not None and not c.usable]
    return "; ".join(doubts) or None
