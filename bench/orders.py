"""What the conductor of two sides and the conductor of one side say to each other: a line each way, of JSON.

The side is asked for its plan, then to begin, then for a block, its cells one by one, and for the block's end.
It ends when its standard input does.
"""

from typing import Any

import msgspec

from bench.records import Cell, LaunchRecord
from bench.stopping import Rules

PROTOCOL = 1


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The first line to a side: what to plan, where its study goes, and who leads."""

    protocol: int = PROTOCOL
    conductor_pid: int
    root: str
    command: tuple[str, ...]
    suites: tuple[str, ...]
    sets: tuple[str, ...] = ()
    nproc: int | None = None
    devices: tuple[int, ...] | None = None
    oversubscribe: bool = False
    rules: Rules
    quick: bool = False


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write study.json, or take the study over; answered by Ready."""

    resume: bool


class Block(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start an engine; answered by Ready."""

    block: int


class Run(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Launch a cell, and again if that was disqualified; answered by Moved and Landed, then by Ready.

    `order` counts the launches of both sides in a block.
    """

    cell: str
    order: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the block's engine; not answered."""


class Planned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer to the request: the side's cells, and the seconds that a launch of each will take."""

    version: str
    cells: tuple[Cell, ...]
    launch_s: dict[str, float]
    host: dict[str, Any]  # machine.comparable, and the host's name
    notes: tuple[str, ...] = ()


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What was asked is done: the study is there, the engine runs, the cell has had its launch."""


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The running launch has come this far."""

    state: str
    step: int
    steps: int


class Landed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A launch is on the disk."""

    record: LaunchRecord


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What was asked cannot be, in one line; the side ends."""

    why: str


Order = Begin | Block | Run | Done
Answer = Planned | Ready | Moved | Landed | Refused
