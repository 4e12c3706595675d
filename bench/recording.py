"""What came of a launch -> its record: the window over all ranks, telemetry, and what to know beside its numbers."""

import os
from collections.abc import Sequence
from typing import Any

from bench import link, summary
from bench.case import Case
from bench.contamination import Judgement, judge
from bench.environment import speed_variables
from bench.launch import Result
from bench.machine import Host, fingerprint
from bench.nodes import Team
from bench.plan import Plan
from bench.records import Cell, LaunchRecord, RankSummary, RankTrace, Window
from bench.scene import Scene, Stats
from bench.series import summarise
from bench.telemetry import Recording


class Recorder:
    """Makes the records of one study's launches."""

    def __init__(self, plan: Plan, host: Host, team: Team | None) -> None:
        self._plan, self._host, self._team = plan, host, team
        self._fingerprint = fingerprint(host)

    def record(
        self, cell: Cell, name: str, block: int, order: int,
        result: Result | None, recording: Recording, processes: int,
    ) -> LaunchRecord:  # fmt: skip
        """One launch's record, but for its times; `result` None where it was interrupted."""
        traces = result.traces if result else ()
        failure = result.failure if result else None
        window = summary.window(traces) if result and not failure else None
        ranks = tuple(summary.rank_summary(trace) for trace in sorted(traces, key=lambda t: t.rank))
        telemetry = summarise(recording.rows, recording.summary.reasons, *summary.span_s(traces))
        effective = next((trace.effective for trace in traces if trace.effective), None)
        judged = self._judge(cell.case, telemetry.measures, window, ranks)
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
            marks=(
                *self._marks(cell.case, effective),
                *self._doubts(cell.case, window, traces),
            ),
            mismatches=summary.mismatches(cell.case, processes * cell.case.nodes, traces) if window else (),
            contaminated=judged.words,
            disqualified=judged.disqualified,
            ranks=ranks,
            telemetry=telemetry.measures,
            telemetry_reasons=telemetry.reasons,
            environment=speed_variables(os.environ),
            fingerprint=self._fingerprint,
        )

    def _marks(self, case: Case, effective: Any) -> tuple[str, ...]:
        marks = list(effective.stand_ins) if effective else []
        if self.oversubscribed(case):
            marks.append(f"oversubscribed: {case.devices} ranks on {self._slots} devices")
        ranks = case.devices if self.shared else case.ranks
        needed = ranks * (case.threads or 1)
        if not self._host.devices and needed > self._host.cpus_usable:
            marks.append(f"oversubscribed: {needed} threads on {self._host.cpus_usable} CPUs")
        if case.link is not None and self._team is not None:
            marks += summary.link_mark(link.parse(case.link), self._team.pairs)
        return tuple(marks)

    @property
    def shared(self) -> bool:
        """Whether nodes are agents on this machine, and share its CPUs."""
        return self._plan.box

    def _judge(
        self, case: Case, telemetry: Stats, window: Window | None, ranks: Sequence[RankSummary]
    ) -> Judgement:
        """What else went on in the window of a launch that has one."""
        if window is None:
            return Judgement((), False)
        cold = case.page_cache == "cold"
        return judge(Scene(telemetry, window.wall_s, ranks, self._cpus(), shared=self.shared, cold=cold))

    def _doubts(self, case: Case, window: Window | None, traces: Sequence[RankTrace]) -> list[str]:
        """What to know beside this launch's numbers: a short window, a loss gone wild, CPUs taken away."""
        found = (
            summary.window_mark(window),
            summary.loss_mark(traces),
            summary.bound_mark(case, traces, self._host.cpus_affinity),
            summary.sync_bn_mark(traces),
        )
        return [mark for mark in found if mark]

    def _cpus(self) -> dict[int, int]:
        """CPUs that ranks may use, of each node: the sampler reads these."""
        members = self._team.members if self._team is not None else ()
        allowed = {member.node: int(member.host.get("cpus_affinity") or 1) for member in members}
        return allowed | {0: self._host.cpus_affinity}

    def oversubscribed(self, case: Case) -> bool:
        """Whether a case has more ranks than there are accelerators."""
        return bool(self._host.devices) and (case.devices if self.shared else case.ranks) > self._slots

    @property
    def _slots(self) -> int:
        """Accelerators that may be used."""
        return len(self._plan.devices) if self._plan.devices else len(self._host.devices)
