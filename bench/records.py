"""What a launch leaves behind: a trace a rank, written by the rank, and one record, written by the conductor.

Every duration is in seconds, every size in bytes; None means "not measured" and is never 0.
"""

from typing import Literal

import msgspec

from bench.case import Case
from bench.checkpoint_records import Attempt, Checkpointing
from bench.verify_records import Check

SCHEMA = 1

PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "other")


def marks_a_step(micro_batches: int) -> int:
    """Points that the timed loop marks a step: the first four phases once a micro-batch, the others once."""
    return 4 * micro_batches + 2


Status = Literal["ok", "failed", "timeout", "skipped", "interrupted"]
Steady = Literal["steady", "assumed", "unsteady"]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One launch as it is handed to the ranks of this node."""

    launch: str
    case: Case
    task: Literal["measure", "checkpoint", "verify"] = "measure"
    scratch: str  # a folder of this node: traces and progress of the ranks
    logs: str  # a folder: one log a rank
    conductor_pid: int
    device_kind: str = "cpu"  # what the host has: a rank that finds something else refuses to measure
    devices: tuple[int, ...] | None = None  # visible ordinals to use; None: all, in order
    oversubscribed: bool = False
    traces: str | None = None  # a folder for profiler traces of a few steps after the window
    node: int = 0  # of the nodes of this launch, counted from 0
    store: str | None = None  # HOST:PORT of the study's store, where ranks of several nodes meet
    interface: str | None = None  # of this node, towards the others
    probe_network: bool = False  # all-reduces of several sizes after the window
    checkpointing: Checkpointing | None = None  # of the task "checkpoint": what to save and load


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's process ended, as the engine saw it."""

    local_rank: int
    pid: int
    exitcode: int | None
    died_ns: int | None
    killed: bool = False  # by the engine, after a first failure or at the time limit


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's answer: how every local rank ended, and what it saw at the time limit."""

    launch: str = ""
    ranks: tuple[Ended, ...] = ()
    timed_out: bool = False
    marks_passed: tuple[int, ...] = ()  # at the time limit: phase marks of the timed loop
    states: tuple[int, ...] = ()  # at the time limit: see progress.STATES
    stopped: tuple[bool, ...] = ()  # at the time limit: stopped by a signal
    still_s: tuple[float, ...] = ()  # at the time limit: since a rank last moved
    longest_s: tuple[float, ...] = ()  # the longest that it had stood still before, and moved again
    planned: int = 0  # at the time limit: steps of the window
    in_window_s: float | None = None  # at the time limit: since all ranks were in the window
    error: str | None = None  # the agent itself failed


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Where warm-up ends: steps `first..` are the steady window. Drift is over the whole window."""

    first: int
    state: Steady
    drift: float | None = None
    drift_low: float | None = None
    drift_high: float | None = None
    extended: bool = False
    note: str | None = None


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """What really ran, read back inside the rank."""

    wrapper: str  # class of the module that was trained
    implementation: Literal["torch", "reference"]
    stand_ins: tuple[str, ...] = ()  # what replaces the real thing: paced model, reference DataParallel, ...
    world_size: int
    backend: str | None  # None where no process group exists
    device: str
    device_name: str | None
    device_uuids: tuple[str, ...] = ()
    devices_used: int  # devices this rank drives
    chunks: tuple[int, ...] | None = None  # DataParallel: samples a replica
    threads: int
    interop_threads: int
    omp_num_threads: str | None
    affinity: tuple[int, ...]
    batch_norm_layers: int
    sync_bn_layers: int
    sync_bn: str | None  # class of those layers
    num_workers: int | None
    pinned: bool | None  # did the batches arrive in page-locked memory
    prefetch_factor: int | None
    persistent_workers: bool | None
    batch: int  # samples in this rank's first batch
    batch_bytes: int | None = None  # its tensors, as they pass through /dev/shm
    parameters: int
    gradient_bytes: int
    optimizer: str
    precision: str  # fp32, tf32, tf32 convolutions, bf16, fp16; or the type of the parameters
    weights_hash: str
    worker_affinity: tuple[int, ...] | None = None  # of the first loader worker
    numa_nodes: tuple[int, ...] | None = None  # that the rank's CPUs lie on
    page_cache_share: float | None = None  # of the data set's files, after the window
    channels_last: bool | None = None
    fused: bool | None = None
    micro_batches: int | None = None
    compute_dtype: str | None = None  # in which the first layer with weights computed
    loss_scale: float | None = None  # of the gradient scaler, after the window
    compiled_graphs: int | None = None
    graph_breaks: int | None = None
    parameter_bytes: int | None = None  # that this rank holds
    optimizer_state_bytes: int | None = None  # that this rank holds
    bucket_cap_bytes: int | None = None
    buckets_bytes: tuple[int, ...] | None = None  # DDP's gradient buckets, in order of exchange
    gradient_as_bucket_view: bool | None = None
    static_graph: bool | None = None
    find_unused_parameters: bool | None = None
    broadcast_buffers: bool | None = None
    comm_hook: str | None = None


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one rank: what the data set holds, what an epoch gives it, what was stepped."""

    dataset_len: int | None
    per_epoch: int | None
    padded: int | None  # duplicated by the sampler to make ranks equal, over all ranks, an epoch
    dropped: int | None  # left out of an epoch, over all ranks
    seen: int  # stepped in all recorded steps
    in_window: int  # stepped in the steady window
    epochs: int  # epochs begun


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank, in bytes; null where the platform has no such thing."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_used_source: str | None = None
    device_total_bytes: int | None = None
    per_device_allocated_bytes: tuple[int, ...] | None = None  # one process, several devices
    pinned_bytes: int | None = None
    rank_pss_start_bytes: int | None = None
    rank_pss_bytes: int | None = None
    workers_pss_bytes: int | None = None
    workers: int | None = None
    shm_used_bytes: int | None = None
    open_fds_start: int | None = None
    open_fds: int | None = None


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One all-reduce of `bytes` over all ranks, after the window: the median of a rank's `repeats`."""

    bytes: int
    seconds: float
    repeats: int


class RankNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's connections to other ranks really went over, and what all-reduces took after the window."""

    interfaces: tuple[str, ...] | None = None  # of its TCP connections to other nodes; None: not known
    speed_mbit: int | None = None  # of the first of them, as the kernel says
    exchanges: tuple[Exchange, ...] = ()


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one rank knows when it ends, well or badly. Lists are one entry a recorded step."""

    launch: str
    rank: int
    local_rank: int
    node: int
    host: str
    pid: int
    status: Literal["ok", "failed"]
    error_type: str | None = None
    error: str | None = None
    failed_ns: int | None = None  # CLOCK_MONOTONIC
    rendezvous_s: float | None = None
    build_s: float | None = None
    first_batch_s: float | None = None  # loader made -> first batch in hand
    compile_s: float | None = None  # steps before the window, in which torch.compile works
    trace_s: float | None = None  # profiler traces after the window
    first_step_s: float | None = None
    last_loss: float | None = None  # null too where it was not finite: see loss_finite
    loss_finite: bool | None = None
    clock: Literal["cpu", "events"] = "cpu"
    step_s: tuple[float, ...] = ()
    phases_s: dict[str, tuple[float, ...] | None] = {}
    samples: tuple[int, ...] = ()
    cut: Cut | None = None
    window_s: float | None = None  # wall time of this rank's steady window
    window_start_ns: int | None = None  # CLOCK_MONOTONIC
    window_end_ns: int | None = None
    segments: tuple[int, ...] = ()  # steps a segment: one, or two where the window was extended
    effective: Effective | None = None
    counts: Samples | None = None
    memory: RankMemory | None = None
    network: RankNetwork | None = None
    network_s: float | None = None  # all-reduces after the window
    instrumentation_s: float | None = (
        None  # a step: what its time stamps and phase marks cost, timed after the window
    )
    checkpoints: tuple[Attempt, ...] | None = None  # of the task "checkpoint"
    verified: tuple[Check, ...] | None = None  # of the task "verify": on rank 0
    warnings: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What one node knows of a launch when its ranks have ended: it travels to the node that leads."""

    node: int = 0
    host: str = ""
    outcome: Outcome = Outcome()
    traces: tuple[RankTrace, ...] = ()
    lost: str | None = None  # what became of the engine, where it did not answer
    stopped: bool = False  # the leader asked for it, since another node had failed
    oom_kills: int = 0
    wall_s: float = 0.0
    readings: dict[str, list] = {}  # telemetry: columns of equal length
    reasons: dict[str, str] = {}
    files: dict[str, bytes] = {}  # logs and profiler traces, by name


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a record: means over its steady window."""

    rank: int
    node: int
    host: str
    pid: int
    status: str
    step_s: float | None = None  # window_s / steps
    phases_s: dict[str, float | None] = {}
    rendezvous_s: float | None = None
    build_s: float | None = None
    first_batch_s: float | None = None
    compile_s: float | None = None
    first_step_s: float | None = None
    last_loss: float | None = None
    effective: Effective | None = None
    counts: Samples | None = None
    memory: RankMemory | None = None
    network: RankNetwork | None = None
    instrumentation_s: float | None = None
    warnings: tuple[str, ...] = ()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The steady window of a launch, over all ranks.

    `samples_per_s` = samples stepped by all ranks / wall time of the window; `step_s` = that wall
    time / steps. Percentiles are of the slowest rank's time in each step.
    """

    steps: int
    samples: int
    wall_s: float
    samples_per_s: float | None
    step_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    outliers: int  # Tukey, counted, never dropped
    cut: Cut
    step_sd: float | None = None  # standard deviation of the steps over their mean
    mean_error: float | None = (
        None  # standard error of their mean over it, neighbours being alike; None below 20
    )


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of launches.jsonl. A launch that failed is a record with a reason, not an exception."""

    schema: int = SCHEMA
    launch: str
    cell: str
    block: int
    order: int
    status: Status
    reason: str | None = None  # class of the failure: see failures.py
    detail: str | None = None  # one line
    first_rank: int | None = None  # the rank that failed first, where that is known
    first_node: int | None = None  # its node, or the node that was lost
    signal: str | None = None
    started_at: str = ""
    wall_s: float | None = None  # the launch, from asking for it to its record
    overhead_s: float | None = None  # wall_s less the recorded steps
    requested: Case
    clock: Literal["cpu", "events"] | None = None
    window: Window | None = None
    phases_s: dict[str, float | None] = {}  # mean over ranks of the window means
    first_step_s: float | None = None  # slowest rank
    first_batch_s: float | None = None
    compile_s: float | None = None  # slowest rank; outside the window
    implementation: Literal["torch", "reference"] | None = None
    marks: tuple[str, ...] = ()  # oversubscribed, stand-ins, ...: said beside every number of this row
    mismatches: tuple[str, ...] = ()  # requested against effective: such a row enters no comparison
    contaminated: tuple[str, ...] = ()  # what else went on in the window: see contamination.py
    disqualified: bool = False  # by a cause declared for that: run again in its block, within a cap
    retry_of: str | None = None  # the disqualified launch in whose place this one was run
    run: int = 0  # of the study that it is part of: one more with each --resume
    ranks: tuple[RankSummary, ...] = ()
    telemetry: dict[str, dict[str, float | None]] = {}  # measure -> mean and max, or total
    telemetry_reasons: dict[str, str] = {}  # measure -> why it is null
    environment: dict[str, str] = {}  # speed-changing variables
    fingerprint: str = ""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """What two nodes measured between them before the first cell, over the interface that they use."""

    first: int
    second: int
    latency_s: float | None = None  # half of the shortest round trip of a few bytes
    bits_per_s: float | None = None  # one TCP stream; None where it could not be measured
    error: str | None = None  # they could not reach each other


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a study: who it is and how the others reach it."""

    node: int
    hostname: str
    address: str | None = None
    interface: str | None = None
    speed_mbit: int | None = None
    clock_ahead_s: float | None = None  # its wall clock less the leader's
    fingerprint: str = ""
    host: dict = {}  # machine.Host as plain data


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of the plan: a case, or the reason why it is skipped."""

    id: str
    case: Case
    suite: str
    skipped: str | None = None
    twin_of: str | None = None  # id of the cell that this one repeats: an A/A pair


class StudyHeader(msgspec.Struct, frozen=True, kw_only=True):
    """study.json: what was asked, of what, on what."""

    schema: int = SCHEMA
    study: str
    version: str
    suites: tuple[str, ...]
    cells: tuple[Cell, ...]
    factors: dict[str, tuple[str | int | float | bool | None, ...]]
    created_at: str
    seed: int
    command: tuple[str, ...]
    quick: bool
    target: float  # wanted half-width of a cell's interval, relative
    min_launches: int
    max_launches: int
    budget_s: float | None
    git: str | None
    host: dict  # machine.Host as plain data
    left_out: tuple[str, ...] = ()  # what did not fit the time, in words
    nodes: tuple[Member, ...] = ()  # where there are several
    box: bool = False  # the nodes are agents on one machine, and share its CPUs
    pairs: tuple[Pair, ...] = ()
    example: bool = False
