"""One rank: do what the launch asks for, write the trace. What it learns stays in memory until it is done."""

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import msgspec

from bench import guard, progress
from bench.records import Launch, RankTrace
from bench.spelling import did_you_mean

# what a rank may be asked to do: modules with a function `work`
TASKS = {"measure": "bench.measuring", "verify": "bench.verifying", "checkpoint": "bench.checkpointing"}


def run_rank(encoded: bytes) -> None:
    """The entry point of every rank: never raises, always leaves a trace, exits 1 if it failed."""
    launch = msgspec.json.decode(encoded, type=Launch)
    rank = int(os.environ["RANK"])
    guard.end_with(launch.conductor_pid, os.getpgrp())
    # torch has one sent when the fork server is gone: a rank that wrote a trace of it would pass for the culprit
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    multiprocessing.set_start_method(None, force=True)  # loader workers start as in the user's own script
    _log_to(Path(launch.logs) / f"{rank}.log")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the engine asks for the last stack at the time limit
    spare = os.open(
        os.devnull, os.O_RDONLY
    )  # given back at the end: a rank out of descriptors leaves a trace
    said = _collect_warnings()
    beat = progress.open_rank(Path(launch.scratch), int(os.environ["LOCAL_RANK"]))
    known: dict[str, Any] = {
        "launch": launch.launch,
        "rank": rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "node": int(os.environ["GROUP_RANK"]),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "status": "ok",
    }
    finished = Path(launch.scratch) / f"rank{known['local_rank']}.done.json"

    def keep(found: dict[str, Any]) -> None:
        _write(finished, msgspec.json.encode(RankTrace(**known | found, warnings=tuple(said))))

    try:
        task = importlib.import_module(TASKS[launch.task])
        known |= task.work(launch, beat, keep)
    except BaseException as error:  # noqa: BLE001 - SystemExit of user code is a failure too
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # torch's handler raises at every child's end, once a worker has died
        known |= _failure(error)
        traceback.print_exc()
    os.close(spare)
    _end_loader_workers()
    trace = RankTrace(**known, warnings=tuple(said))
    _write(Path(launch.scratch) / f"rank{known['local_rank']}.json", msgspec.json.encode(trace))
    beat[progress.STATE] = progress.DONE
    sys.stdout.flush()
    sys.stderr.flush()
    if trace.status != "ok":
        raise SystemExit(1)


def _failure(error: BaseException) -> dict[str, Any]:
    return {
        "status": "failed",
        "failed_ns": time.monotonic_ns(),
        "error_type": type(error).__name__,
        "error": (_words(error) + did_you_mean(error))[:4000],
    }


def _words(error: BaseException) -> str:
    """An error's text; of a connection to a loader worker that broke, with whose it was: not one between ranks."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    queues = ("multiprocessing/queues.py", "multiprocessing/resource_sharer.py")
    lost = isinstance(error, OSError | EOFError) and any(file.endswith(queues) for file in files)
    return f"DataLoader worker lost: {error}" if lost else str(error)


def _collect_warnings() -> list[str]:
    """Each distinct warning once, for the record, and in the log as always."""
    said: list[str] = []
    show = warnings.showwarning

    def keep(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        text = f"{category.__name__}: {message}"[:500]
        if text not in said and len(said) < 20:
            said.append(text)
            show(message, category, filename, lineno, *rest)

    warnings.showwarning = keep  # type: ignore[assignment]
    return said


def _log_to(path: Path) -> None:
    """Both streams of this rank, and of the workers it forks, go to one file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _end_loader_workers() -> None:
    """Nothing they hold is needed any more, and a busy worker would be waited for."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would take their end for a fault
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError, AttributeError):
            child.kill()


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
