"""Rounds of a real study whose processes are killed at random, resumed to its end, and looked at."""

import datetime
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from bench.records import LaunchRecord
from tests.e2e.command import log_of, ours
from tests.soak.inputs import call

SUITE = """
[case]
strategy = "ddp"
ranks = {ranks}
model = "paced"
data = "paced"
num_workers = 1
nodes = {nodes}
steps = 30
timeout_s = 60.0
[matrix]
batch = {batches}
"""
ONE_CALL = threading.Lock()  # in this process at a time: it takes the streams
PAUSE_S = (0.1, 0.8)  # between kills
BURST = 0.6  # of kills are followed by another one at once
QUIET_S = 20.0  # for what was killed to end, with all that depended on it
# what a launch may be called during which such a process was killed
CLASSES = {
    "conductor": {"interrupted"},
    "engine": {"engine_lost"},
    "fork server": {"engine_lost"},
    "rank": {"signal"},
    "loader worker": {"loader_worker"},
    "follower": {"node_lost"},
    "sampler": set(),
    "resource tracker": set(),
}
LATE_S = {"engine": 120.0, "fork server": 120.0}  # a node that takes no part finds out when it does again
OFTEN = {"rank": 4, "loader worker": 4}  # they live for a launch only; the others have one chance each
SIGNALS = {
    "conductor": (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    "rank": (signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM),
}


class Kill(NamedTuple):
    """One kill: when (wall clock), what, its rank if it was one, by which signal."""

    at_s: float
    kind: str
    rank: int | None
    number: signal.Signals


class Round:
    """One study in a folder of its own. `problems` are lines: what should not have been."""

    def __init__(self, rng: random.Random, nodes: int, cells: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="soak-")).resolve()
        self.kills: list[Kill] = []
        self.problems: list[str] = []
        self.launches: Counter[str] = Counter()
        self.runs = 0
        self._rng, self._nodes = rng, nodes
        self._study = self.folder / "results/s"
        self._temporary = self.folder / "tmp"
        self._temporary.mkdir()
        text = SUITE.format(ranks=2 // nodes, nodes=nodes, batches=list(range(2, 2 + cells)))
        (self.folder / "mine.toml").write_text(text)

    def run(self, kills: int, until_s: float) -> None:
        """Kill so many processes, or until the time is up; then resume without, and look at what there is."""
        while len(self.kills) < kills and time.monotonic() < until_s:
            if self._one_run(lambda: len(self.kills) < kills and time.monotonic() < until_s) == 0:
                break  # all cells have their results: nothing is left to kill
        for _ in range(2):  # one is enough, unless the host is so slow that a launch ran into its time limit
            code = self._one_run(lambda: False)
            if code == 0:
                break
        else:
            self.problems.append(f"--resume without a kill ended with {code}: {self._last_line()}")
        self._look()

    def _one_run(self, more: Callable[[], bool]) -> int:
        """One run of the command, killed at while `more` says so; what is on disk may only grow."""
        before, began = self._lines(), time.time()
        words = ["run", "mine.toml", "--quick", "-o", "results/s"]
        words += ["--nodes", str(self._nodes)] if self._nodes > 1 else []
        words += ["--resume"] if (self._study / "study.json").exists() else []
        self.runs += 1
        with (self.folder / "out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bench", *words],
                cwd=self.folder, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, env=os.environ | {"TMPDIR": str(self._temporary), "COLUMNS": "200"},
            )  # fmt: skip
        while process.poll() is None:
            if time.time() - began > 300:
                self.problems.append("a run did not end in 300 s")
                process.kill()
            if more():
                time.sleep(self._rng.uniform(*PAUSE_S))
                self._kill_one(process)
                while more() and self._rng.random() < BURST:
                    self._kill_one(process)
            else:
                time.sleep(0.1)
        self._nothing_runs()
        if not self._lines().startswith(before):
            self.problems.append("lines that were on disk have changed")
        return process.wait()

    def _kill_one(self, conductor: "subprocess.Popen[bytes]") -> None:
        """One process of the kinds that there are; the many of a kind have no larger share than the one of another."""
        found: dict[str, list[tuple[psutil.Process, int | None]]] = {}
        for process in ours(self.folder):
            kind, rank = self._kind(process, conductor.pid)
            if kind is not None:
                found.setdefault(kind, []).append((process, rank))
        if not found or ("rank" not in found and self._rng.random() < 0.97):
            return  # starting takes longer than a launch: most kills are for those
        kinds = sorted(found)
        kind = self._rng.choices(kinds, [OFTEN.get(kind, 1) for kind in kinds])[0]
        process, rank = self._rng.choice(sorted(found[kind], key=lambda one: one[0].pid))
        number = self._rng.choice(SIGNALS.get(kind, (signal.SIGKILL,)))
        try:
            process.send_signal(number)  # not sent where the number belongs to another process by now
        except psutil.NoSuchProcess:
            return
        self.kills.append(Kill(time.time(), kind, rank, number))

    def _kind(self, process: psutil.Process, conductor: int) -> tuple[str | None, int | None]:
        """What a process is, and its rank if it is one; None for what ends by itself at once."""
        try:
            words, parent = " ".join(process.cmdline()), process.parent()
            above = " ".join(parent.cmdline()) if parent else ""
        except psutil.Error:
            return None, None
        if process.pid == conductor:
            return "conductor", None
        for name, kind in (("--node-rank", "follower"), ("bench.engine", "engine"), ("bench.sampling", "sampler"),
                           ("resource_tracker", "resource tracker")):  # fmt: skip
            if name in words:
                return kind, None
        if "forkserver" not in words or parent is None:
            return None, None
        if "bench.engine" in above:
            return "fork server", None
        log = log_of(process.pid)
        if not log.stem.isdigit():
            return None, None  # a rank that has not come to its log yet
        if log_of(parent.pid) == log:
            return "loader worker", int(log.stem)
        return "rank", int(log.stem)

    def _nothing_runs(self) -> None:
        """Wait until nothing of the study runs."""
        end = time.monotonic() + QUIET_S
        while ours(self.folder) and time.monotonic() < end:
            time.sleep(0.1)
        left = ours(self.folder)
        if left:
            self.problems.append(f"left behind: {[' '.join(p.cmdline())[:200] for p in left]}")
        for process in left:
            process.kill()

    def _look(self) -> None:
        """Every record valid and named plausibly, every cell with its result, no traceback, no trace of the run elsewhere."""
        lines = [line for line in self._lines().splitlines() if line.strip()]
        records = []
        for line in lines:
            try:
                records.append(msgspec.json.decode(line, type=LaunchRecord))
            except msgspec.DecodeError:
                self.problems.append(f"a broken line: {line[:100]!r}")
        for record in records:
            self.launches[record.reason or record.status] += 1
            self._plausible(record)
        cells = {cell.id for cell in self._cells()}
        missing = cells - {record.cell for record in records if record.status == "ok"}
        if missing or not cells:
            self.problems.append(f"cells without a result: {missing or 'all'}")
        out = (self.folder / "out").read_text(errors="replace")
        if "Traceback" in out:
            self.problems.append(f"a traceback: {out[out.index('Traceback') :][:3000]}")
        with ONE_CALL:
            answer = call("report", str(self._study), "-o", str(self.folder / "report.html"))
        if answer.code:
            self.problems.append(f"the report: {answer.fault or answer.text[-300:]}")
        left = [path.name for path in self._temporary.iterdir()]
        if left:
            self.problems.append(f"left in the temporary folder: {left}")

    def _plausible(self, record: LaunchRecord) -> None:
        """A launch fails only where something of it was killed, and is called by that; one killed rank is named."""
        if record.status == "ok":
            return
        began = datetime.datetime.fromisoformat(record.started_at or "").timestamp()
        end = began + 1.0 + (record.wall_s or 0.0)
        near = [
            kill for kill in self.kills if began - 1.0 - LATE_S.get(kill.kind, 0) <= kill.at_s <= end + 0.5
        ]
        allowed = set().union(*(CLASSES[kill.kind] for kill in near)) if near else set()
        told = [(kill.kind, kill.rank, kill.number.name) for kill in near]
        if record.reason not in allowed:
            self.problems.append(f"{record.launch}: {record.reason} ({record.detail}) after {told}")
        elif record.reason == "signal" and len(near) == 1 and record.first_rank != near[0].rank:
            self.problems.append(f"{record.launch}: rank {record.first_rank} named after {told}")

    def _cells(self) -> list:
        from bench.store import Store

        return [cell for cell in Store(self._study).header().cells if cell.skipped is None]

    def _lines(self) -> bytes:
        path = self._study / "launches.jsonl"
        return path.read_bytes() if path.exists() else b""

    def _last_line(self) -> str:
        return (self.folder / "out").read_text(errors="replace").strip().splitlines()[-1][:300]


def shared_names() -> set[str]:
    """What is in /dev/shm, less the small semaphores of Python's multiprocessing."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}
