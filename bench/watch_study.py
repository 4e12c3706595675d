"""A watched loop on disk: what its ranks handed over, as a study of one cell and one launch."""

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench import __version__, summary
from bench.case import Case
from bench.environment import speed_variables
from bench.errors import UsageError
from bench.gitstate import git_state
from bench.machine import Host, fingerprint, probe_host
from bench.plan import TARGET
from bench.records import Cell, LaunchRecord, RankTrace, StudyHeader
from bench.steady import find_cut
from bench.store import RESULTS, Store
from bench.watch_checks import SUITE, Seen, mistakes

WAIT_S = 60.0  # for the other ranks, once rank 0 is done
MARKS = ("watched: the user's own loop", "one launch")


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank hands over when its steps are done. The trace has neither cut nor window yet."""

    case: Case
    trace: RankTrace
    seen: Seen


def write_study(
    packets: Sequence[Packet], output: str | os.PathLike[str] | None, began_ns: int
) -> tuple[Store, tuple[str, ...]]:
    """Write the study of these ranks, rank 0 first, under a name that is free; and the mistakes that were seen.

    `began_ns` is the monotonic clock at the first batch. Raises UsageError where nothing can be written.
    """
    wall_s = (time.monotonic_ns() - began_ns) / 1e9
    started_at = datetime.fromtimestamp(time.time() - wall_s, UTC).isoformat(timespec="seconds")
    host = probe_host()
    record = launch_record(packets)
    record = msgspec.structs.replace(
        record,
        started_at=started_at,
        wall_s=wall_s,
        environment=speed_variables(os.environ),
        fingerprint=fingerprint(host),
    )
    store = Store(_free(Path(output) if output else RESULTS / _name()))
    try:
        store.create(_header(store.name, record.requested, host, started_at))
    except UsageError as error:  # there is no -o in a script
        raise UsageError(str(error).replace("by -o", "by watch(output=...)")) from None
    store.append(record)
    store.write_steps(record.launch, with_window([packet.trace for packet in packets]))
    return store, tuple(text for rank in record.ranks for text in rank.warnings)


def collected(store: Any, key: str, world: int) -> list[Packet]:
    """What the other ranks handed over in time, in order of rank. Asks without blocking: the group uses it too."""
    found: dict[int, Packet] = {}
    until = time.monotonic() + WAIT_S
    while store is not None and len(found) < world - 1 and time.monotonic() < until:
        for rank in set(range(1, world)) - found.keys():
            if store.check([f"{key}/{rank}"]):
                found[rank] = msgspec.json.decode(store.get(f"{key}/{rank}"), type=Packet)
        time.sleep(0.02)
    return [found[rank] for rank in sorted(found)]


def launch_record(packets: Sequence[Packet]) -> LaunchRecord:
    """One launch of the case that these ranks ran: numbers, marks and what was seen in the loop."""
    first = packets[0]
    case, differs = asked_for(packets)
    traces = with_window(with_mistakes(packets))
    window = summary.window(traces)
    ranks = tuple(summary.rank_summary(trace) for trace in traces)
    return LaunchRecord(
        launch=f"b00-{case.id}",
        cell=case.id,
        block=0,
        order=0,
        status="ok",
        requested=case,
        clock=first.trace.clock,
        window=window,
        phases_s=summary.mean_phases(ranks),
        first_step_s=max(trace.first_step_s or 0.0 for trace in traces),
        first_batch_s=max(trace.first_batch_s or 0.0 for trace in traces),
        implementation="torch",
        marks=tuple(filter(None, (*MARKS, _accumulation(first.seen), summary.window_mark(window)))),
        mismatches=differs,
        ranks=ranks,
    )


def asked_for(packets: Sequence[Packet]) -> tuple[Case, tuple[str, ...]]:
    """The case, and where the loop is not what its launcher asked for: several ranks are to be one training."""
    case, seen = packets[0].case, packets[0].seen
    if seen.world_asked > 1 and seen.world == 1:
        return case, (f"world size: {seen.world_asked} asked for, 1 in effect",)
    if case.strategy == "own" and agreed(packets) is False:
        ddp = msgspec.structs.replace(case, strategy="ddp")
        return ddp, (f"ddp asked for, the model is a {seen.wrapper}",)
    return case, ()


def agreed(packets: Sequence[Packet]) -> bool | None:
    """Whether all ranks ended with equal parameters; None where they were not all heard."""
    hashes = [packet.trace.effective.weights_hash for packet in packets if packet.trace.effective]
    whole = len(hashes) == packets[0].seen.world
    return len(set(hashes)) == 1 if whole else None


def with_mistakes(packets: Sequence[Packet]) -> list[RankTrace]:
    """The traces, each mistake among the warnings of the first rank that saw it."""
    equal, said, traces = agreed(packets), set[str](), []
    for packet in packets:
        found = mistakes(msgspec.structs.replace(packet.seen, agreed=equal))
        new = tuple(text for code, text in found.items() if code not in said)
        said |= found.keys()
        traces.append(msgspec.structs.replace(packet.trace, warnings=new))
    return traces


def with_window(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """The traces over the steps that all ranks have, warm-up cut where the slowest rank is steady."""
    steps = min(len(trace.step_s) for trace in traces)
    cut, _ = find_cut(np.max([trace.step_s[:steps] for trace in traces], axis=0))
    return [
        msgspec.structs.replace(
            trace,
            step_s=trace.step_s[:steps],
            phases_s={name: column and column[:steps] for name, column in trace.phases_s.items()},
            samples=trace.samples[:steps],
            cut=cut,
            window_s=sum(trace.step_s[cut.first : steps]),
            counts=trace.counts
            and msgspec.structs.replace(trace.counts, in_window=sum(trace.samples[cut.first : steps])),
        )
        for trace in traces
    ]


def _accumulation(seen: Seen) -> str | None:
    if seen.optimizer_steps == seen.steps:
        return None
    return f"{seen.optimizer_steps} optimizer steps in {seen.steps} batches"


def _header(name: str, case: Case, host: Host, created_at: str) -> StudyHeader:
    return StudyHeader(
        study=name,
        version=__version__,
        suites=(SUITE,),
        cells=(Cell(id=case.id, case=case, suite=SUITE),),
        factors={},
        created_at=created_at,
        seed=0,
        command=("python", *sys.argv),
        quick=True,
        target=TARGET,
        min_launches=1,
        max_launches=1,
        budget_s=None,
        git=git_state(),
        host=msgspec.to_builtins(host),
    )


def _name() -> str:
    """watch-train-20250131-093000: of the script, and of when it is written."""
    return f"watch-{Path(sys.argv[0]).stem or 'python'}-{time.strftime('%Y%m%d-%H%M%S')}"


def _free(root: Path) -> Path:
    """The folder, or with -2, -3, ... behind it the first that is not there."""
    number = 2
    found = root
    while found.exists():
        found, number = root.with_name(f"{root.name}-{number}"), number + 1
    return found
