"""Checkpoints as values: what a launch is asked to write and read, what a rank found, one row of the results.

Durations are in seconds, sizes in bytes; None means "not measured" and is never 0.
"""

from typing import Literal

import msgspec

SCHEMA = 1  # of a line of checkpoints.jsonl

Format = Literal["state_dict", "model", "dcp"]
Writer = Literal["rank 0", "every rank"]
Made = Literal["", "location tag", "cut short"]
MapLocation = Literal["none", "device", "dict", "other dict", "cpu", "in place"]
Prefix = Literal["as it is", "stripped", "added"]
Outcome = Literal["ok", "refused", "mismatch", "failed"]

MAPS: tuple[MapLocation, ...] = ("none", "device", "dict", "other dict", "cpu")
AS_IT_IS, BY_DEFAULT, CUT = "keys as they are", "torch's default weights_only", "cut short"
TYPICAL = ("device", "in place")  # ways whose time stands for the others
WAYS = (*MAPS, "in place", AS_IT_IS, BY_DEFAULT, CUT)


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file that a run wrote, or the folder of torch.distributed.checkpoint. `name` is below the run's own folder."""

    name: str
    bytes: int
    saved_on: str  # location tag of its tensors: where torch.load puts them unless told otherwise
    sha256: str | None = None  # of a whole model or a folder, which are unpickled by this run only
    reference: tuple[
        str, ...
    ] = ()  # files with the digests of its tensors; for several, one of them has to fit


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to write. `made` is what stands in for a file from elsewhere; such a save is not timed."""

    id: str
    format: Format
    writer: Writer = "rank 0"
    made: Made = ""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to read: rank r takes file r, or the only one."""

    id: str
    format: Format
    files: tuple[File, ...]
    way: str  # a map_location, or the mistake that is tried
    map_location: MapLocation
    default_weights_only: bool = (
        True  # torch.load's own (True for a state dict); else weights_only=False, for files of this run
    )
    repeats: int = 1
    cold: bool = False  # from the disk too
    fix_prefix: bool = True  # take off, or put on, one leading `module.` where all keys ask for it


class Checkpointing(msgspec.Struct, frozen=True, kw_only=True):
    """What one launch does with checkpoints below `folder`; each save `repeats` times."""

    folder: str
    name: str  # of the saver: its files begin with it
    repeats: int = 1
    saves: tuple[Save, ...] = ()
    loads: tuple[Load, ...] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a save or a load. Tuples of seconds are one entry a repeat."""

    id: str
    outcome: Outcome = "ok"
    message: str = ""
    own_s: tuple[float, ...] = ()  # until this rank's own call had returned
    all_s: tuple[float, ...] = ()  # until every rank had: what the training stands still
    durable_s: tuple[float, ...] = ()  # until every rank had, and until the disk has it (fsync)
    cold_s: tuple[float, ...] = ()  # own, the file read from the disk
    cold: str = ""  # why there is no cold read
    files: tuple[File, ...] = ()
    extra_rss_bytes: int | None = None  # peak over what the process held before
    peak_allocated_bytes: int | None = None  # on the device
    tensors: int | None = None
    equal: bool | None = None  # every tensor bit by bit
    differing: str | None = None  # the first tensor that is not
    prefix: Prefix | None = None
    came_as: str | None = None  # class of the wrapper that a whole model came in
    elsewhere: dict[str, int] = {}  # bytes of loaded tensors on devices that are not this rank's


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of checkpoints.jsonl: a save, or a load, over all ranks.

    `seconds` is the median over repeats of the slowest rank: for a save until all ranks go on, waiting included;
    for a load with the file in the page cache. `low_s` and `high_s` are its extremes.
    """

    schema: int = SCHEMA
    kind: Literal["save", "load"]
    saver: str
    saver_ranks: int
    saver_nodes: int
    format: Format
    writer: Writer
    made: Made = ""
    loader: str | None = None
    loader_ranks: int | None = None
    loader_nodes: int | None = None
    way: str = ""  # of loading: a map_location, or the mistake that was tried: see WAYS
    map_location: MapLocation | None = None
    map_says: str | None = None  # rank 0's argument
    weights_only: bool | None = None  # None: not said, torch's default
    saved_on: str | None = None
    outcome: Outcome = "ok"
    message: str = ""
    seconds: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    repeats: int = 0
    rank0_s: float | None = None
    durable_s: float | None = None
    cold_s: float | None = None
    cold: str = ""
    bytes: int | None = None
    files: int | None = None
    extra_rss_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    tensors: int | None = None
    equal: bool | None = None
    differing: str | None = None
    prefix: Prefix | None = None
    came_as: str | None = None
    elsewhere: dict[str, int] | None = None  # "rank 1 on cuda:0" -> bytes; None where there is no accelerator
    stand_in: str = ""  # what replaces the real thing on this host


def location(kind: MapLocation, saved_on: str, here: str) -> str | dict[str, str] | None:
    """The argument `map_location` of a kind, for a file saved on one device and a rank on another."""
    if kind in ("none", "in place"):
        return None
    if kind == "cpu":
        return "cpu"
    if kind == "device":
        return here
    if kind == "dict":
        return {saved_on: here}
    other = next(f"cuda:{index}" for index in (7, 6) if f"cuda:{index}" != saved_on)
    return {other: here}
