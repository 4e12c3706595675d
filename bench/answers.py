"""The shared result types: what analysis says and what report, command line and exporters show."""

from typing import Literal

import msgspec

from bench.case import Case
from bench.checkpoint_records import CheckpointRow
from bench.records import Member, Pair
from bench.verify_records import Verification

Verdict = Literal["faster", "slower", "equivalent", "small change", "inconclusive", "not comparable"]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with its 95 % interval; `low` and `high` are None for n = 1."""

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half the interval's width relative to the value, or None."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One device count of a curve. `launches` holds every launch's samples/s."""

    cell: str
    devices: int
    batch: int
    global_batch: int
    samples_per_s: Interval
    per_device: float
    speedup: Interval
    efficiency: Interval
    step_s: float
    launches: tuple[float, ...]
    marks: tuple[str, ...]
    converged: bool | None  # None with one launch


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput against devices for one strategy and one set of settings, under one named base.

    `fraction` of each point past the base: Karp-Flatt (strong) or Gustafson's serial part (weak).
    """

    label: str
    strategy: str
    scaling: Literal["weak", "strong"]
    settings: dict[str, str]
    base: str  # in words: "single, no wrapper", "ddp on 1 rank", "relative to 4 devices"
    base_cell: str
    base_devices: int
    base_samples_per_s: float
    points: tuple[Point, ...]
    serial_fraction: dict[
        int, float | None
    ]  # None on the base's own count, and where a point is slower than it
    note: str | None = None
    reference: bool = False


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two cells that differ in one factor; `ratio` is throughput b / a, paired by block."""

    factor: str
    a: str
    b: str
    a_cell: str
    b_cell: str
    context: str  # what is equal on both sides, in words
    a_samples_per_s: float
    b_samples_per_s: float
    ratio: Interval
    verdict: Verdict
    smallest_visible: float | None  # smallest relative effect this many launches could have shown
    launches_to_decide: int | None
    note: str | None = None
    p_value: float | None = None  # of "no difference", alone
    p_adjusted: float | None = None  # for its family; None where it was not judged in one
    family: int = 0  # comparisons of that family


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """An A/A pair: the same cell twice. `ratio` is throughput of the repeated over the first, paired by block."""

    cell: str
    twin: str
    ratio: Interval
    verdict: Verdict  # anything that claims a difference puts the verdicts off
    smallest_visible: float | None
    p_adjusted: float | None  # Holm, over the A/A pairs
    note: str | None = None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How much a cell's numbers vary, as standard deviations over the value; None where there are too few to tell."""

    step: float | None  # from step to step of one launch
    within: float | None  # what its own steps make a launch's mean vary, autocorrelation counted
    launches: float | None  # between launches of one allocation, beyond that
    allocations: float | None  # between allocations, beyond that
    launch_count: int
    allocation_count: int


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How throughput changed from the first block of a study to its last: a ratio with its interval (Theil-Sen)."""

    study: str
    blocks: int
    change: Interval
    real: bool  # the interval excludes 1 and the change exceeds 2 %


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader should know: a code, what was seen, and what to do about it."""

    code: str
    level: Literal["info", "warning", "problem"]
    message: str
    remedy: str
    evidence: dict[str, str] = {}
    cells: tuple[str, ...] = ()


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of all cells."""

    cell: str
    suite: str
    case: Case
    status: str  # ok, partly, failed, timeout, skipped, not run
    reason: str | None
    launches: int
    failed: int
    samples_per_s: Interval | None
    step_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    phases_s: dict[str, float | None]
    first_step_s: float | None
    first_batch_s: float | None
    efficiency: Interval | None
    memory_bytes: int | None  # fullest rank: device used, or PSS of rank and workers where there is no device
    memory_source: str | None
    marks: tuple[str, ...]
    converged: bool | None
    energy_per_sample_j: float | None = None  # of all its devices together; null where one does not say
    replaced: int = 0  # launches beside these, in whose place another counts
    twin_of: str | None = None  # the cell that it repeats: see Twin
    stopped: str | None = None  # converged, cap, failing, budget or interrupted
    spread: Spread | None = None
    instrumentation: float | None = None  # share of the step that its marks take; of the rank that pays most


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank of one cell, the largest over its launches; bytes, null where not measured."""

    cell: str
    rank: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    device_used_bytes: int | None
    device_total_bytes: int | None
    pinned_bytes: int | None
    rank_pss_bytes: int | None
    workers_pss_bytes: int | None
    shm_used_bytes: int | None


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that is in the study and not in the numbers, and why."""

    launch: str
    cell: str
    status: str
    reason: str
    study: str = ""
    cause: str = ""  # the declared cause, in a word or two: see frame.CAUSES


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The largest known part of a step at N devices that the base does not have, in words and seconds."""

    label: str
    phase: str
    seconds: float
    share: float  # of the step


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best configuration that may win a verdict, or the best of those on more devices."""

    cell: str
    label: str
    samples_per_s: Interval
    efficiency: Interval | None
    base: str | None
    loss: Loss | None
    settings: tuple[str, ...] = ()  # fields that vary in the study and are not at their plainest level here
    over_plain: Interval | None = (
        None  # its throughput over that of the same cell with those at their plainest
    )


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one study with several, and what was measured between them before the first cell."""

    study: str
    nodes: tuple[Member, ...]
    pairs: tuple[Pair, ...]
    box: bool  # the nodes are agents on one machine


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """All-reduces of one size over all ranks of a cell, after the window."""

    bytes: int
    seconds: float  # the least of its ranks, median over launches
    launches: int
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes of one cell send to each other, and over what. Bytes are a step's, of one node, one way."""

    cell: str
    nodes: int
    ranks: int  # in all: the N of the formulas
    interfaces: dict[int, tuple[str, ...]]  # node -> what its ranks' connections to other nodes went over
    step_s: float | None
    sender: int | None  # the node that sent most
    sent_bytes: float | None  # counted by its interfaces, mean over launches
    ring_bytes: float | None  # of a ring all-reduce of the gradients; null where something else is exchanged
    link_bits_per_s: float | None
    link_source: str | None  # where that is known from, in words
    exchanges: tuple[Exchanged, ...]  # by size

    @property
    def sent_bytes_per_s(self) -> float | None:
        """What the interfaces carried over the window."""
        return self.sent_bytes / self.step_s if self.sent_bytes is not None and self.step_s else None


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Studies with several nodes, and their cells on several nodes."""

    clusters: tuple[Cluster, ...]
    cells: tuple[Traffic, ...]


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the report says, as values."""

    study: str
    studies: tuple[str, ...]
    quick: bool
    cells: tuple[CellResult, ...]
    curves: tuple[Curve, ...]
    comparisons: tuple[Comparison, ...]
    findings: tuple[Finding, ...]
    memory: tuple[MemoryRow, ...]
    exclusions: tuple[Exclusion, ...]
    best: Best | None
    best_note: str | None  # why there is no best, or what it may not claim
    device_kind: str  # "CPU rank", "CUDA device", ...
    host: dict
    environment: dict[str, str]
    command: tuple[str, ...]
    target: float
    created_at: str
    left_out: tuple[str, ...]
    truncated_lines: int
    more: Best | None = None  # where more devices than the best's were tried: the fastest of those
    more_ratio: Interval | None = None  # its throughput over the best's
    traces: dict[str, int] = {}  # folder of profiler traces -> files in it
    network: Network | None = None  # where there are several nodes
    checkpoints: tuple[CheckpointRow, ...] = ()  # saved and loaded, where a study has such
    twins: tuple[Twin, ...] = ()
    off: str | None = None  # why no verdict of this analysis holds, or None
    drifts: tuple[Drift, ...] = ()
    verified: tuple[Verification, ...] = ()  # whether ways of training compute the same, a study each
