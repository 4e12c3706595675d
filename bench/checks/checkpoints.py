"""What rows of checkpoints.jsonl tell: mistakes with torch.load and their remedies, what was lost, what differs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from bench.answers import Finding
from bench.checkpoint_records import AS_IT_IS, BY_DEFAULT, CheckpointRow
from bench.checks.seen import Seen, count
from bench.measures import size

Rows = Sequence[CheckpointRow]
ABSENT = "Attempting to deserialize object on"
CORRUPT = ("PytorchStreamReader failed", "unexpected EOF", "not a ZIP archive")
NO_GROUP = "Default process group has not been initialized"
UNSAFE = "Weights only load failed"


def told(rows: Rows, broken: int = 0) -> tuple[Finding, ...]:
    """Every finding of these rows, problems first. `broken`: lines beside them that could not be read."""
    found = [*_broken(broken)]
    found += [
        Finding(
            code=code, level=level, message=seen.message, remedy=seen.remedy or remedy, evidence=seen.evidence
        )
        for code, level, check, remedy in TABLE
        for seen in check(rows)
    ]
    order = ("problem", "warning", "info")
    return tuple(sorted(found, key=lambda finding: order.index(finding.level)))


def _broken(lines: int) -> Iterator[Finding]:
    if lines:
        yield Finding(
            code="checkpoint-broken-lines",
            level="warning",
            message=f"{count(lines, 'line')} of checkpoints.jsonl could not be read (cut short, or edited)",
            remedy="run scalemark checkpoint again to replace what is lost",
        )


def not_saved(rows: Rows) -> Iterator[Seen]:
    """Saves that failed: a full disk, a folder that cannot be written, a model that cannot be pickled."""
    bad = [row for row in rows if row.kind == "save" and row.outcome != "ok"]
    for message in dict.fromkeys(row.message for row in bad):
        same = [row for row in bad if row.message == message]
        remedy = (
            "define what it holds at the top level of a module, or save the state dict"
            if "pickle" in message.lower()
            else None
        )
        yield Seen(f"{_what(same[0])} was not saved{_more(same)}: {message}", remedy=remedy)


def not_loaded(rows: Rows) -> Iterator[Seen]:
    """Loads that no mistake explains."""
    bad = [row for row in rows if row.kind == "load" and row.outcome in ("failed", "refused", "mismatch")]
    rest = [row for row in bad if not any(row in known for known in _explained(rows))]
    for message in dict.fromkeys(row.message for row in rest):
        same = [row for row in rest if row.message == message]
        yield Seen(f"{_what(same[0])} was not loaded into {_loader(same[0])}{_more(same)}: {message}")


def differs(rows: Rows) -> Iterator[Seen]:
    """Loads that went well by torch's word, and did not bring back what was saved."""
    bad = [row for row in rows if row.equal is False]
    if bad:
        yield Seen(
            f"{_what(bad[0])} loaded into {_loader(bad[0])} is not what was saved{_more(bad)}: the first tensor that"
            f" differs is {bad[0].differing}"
        )


def on_other_devices(rows: Rows) -> Iterator[Seen]:
    """Ranks whose file came onto a device of another rank."""
    bad = [row for row in rows if row.elsewhere]
    if bad:
        most = max(bad, key=lambda row: sum((row.elsewhere or {}).values()))
        held = most.elsewhere or {}
        where, amount = next(iter(held.items()))
        yield Seen(
            f"{where} holds {size(amount)} of what it loaded from {_what(most)} with map_location {_map(most)}:"
            f" {count(len(held), 'rank')} not on a device of {'its' if len(held) == 1 else 'their'} own, and that device"
            f" fills up first{_more(bad)}",
            evidence={"ranks": ", ".join(held)},
        )


def absent_device(rows: Rows) -> Iterator[Seen]:
    """Files saved on a device that this host does not have."""
    bad = _absent(rows)
    if bad:
        ways = ", ".join(dict.fromkeys(row.way for row in bad))
        good = dict.fromkeys(
            row.way
            for row in rows
            if row.saved_on == bad[0].saved_on and row.kind == "load" and row.outcome == "ok"
        )
        yield Seen(
            f"a file saved on {bad[0].saved_on} does not open here with map_location {ways}: torch puts tensors back on the"
            f" device they came from, and this host has no such device"
            + (f"; it opens with {', '.join(good)}" if good else ""),
            evidence={"torch": bad[0].message},
        )


def prefix(rows: Rows) -> Iterator[Seen]:
    """State dicts whose keys have a `module.` too many, or too few."""
    bad = _prefixed(rows)
    for fix, remedy in (
        (
            "stripped",
            "take off exactly one leading 'module.' where all keys have it, or save model.module.state_dict()",
        ),
        ("added", "load before wrapping, or into model.module; or put 'module.' before every key"),
    ):
        same = [row for row in bad if _fix(row, rows) == fix]
        if same:
            yield Seen(
                f"the state dict of {_saver(same[0])} does not fit {_loader(same[0])} as it is{_more(same)}:"
                f" {same[0].message}",
                remedy=remedy,
            )


def weights_only(rows: Rows) -> Iterator[Seen]:
    """Whole models that torch.load refuses by default, since torch 2.6."""
    bad = _unsafe(rows)
    if bad:
        yield Seen(
            f"torch.load refuses a whole model unless told weights_only=False{_more(bad)}: since torch 2.6 it takes tensors"
            " only, as unpickling a model runs what code the file names",
            evidence={"torch": bad[0].message},
        )


