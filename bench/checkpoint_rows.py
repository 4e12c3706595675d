"""From what every rank of a launch found to rows over all ranks, and the file that holds them."""

import os
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.case import Case
from bench.checkpoint_records import SCHEMA, Attempt, CheckpointRow, File, Load, Outcome, Save, location
from bench.errors import UsageError
from bench.records import RankTrace
from bench.store import CHECKPOINTS, decoded

WORST: tuple[Outcome, ...] = ("failed", "refused", "mismatch", "ok")
_rows = msgspec.json.Decoder(CheckpointRow)

Ranks = Sequence[Attempt]


def attempts(traces: Iterable[RankTrace], name: str, ranks: int) -> tuple[Attempt, ...]:
    """What the ranks found, in their order; none where one of them does not say."""
    found = tuple(
        one
        for trace in sorted(traces, key=lambda trace: trace.rank)
        for one in trace.checkpoints or ()
        if one.id == name
    )
    return found if len(found) == ranks else ()


def save_row(save: Save, case: Case, ranks: Ranks, lost: str = "", stand_in: str = "") -> CheckpointRow:
    """One save over all ranks. Without ranks it `failed`, and `lost` says why."""
    files = saved_files(ranks)
    return CheckpointRow(
        kind="save",
        **_saver(case),
        format=save.format,
        writer=save.writer,
        made=save.made,
        saved_on=files[0].saved_on if files else None,
        **_came(ranks, lost),
        **_spread([one.all_s for one in ranks]),
        rank0_s=_median(ranks[0].own_s) if ranks else None,
        durable_s=_largest(_median(one.durable_s) for one in ranks),
        bytes=sum(file.bytes for file in files) if files else None,
        files=len(files) or None,
        extra_rss_bytes=_largest(one.extra_rss_bytes for one in ranks),
        peak_allocated_bytes=_largest(one.peak_allocated_bytes for one in ranks),
        tensors=_largest(one.tensors for one in ranks),
        stand_in=stand_in,
    )


def load_row(
    load: Load, saved: CheckpointRow, case: Case, ranks: Ranks, here: str, lost: str = "", stand_in: str = ""
) -> CheckpointRow:
    """One load over all ranks of what the row `saved` tells of. `here` is rank 0's device."""
    where = location(load.map_location, load.files[0].saved_on, here)
    equal = [one.equal for one in ranks if one.equal is not None]
    return CheckpointRow(
        kind="load",
        saver=saved.saver,
        saver_ranks=saved.saver_ranks,
        saver_nodes=saved.saver_nodes,
        format=load.format,
        writer=saved.writer,
        made=saved.made,
        loader=case.strategy,
        loader_ranks=case.ranks,
        loader_nodes=case.nodes,
        way=load.way,
        map_location=load.map_location,
        map_says=None if load.map_location in ("none", "in place") else repr(where),
        weights_only=None if load.default_weights_only else False,
        saved_on=load.files[0].saved_on,
        **_came(ranks, lost),
        **_spread([one.own_s for one in ranks]),
        rank0_s=_median(ranks[0].own_s) if ranks else None,
        cold_s=_largest(_median(one.cold_s) for one in ranks),
        cold=next((one.cold for one in ranks if one.cold), ""),
        bytes=max(file.bytes for file in load.files),
        files=len(load.files),
        extra_rss_bytes=_largest(one.extra_rss_bytes for one in ranks),
        peak_allocated_bytes=_largest(one.peak_allocated_bytes for one in ranks),
        tensors=_largest(one.tensors for one in ranks),
        equal=all(equal) if equal else None,
        differing=next((one.differing for one in ranks if one.differing), None),
        prefix=next((one.prefix for one in ranks if one.prefix), None),
        came_as=next((one.came_as for one in ranks if one.came_as), None),
        elsewhere=_elsewhere(ranks) if here != "cpu" else None,
        stand_in=stand_in,
    )


def saved_files(ranks: Ranks) -> tuple[File, ...]:
    """What a save left on the disk, in order of rank."""
    return tuple(file for one in ranks for file in one.files)


def _saver(case: Case) -> dict[str, Any]:
    return {"saver": case.strategy, "saver_ranks": case.ranks, "saver_nodes": case.nodes}


def _came(ranks: Ranks, lost: str) -> dict[str, Any]:
    """The gravest outcome of any rank, in its words."""
    if not ranks:
        return {"outcome": "failed", "message": lost or "the ranks left no word of it"}
    worst = min(ranks, key=lambda one: WORST.index(one.outcome))
    return {"outcome": worst.outcome, "message": worst.message}


def _spread(columns: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Median, least and most of the slowest rank's seconds, repeat by repeat."""
    slowest = [max(repeat) for repeat in zip(*columns, strict=False)] if columns else []
    if not slowest:
        return {}
    return {
        "seconds": statistics.median(slowest),
        "low_s": min(slowest),
        "high_s": max(slowest),
        "repeats": len(slowest),
    }


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _largest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _elsewhere(ranks: Ranks) -> dict[str, int]:
    """Bytes by rank and the device that is not its own."""
    return {
        f"rank {rank} on {device}": count
        for rank, one in enumerate(ranks)
        for device, count in one.elsewhere.items()
    }


def append(root: Path, rows: Iterable[CheckpointRow]) -> None:
    """Add rows to a study's checkpoints.jsonl, on the disk when this returns."""
    with (root / CHECKPOINTS).open("ab") as file:
        file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


def read(root: Path) -> tuple[tuple[CheckpointRow, ...], int]:
    """A study's rows, and how many lines are none (cut short, or edited); none at all where there is no such file.

    Raises UsageError for a row that a newer version of the suite wrote.
    """
    path = root / CHECKPOINTS
    if not path.exists():
        return (), 0
    found: list[CheckpointRow] = []
    lines = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    for number, line in enumerate(lines, start=1):
        _refuse_newer(line, f"{path}:{number}")
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found.append(decoded(_rows, line))
    return tuple(found), len(lines) - len(found)


class _Version(msgspec.Struct):
    schema: int = SCHEMA


def _refuse_newer(line: bytes, where: str) -> None:
    try:
        found = decoded(msgspec.json.Decoder(_Version), line).schema
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if found > SCHEMA:
        raise UsageError(
            f"{where}: schema {found}, and this scalemark reads up to {SCHEMA}; install a newer scalemark to read it"
        )
