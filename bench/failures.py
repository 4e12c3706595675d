"""What a failure is called, and which rank failed first. Strings and numbers in, words out."""

import re
import signal as signals
from collections.abc import Sequence

import msgspec

# In order: the first pattern that matches "<type>: <text>" names the class.
PATTERNS = (
    (
        "oom_device",
        r"OutOfMemoryError|CUDA out of memory|Cuda failure.*out of memory|CUBLAS_STATUS_ALLOC_FAILED",
    ),
    ("shm_full", r"(?<!resource: )shared memory|/dev/shm|Bus error|write to file </torch_"),
    ("fd_limit", r"Too many open files|received 0 items of ancdata|Errno 24\b"),
    (
        "thread_limit",
        r"can't start new thread|[Tt]hread creation failed|pthread_create|^BlockingIOError.*Errno 11\b"
        r"|^\w+: Resource temporarily unavailable",
    ),
    ("disk_full", r"No space left on device|Errno 28\b"),
    ("oom_host", r"MemoryError|can't allocate memory|Cannot allocate memory|not enough memory"),
    ("port_in_use", r"EADDRINUSE|address already in use|Address already in use"),
    ("batchnorm_single_value", r"more than 1 value per channel"),
    ("unused_parameters", r"Expected to have finished reduction in the prior iteration"),
    ("uneven_batches", r"uneven number of batches"),
    (
        "compile",
        r"InductorError|BackendCompilerFailed|torch\._dynamo\.exc|CppCompileError|TorchDynamoError"
        r"|^(Unsupported|TorchRuntimeError):",
    ),
    ("process_group", r"[Dd]efault process group (has not been initialized|twice)|env:// rendezvous"),
    ("unknown_backend", r"Unknown (c10d )?backend type"),
    (
        "no_such_device",
        r"invalid device ordinal|No CUDA GPUs|not compiled with CUDA|Cannot access accelerator device",
    ),
    ("sync_bn_device", r"SyncBatchNorm (layers only work|expected input tensor)"),
    (
        "loader_options",
        r"\w+ option (is mutually exclusive|could only be specified|needs num_workers|should be non-negative)",
    ),
    ("no_such_name", r"module 'torch[\w.]*' has no attribute|got an unexpected keyword argument"),
    ("import_error", r"ModuleNotFoundError|ImportError"),
    (
        "loader_worker",
        r"DataLoader worker|DataLoader timed out",
    ),  # whose own connections are not those between ranks
    (
        "communication",
        r"Connection closed by peer|Connection reset|Broken pipe|Connection refused|Gloo .*fail|gloo/transport"
        r"|NCCL error|DistBackendError|DistNetworkError|DistStoreError|Timed out waiting|Socket Timeout"
        r"|Wait timeout|store.*timeout|Rendezvous|barrier.*timed out",
    ),
    ("usage", r"^UsageError"),
)

REMEDIES = {
    "oom_device": "lower the batch, or use a device with more memory",
    "oom_host": "use fewer loader workers or ranks, or raise the memory limit of this container",
    "shm_full": "raise /dev/shm (docker: --shm-size), or lower num_workers, prefetch_factor or the batch",
    "fd_limit": "raise the limit of open files (ulimit -n), or lower num_workers",
    "thread_limit": "raise the limit of processes (ulimit -u; docker: --pids-limit), or lower num_workers and threads",
    "disk_full": "free space where temporary files and results are written",
    "port_in_use": "let the suite choose a free port, or stop the process that holds it",
    "batchnorm_single_value": "give every device at least two samples a step",
    "unused_parameters": "a parameter gets no gradient: use it in the loss, or set find_unused_parameters=true",
    "compile": "leave compile out, or look at the rank's log for the graph that failed",
    "uneven_batches": "give every rank the same number of batches (drop the tail or pad it)",
    "process_group": "the suite forms the group, under ddp only: leave init_process_group and wrapping to it",
    "unknown_backend": "leave the backend to the suite, or set backend to one that `scalemark doctor` lists",
    "no_such_device": "leave devices to the suite; code of your own takes them by LOCAL_RANK, never by RANK",
    "sync_bn_device": "torch's SyncBN needs accelerators: leave it to the suite (sync_bn=true)",
    "loader_options": "return the data set and let the suite make loader and sampler",
    "no_such_name": "look at the spelling, and at the torch that is installed here",
    "import_error": "install what the model needs in the environment that runs the suite",
    "communication": "look at the log of the first failing rank; check interface and firewall",
    "loader_worker": "look at the rank's log: a loader worker died or hung",
    "signal": "look at who sent the signal: the kernel's log names its out-of-memory kills",
    "too_slow": "raise timeout_s, or lower steps or the batch",
    "hang": "look at the rank's log for its last stack; raise timeout_s if the step is only slow",
    "exception": "look at the rank's log for the traceback",
    "engine_lost": "the process that runs the ranks died; run again with --resume",
    "node_lost": "look at that node (is it up, does the network reach it?); start its line again, or --resume",
    "rendezvous": "look at that node's log; the ranks of all nodes must come within timeout_s",
    "interrupted": "run again with --resume",
    "usage": "correct what the message names",
}

# Classes that would fail the same way again: one such failure closes a cell.
HOPELESS = {
    "oom_device",
    "too_slow",
    "compile",
    "usage",
    "batchnorm_single_value",
    "unused_parameters",
    "uneven_batches",
    "process_group",
    "unknown_backend",
    "no_such_device",
    "sync_bn_device",
    "loader_options",
    "no_such_name",
    "import_error",
}


