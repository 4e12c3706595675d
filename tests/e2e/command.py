"""Run scalemark as a user does: a process of its own, in a folder of its own."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from bench.records import LaunchRecord

HERE = Path(__file__).parent


def start(folder, *words, **options):
    """scalemark WORDS in `folder`, in a session of its own, its output in `folder`/out."""
    shutil.copy(HERE / "faulty.py", folder)
    with (folder / "out").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "bench", *words],
            cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"COLUMNS": "200"}, **options,
        )  # fmt: skip


def scalemark(folder, *words, **options):
    """Run to the end; returns exit code and output."""
    (folder / "out").unlink(missing_ok=True)
    code = start(folder, *words, **options).wait(timeout=280)
    return code, (folder / "out").read_text()


def suite(folder, text, name="mine.toml"):
    """A suite file in `folder`."""
    (folder / name).write_text(text)
    return name


def records(study, again=False):
    """The launches of a study, in order; with `again` also those that other work on the machine had run again."""
    lines = (study / "launches.jsonl").read_bytes().splitlines()
    found = [msgspec.json.decode(line, type=LaunchRecord) for line in lines]
    return [record for record in found if again or record.retry_of is None]


def wait_for(condition, limit_s=60.0):
    """Poll until the condition holds; fails if it never does."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def ours(marker):
    """Processes of a run whose working directory is `marker`: conductor, engine, ranks, samplers."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(marker):
                found.append(process)
        except psutil.Error:
            continue
    return found


def ranks(marker):
    """Ranks of a run: what writes to a rank's log, less the loader workers, whose parent writes to it too."""
    found = {}
    for process in ours(marker):
        log = log_of(process.pid)
        if log.suffix != ".log" or not log.stem.isdigit():
            continue
        with contextlib.suppress(psutil.Error):
            if log_of(process.ppid()) != log:
                found[int(log.stem)] = process
    return found


def log_of(pid):
    """The file that is a process's standard output, such as a rank's log; an empty path where it cannot be read."""
    try:
        return Path(os.readlink(f"/proc/{pid}/fd/1"))
    except OSError:
        return Path()


def kill(process, number=signal.SIGKILL):
    """Send a signal to the process, not to its children."""
    os.kill(process.pid, number)