def needs_group(rows: Rows) -> Iterator[Seen]:
    """Whole models in DDP, opened where there is no process group."""
    bad = _groupless(rows)
    if bad:
        into = ", ".join(dict.fromkeys(_loader(row) for row in bad))
        yield Seen(
            f"a whole model saved inside DDP does not open under {into}: DDP asks for its process group while it is"
            " unpickled",
            evidence={"torch": bad[0].message},
        )


def cut_short(rows: Rows) -> Iterator[Seen]:
    """Files that a save left half written."""
    bad = _corrupt(rows)
    if bad:
        yield Seen(
            f"a file that was cut short is refused: {bad[0].message}",
            evidence={"bytes": size(bad[0].bytes or 0)},
        )


def map_ignored(rows: Rows) -> Iterator[Seen]:
    """A dict that names no device of the file: torch.load takes it without a word, and ignores it."""
    bad = [row for row in rows if row.way == "other dict" and row.outcome == "ok"]
    if bad:
        yield Seen(
            f"map_location {bad[0].map_says} for a file saved on {bad[0].saved_on} was ignored without a word"
            f"{_more(bad)}: the tensors came back to the device they were saved on"
        )


def stand_ins(rows: Rows) -> Iterator[Seen]:
    """What is not the real thing in these rows."""
    names = dict.fromkeys(row.stand_in for row in rows if row.stand_in)
    if names:
        yield Seen(f"stand-ins in these rows: {'; '.join(names)}")


def no_accelerator(rows: Rows) -> Iterator[Seen]:
    """What cannot be seen where there are CPU ranks only."""
    if rows and all(row.elsewhere is None for row in rows):
        yield Seen(
            "no accelerator here: whether ranks load onto another rank's device does not apply, and the kinds of"
            " map_location differ only for the file from elsewhere"
        )


Level = Literal["info", "warning", "problem"]
Check = Callable[[Rows], Iterator[Seen]]
TABLE: tuple[tuple[str, Level, Check, str], ...] = (
    ("checkpoint-not-saved", "problem", not_saved, "free some space, or name a folder that can be written by --to"),
    ("checkpoint-not-loaded", "problem", not_loaded, "read torch's message; the rank's log has the rest"),
    ("checkpoint-differs", "problem", differs, "do not train on from it: keep the earlier one, and look for who wrote it"),
    ("checkpoint-other-device", "warning", on_other_devices,
     "load with map_location='cpu', or this rank's own device, after torch.cuda.set_device"),
    ("checkpoint-absent-device", "info", absent_device,
     "load with map_location='cpu', or this rank's device: load_state_dict copies to where the model is"),
    ("checkpoint-prefix", "info", prefix, "save and load the module inside the wrapper"),
    ("checkpoint-weights-only", "info", weights_only,
     "save the state dict; for a file that you wrote yourself, and only then, torch.load(..., weights_only=False)"),
    ("checkpoint-needs-group", "info", needs_group,
     "save model.module, or better its state dict; or call init_process_group before torch.load"),
    ("checkpoint-cut-short", "info", cut_short,
     "write to another name, flush it to the disk, then rename: the last good file stays until the new one is whole"),
    ("checkpoint-map-ignored", "info", map_ignored, "name the device that the file was saved on, or map_location='cpu'"),
    ("checkpoint-stand-ins", "info", stand_ins, "read these rows as a test of what torch does, not of this host's speed"),
    ("checkpoint-no-accelerator", "info", no_accelerator, "run it on the machine that trains"),
)  # fmt: skip


def _explained(rows: Rows) -> tuple[Rows, ...]:
    return (_absent(rows), _prefixed(rows), _unsafe(rows), _groupless(rows), _corrupt(rows))


def _absent(rows: Rows) -> Rows:
    return [row for row in rows if row.outcome == "refused" and ABSENT in row.message]


def _prefixed(rows: Rows) -> Rows:
    return [row for row in rows if row.outcome == "mismatch" and row.way == AS_IT_IS and _fix(row, rows)]


def _unsafe(rows: Rows) -> Rows:
    return [
        row for row in rows if row.way == BY_DEFAULT and row.outcome == "refused" and UNSAFE in row.message
    ]


def _groupless(rows: Rows) -> Rows:
    return [row for row in rows if row.outcome == "refused" and NO_GROUP in row.message]


def _corrupt(rows: Rows) -> Rows:
    return [row for row in rows if row.made == "cut short" and any(text in row.message for text in CORRUPT)]


def _fix(row: CheckpointRow, rows: Rows) -> str | None:
    """What helped where the same file was loaded with its prefix looked at."""
    same = (
        other.prefix
        for other in rows
        if other.way == "cpu"
        and other.outcome == "ok"
        and _pair(other) == _pair(row)
        and other.prefix != "as it is"
    )
    return next(same, None)


def _pair(row: CheckpointRow) -> tuple:
    loader = (row.loader, row.loader_ranks, row.loader_nodes)
    return (row.saver, row.saver_ranks, row.saver_nodes, row.format, row.writer, row.made, *loader)


def _what(row: CheckpointRow) -> str:
    names = {"state_dict": "the state dict", "model": "the whole model", "dcp": "the dcp checkpoint"}
    return f"{names[row.format]} of {_saver(row)}"


def _saver(row: CheckpointRow) -> str:
    return _way(row.saver, row.saver_ranks, row.saver_nodes)


def _loader(row: CheckpointRow) -> str:
    return _way(row.loader or "", row.loader_ranks or 1, row.loader_nodes or 1)


def _way(strategy: str, ranks: int, nodes: int) -> str:
    devices = ranks * nodes
    return f"{strategy} on {devices}" if devices > 1 else strategy


def _map(row: CheckpointRow) -> str:
    return row.map_says or row.way


def _more(rows: Rows) -> str:
    return f" (and {len(rows) - 1} more like it)" if len(rows) > 1 else ""