STILL_S = 2.0  # a rank that has not moved for this long, and never paused as long, does not move any more


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank ended, from every witness: its own trace, its exit code, its time of death."""

    rank: int
    exitcode: int | None  # negative: a signal; None: not known
    ok: bool = False
    error_type: str | None = None
    error: str | None = None
    failed_ns: int | None = None  # stamped by the rank itself, or its time of death
    killed_by_us: bool = False  # after the first failure, or at the time limit


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The class of a failure, the rank that failed first (None: cannot tell), and one line."""

    reason: str
    first_rank: int | None
    detail: str
    signal: str | None = None
    first_node: int | None = None  # that of the rank, or the node that was lost


def classify(error_type: str | None, error: str | None) -> str:
    """The class of an exception, from its type and text."""
    text = f"{error_type or ''}: {error or ''}"
    for reason, pattern in PATTERNS:
        if re.search(pattern, text):
            return reason
    return "exception"


def signal_name(exitcode: int | None) -> str | None:
    """SIGKILL for -9; None for an exit that was no signal."""
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signals.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def first_failure(ends: Sequence[RankEnd], oom_kills: int = 0) -> Verdict | None:
    """Name the rank that failed first, or None where none failed.

    A signal or an exception outranks a communication error, which is what the victims of a dead peer
    report; among equals the earliest stamp decides.
    """
    failed = [end for end in ends if not end.ok and not (end.killed_by_us and end.error is None)]
    if not failed:
        return None
    first = min(failed, key=lambda end: (_victim(end), end.failed_ns or 2**63))
    tie = sum(_victim(end) == _victim(first) and end.failed_ns is None for end in failed) > 1
    return Verdict(
        reason=_reason(first, oom_kills),
        first_rank=None if tie else first.rank,
        detail=_detail(first, oom_kills),
        signal=signal_name(first.exitcode) if first.error is None else None,
    )


def stuck_rank(
    marks_passed: Sequence[int], stopped: Sequence[bool], ranks: Sequence[int] | None = None
) -> tuple[int | None, str]:
    """Which rank a hung launch waits for: a stopped one, or the one that is furthest behind.

    `marks_passed` counts the phase marks each rank has passed. Ranks that wait in the same phase of
    the same step cannot be told apart. `ranks` names them, where they are not 0, 1, 2, ...
    """
    ranks = range(len(marks_passed)) if ranks is None else ranks
    if sum(stopped) == 1:
        rank = ranks[list(stopped).index(True)]
        return rank, f"rank {rank} is stopped (SIGSTOP)"
    least = min(marks_passed)
    behind = [rank for rank, marks in zip(ranks, marks_passed, strict=True) if marks == least]
    if len(behind) == 1 and len(marks_passed) > 1:
        return behind[0], f"rank {behind[0]} is furthest behind"
    if len(marks_passed) == 1:
        return ranks[0], "the only rank got no further"
    return None, "all ranks wait at the same point: the rank cannot be named"


def moving(still_s: Sequence[float], longest_s: Sequence[float], stopped: Sequence[bool]) -> bool:
    """Whether every rank has moved lately: within twice the longest that it had stood still before, or 2 s."""
    paces = zip(still_s, longest_s, strict=True)
    return bool(still_s) and not any(stopped) and all(s <= max(STILL_S, 2 * longest) for s, longest in paces)


def too_slow(limit_s: float, steps: float, planned: int, window_s: float) -> Verdict:
    """A launch that came to its time limit while it moved: how far it came, and what it needs by that pace."""
    needed_s = limit_s + window_s * (planned - steps) / steps if steps else 0.0
    needed = f"; about {1.1 * needed_s:.0f} s are needed" if needed_s > limit_s else ""
    detail = (
        f"time limit of {limit_s:g} s reached after {int(steps)} of {planned} steps{needed}: raise timeout_s"
    )
    return Verdict(reason="too_slow", first_rank=None, detail=detail)


def compiling(limit_s: float) -> Verdict:
    """A launch that came to its time limit in torch.compile, which passes no marks."""
    detail = (
        f"time limit of {limit_s:g} s reached while torch.compile worked, before the window: raise timeout_s"
    )
    return Verdict(reason="too_slow", first_rank=None, detail=detail)


def _victim(end: RankEnd) -> bool:
    return end.error is not None and classify(end.error_type, end.error) == "communication"


def _reason(end: RankEnd, oom_kills: int) -> str:
    if end.error is not None:
        found = classify(end.error_type, end.error)
        return "oom_host" if found == "loader_worker" and oom_kills else found
    name = signal_name(end.exitcode)
    if name == "SIGKILL" and oom_kills:
        return "oom_host"
    if name == "SIGBUS":
        return "shm_full"
    return "signal" if name else "exception"


def _detail(end: RankEnd, oom_kills: int) -> str:
    if end.error is not None:
        return f"rank {end.rank}: {end.error_type}: {one_line(_own_words(end.error))}"
    name = signal_name(end.exitcode)
    if name:
        cause = " by the kernel: out of memory" if name == "SIGKILL" and oom_kills else ""
        return f"rank {end.rank}: ended by {name}{cause}"
    code = "an unknown exit code" if end.exitcode is None else f"exit code {end.exitcode}"
    return f"rank {end.rank}: ended with {code} and left no trace"


def _own_words(error: str) -> str:
    """The traceback that torch puts into what a loader worker raised is in the log: its first and last lines tell."""
    first, told, traceback = error.partition("Original Traceback (most recent call last):")
    return f"{first.strip()} {traceback.strip().splitlines()[-1]}" if told and traceback.strip() else error


def one_line(text: str, length: int = 300) -> str:
    """The text in one line, control characters gone, clipped."""
    flat = " ".join("".join(ch if ch.isprintable() else " " for ch in text).split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"
