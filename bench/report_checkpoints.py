"""Checkpoints as tables: what was saved, and what came of it under every strategy and map_location."""

from collections.abc import Iterable, Sequence

from bench import wording
from bench.checkpoint_records import TYPICAL, CheckpointRow
from bench.tables import Column, Entry, Spec, Table, amount, build, number_column, word

FILE = "checkpoints.csv"
FORMATS = {"state_dict": "state dict", "model": "whole model", "dcp": "dcp"}
LOST = {"failed": "failed", "refused": "were refused by torch", "mismatch": "did not fit the model's keys"}
Group = Sequence[CheckpointRow]


def tables(rows: Iterable[CheckpointRow]) -> list[Table]:
    """Saves and loads, those without a line left out."""
    rows = list(rows)
    found = [saves(rows), loads(rows)]
    return [table for table in found if table.lines]


def saves(rows: Iterable[CheckpointRow]) -> Table:
    """A line a save."""
    spec: Spec[CheckpointRow] = [
        (Column("saved by"), lambda r: word(saver(r))),
        (Column("format"), lambda r: word(FORMATS[r.format])),
        (Column("written by"), lambda r: word(r.writer)),
        (
            number_column("save, ms", "median of the slowest rank, until all ranks go on"),
            lambda r: _ms(r.seconds),
        ),
        (Column("range, ms", hint="least and most over the repeats"), _range),
        (number_column("rank 0, ms", "until its own call has returned"), lambda r: _ms(r.rank0_s)),
        (number_column("on disk, ms", "the save, and fsync after it"), lambda r: _ms(r.durable_s)),
        (number_column("size", "of all files"), lambda r: _size(r.bytes)),
        (number_column("files"), lambda r: amount(r.files, f"{r.files}")),
        (number_column("extra memory", "peak over what the rank held before"), lambda r: _size(r.extra_rss_bytes)),
        (Column("outcome"), lambda r: word(r.outcome, tone="" if r.outcome == "ok" else "bad")),
        (Column("note"), lambda r: word(r.message or r.stand_in) if r.message or r.stand_in else Entry("")),
    ]  # fmt: skip
    return build("Saved", [row for row in rows if row.kind == "save"], spec, FILE)


def loads(rows: Iterable[CheckpointRow]) -> Table:
    """A line a file and strategy that loaded it; the ways of loading stand in one entry."""
    groups: dict[tuple, list[CheckpointRow]] = {}
    for row in rows:
        if row.kind == "load":
            groups.setdefault((saver(row), row.format, row.writer, row.made, loader(row)), []).append(row)
    spec: Spec[Group] = [
        (Column("saved by"), lambda g: word(saver(g[0]) + (f", {g[0].made}" if g[0].made else ""))),
        (Column("format"), lambda g: word(FORMATS[g[0].format])),
        (Column("written by"), lambda g: word(g[0].writer)),
        (Column("loaded into"), lambda g: word(loader(g[0]))),
        (
            number_column("load, ms", "median of the slowest rank, the file in the page cache"),
            lambda g: _ms(_typical(g).seconds),
        ),
        (number_column("cold, ms", "the file read from the disk"), lambda g: _ms(_typical(g).cold_s)),
        (number_column("extra memory"), lambda g: _size(_typical(g).extra_rss_bytes)),
        (Column("equal", hint="every tensor of model and optimizer, bit by bit"), _equal),
        (Column("prefix", hint="what was done with a leading module."), lambda g: word(_typical(g).prefix)),
        (Column("map_location"), lambda g: word(ways(g), most=90)),
    ]
    note = "in place: dcp reads into the tensors that are there. Times are those with map_location at this rank's device."
    return build("Loaded", groups.values(), spec, FILE, note)


def headline(rows: Sequence[CheckpointRow]) -> str:
    """What came of all of them, for a study that has nothing else."""
    saves = [row for row in rows if row.kind == "save"]
    saved = sum(row.outcome == "ok" for row in saves)
    text = f"{saved} of {len(saves)} checkpoints were saved"
    tried = [row for row in rows if row.kind == "load"]
    if not tried:
        return f"{text}; none was loaded."
    back = sum(row.equal is True for row in tried)
    counts = {words: sum(row.outcome == outcome for row in tried) for outcome, words in LOST.items()}
    counts["changed a tensor"] = sum(row.equal is False for row in tried)
    rest = [f"{count} {words}" for words, count in counts.items() if count]
    told = f"; {', '.join(rest)}" if rest else ""
    return f"{text}. {back} of {len(tried)} loads brought every tensor back bit by bit{told}."


def name(row: CheckpointRow) -> str:
    """A way to save: DDP × 2, state dict, rank 0."""
    return f"{saver(row)}, {FORMATS[row.format]}, {row.writer}"


def saver(row: CheckpointRow) -> str:
    """Who saved, in words: DDP × 2, 2 nodes."""
    return _named(row.saver, row.saver_ranks, row.saver_nodes)


def loader(row: CheckpointRow) -> str:
    """Who loaded; empty for a save."""
    return _named(row.loader, row.loader_ranks or 1, row.loader_nodes or 1) if row.loader else ""


def _named(strategy: str, ranks: int, nodes: int) -> str:
    name = wording.STRATEGIES.get(strategy, strategy)
    name += f" × {ranks * nodes}" if ranks * nodes > 1 else ""
    return name + (f", {nodes} nodes" if nodes > 1 else "")


def ways(group: Group) -> str:
    """`all ok`, or which ways ended otherwise."""
    by_outcome: dict[str, list[str]] = {}
    for row in group:
        by_outcome.setdefault(row.outcome, []).append(row.way)
    if len(by_outcome) == 1:
        (outcome,) = by_outcome
        return f"all {outcome}" if len(group) > 1 else outcome
    told = [f"{outcome}: {', '.join(names)}" for outcome, names in by_outcome.items() if outcome != "ok"]
    return "; ".join([*told, "else ok"] if "ok" in by_outcome else told)


def _typical(group: Group) -> CheckpointRow:
    """The row whose time stands for the group: map_location at this rank's device, in place, or the first that went well."""
    good = [row for row in group if row.outcome == "ok"] or group
    return next((row for row in good if row.way in TYPICAL), good[0])


def _equal(group: Group) -> Entry:
    known = [row.equal for row in group if row.equal is not None]
    if not known:
        return word(None)
    return word("yes") if all(known) else word("no", tone="bad")


def _ms(seconds: float | None) -> Entry:
    return amount(seconds, wording.milliseconds(seconds))


def _size(count: int | None) -> Entry:
    return amount(count, wording.size(count))


def _range(row: CheckpointRow) -> Entry:
    if row.low_s is None or row.repeats < 2:
        return word(None)
    return Entry(f"{wording.milliseconds(row.low_s)} to {wording.milliseconds(row.high_s)}")
