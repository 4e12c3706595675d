"""What is measured beside the ranks: start the sampler process of a node, stop it, read what it left.

The process itself is sampling.py.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import plugins, temporary
from bench.machine import own_python
from bench.sampling import PERIOD_S, READINGS, Line, Watch
from bench.series import Rows, TelemetrySummary, summarise

__all__ = ["Recording", "Rows", "Telemetry", "no_rows", "read_lines", "write_parquet"]

STOP_S = 3.0  # a sampler stuck in a driver is not waited for


@dataclass(frozen=True)
class Recording:
    """What a sampler left: columns of equal length, and their summary."""

    rows: Rows
    summary: TelemetrySummary


class Telemetry:
    """The sampler of one node during one launch: `start`, then `stop` for what it saw. Never raises."""

    def __init__(
        self,
        engine_pgid: int | None = None,
        *,
        rank_pids: str | os.PathLike[str] | None = None,
        device_uuids: Iterable[str] = (),
        device_reason: str | None = None,
        node: int = 0,
        period_s: float = PERIOD_S,
        samplers: Iterable[str] | None = None,
    ) -> None:
        self.node = node
        self._folder = tempfile.TemporaryDirectory(prefix=temporary.prefix(), ignore_cleanup_errors=True)
        self._out, self._err = (Path(self._folder.name) / name for name in (READINGS, "errors"))
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble: str | None = "was not started"
        self._watch = Watch(
            folder=self._folder.name,
            parent_pid=os.getpid(),
            engine_pgid=engine_pgid,
            rank_pids=None if rank_pids is None else str(rank_pids),
            device_uuids=tuple(device_uuids),
            device_reason=device_reason,
            period_s=period_s,
            samplers=plugins.names("samplers") if samplers is None else tuple(samplers),
        )

    @property
    def pid(self) -> int | None:
        """The sampler process, while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> "Telemetry":
        """Start the sampler process; it is in a session of its own, so Ctrl-C does not end it early."""
        command = own_python("from bench.sampling import main; main()")
        command.append(msgspec.json.encode(self._watch).decode())
        try:
            with self._err.open("wb") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    start_new_session=True,
                )
            self._trouble = None
        except OSError as error:
            self._trouble = f"did not start: {error}"
        return self

    def stop(self) -> Recording:
        """End the sampler and return what it saw; what kept it from sampling is in the summary's reasons."""
        if self._process:
            self._trouble = _end(self._process) or self._trouble
            self._process = None
        rows, reasons = read_lines(self._out, self.node)
        if self._trouble:
            reasons["sampler"] = f"the sampler {self._trouble}{_last_line(self._err)}"
        self._folder.cleanup()
        return Recording(rows=rows, summary=summarise(rows, reasons))


def _end(process: "subprocess.Popen[bytes]") -> str | None:
    """Say stop, wait, kill; what was wrong in words, or None."""
    assert process.stdin
    with contextlib.suppress(OSError):  # it may have ended by itself
        process.stdin.write(b"stop\n")  # a forked child may hold the other end open: closing is not enough
        process.stdin.close()
    try:
        code = process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # not even a kill ends a process inside a driver
            process.wait(STOP_S)
        return "had to be killed: it was stuck"
    return f"ended early with code {code}" if code else None


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {plugins.clip(lines[-1], 200)}" if lines else ""


def read_lines(path: Path, node: int) -> tuple[Rows, dict[str, str]]:
    """Rows and reasons of a sampler's file; a file that is missing or cut short gives what there is."""
    rows = no_rows()
    reasons: dict[str, str] = {}
    decoder = msgspec.json.Decoder(Line)
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        lines = []
    for text in lines:
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError:
            continue  # the sampler was killed in the middle of its last line
        reasons |= line.reasons
        for subject, measure, value in line.values:
            row = (line.time_s, node, sys.intern(subject), sys.intern(measure), value)
            for column, cell in zip(rows.values(), row, strict=True):
                column.append(cell)
    return rows, reasons


def no_rows() -> Rows:
    """The columns of telemetry, empty."""
    return {"time_s": [], "node": [], "subject": [], "measure": [], "value": []}


def write_parquet(path: Path, rows: Rows) -> None:
    """Write rows as Parquet, under a temporary name first: a reader never sees half a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    word = pa.dictionary(pa.int32(), pa.string())
    types = {
        "node": pa.int32(), "subject": word, "time_s": pa.float64(), "measure": word, "value": pa.float64(),
    }  # fmt: skip
    table = pa.table(
        {name: pa.array(rows[name], pa.string() if kind == word else kind) for name, kind in types.items()}
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table.cast(pa.schema(list(types.items()))), temporary)
    os.replace(temporary, path)
