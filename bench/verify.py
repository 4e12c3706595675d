"""Verify that the ways of training of a study compute the same: a launch each, on this node or over several."""

import math
import os
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench import launch as launching
from bench import plugins, temporary, verify_cache
from bench.case import Case
from bench.joint import ordinals
from bench.launch import Engine, EngineLost, Progress, Result
from bench.machine import Host, device_kind, slots
from bench.nodes import Team
from bench.records import Launch
from bench.store import Store
from bench.verify_records import Verification, Way
from bench.verify_ways import STEPS

LIMIT_S = 60.0  # for one way, in a check before a study


class Verifier:
    """Runs ways of training, all on one engine, and keeps what was found. Use `verify`."""

    def __init__(
        self, host: Host, team: Team | None, devices: tuple[int, ...] | None, say: Callable[[str], None]
    ) -> None:
        self._host, self._team, self._devices, self._say = host, team, devices, say
        self._met = False  # the other nodes have engines for this

    def verify(
        self, ways: Sequence[Way], limit_s: float | None = None, store: Store | None = None,
        heavy: Container[str] = (),
    ) -> Verification:  # fmt: skip
        """Every way with its checks. Those that are left when `limit_s` is over, or are too `heavy` for it, say so.

        With a `store`, whose study the check comes before, a way that was checked on this host by the same code is
        not run again, and the ranks' logs go there.
        """
        known = {way.name: verify_cache.read(way, self._host) if store is not None else None for way in ways}
        todo = [way for way in ways if known[way.name] is None]
        ran: dict[str, Way] = {}
        if todo:
            with tempfile.TemporaryDirectory(prefix=temporary.prefix()) as folder:
                logs = store.root / "logs" if store is not None else Path(folder)
                logs.mkdir(exist_ok=True)
                ran = {way.name: way for way in self._all(todo, limit_s, logs, heavy)}
        for way in ran.values():
            verify_cache.keep(way, self._host)
        return Verification(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            torch=self._host.torch,
            steps=STEPS,
            ways=tuple(known[way.name] or ran[way.name] for way in ways),
        )

    def _all(
        self, ways: Sequence[Way], limit_s: float | None, logs: Path, heavy: Container[str]
    ) -> Iterator[Way]:
        began = time.monotonic()
        with Engine(logs / "engine-verify.log") as engine:
            for way in ways:
                late = limit_s is not None and time.monotonic() - began > limit_s
                if late or way.name in heavy:
                    reason = f"not checked within {limit_s:.0f} s: scalemark verify takes its time"
                    yield msgspec.structs.replace(way, reason=reason)
                else:
                    yield self._run(engine, way, logs, None if limit_s is None else LIMIT_S)

    def _run(self, engine: Engine, way: Way, logs: Path, limit_s: float | None) -> Way:
        """One way, checked by its ranks."""
        self._say(f"verifying {way.name}")
        began = time.monotonic()
        case = msgspec.structs.replace(way.case, timeout_s=min(way.case.timeout_s, limit_s or math.inf))
        result = self._launch(engine, case, logs)
        checks = next((trace.verified for trace in result.traces if trace.verified), None) or ()
        reason = None
        if result.timed_out:
            reason = f"not done within {case.timeout_s:g} s: a larger timeout_s may help ({_detail(result)})"
        elif result.failure is not None:
            reason = f"{result.failure.reason}: {result.failure.detail}"
        elif not checks:
            reason = "rank 0 left no checks"
        return msgspec.structs.replace(way, checks=checks, reason=reason, seconds=time.monotonic() - began)

    def _launch(self, engine: Engine, case: Case, logs: Path) -> Result:
        strategy: plugins.Strategy = plugins.load("strategies", case.strategy)
        name = f"verify-{case.id}"
        folder = logs / name
        folder.mkdir(exist_ok=True)
        several = self._team is not None and case.nodes > 1
        with temporary.folder() as scratch:
            launch = Launch(
                launch=name,
                case=case,
                task="verify",
                scratch=str(scratch),
                logs=str(folder.resolve()),
                conductor_pid=os.getpid(),
                device_kind=device_kind(self._host),
                devices=ordinals(self._devices, case, self._host, self._team is not None and self._team.box),
                oversubscribed=bool(self._host.devices) and case.ranks > slots(self._host),
                store=self._team.store if several and self._team is not None else None,
                interface=self._team.interface if several and self._team is not None else None,
            )
            if not several or self._team is None:
                return launching.run(engine, launch, strategy.processes(case), _quiet)
            if not self._met:
                self._met = True
                self._team.block(0)
                with suppress(EngineLost):  # the launch tells why
                    engine.ready()
                self._team.clocks()
            return self._team.run(engine, launch, strategy.processes(case), _quiet)[0]


def _detail(result: Result) -> str:
    """What is known of a launch that was ended at its time limit."""
    return str(result.failure.detail) if result.failure is not None else "all ranks were at work"


def _quiet(_: Progress) -> None:
    """A check takes a second or two: its progress is not shown."""
