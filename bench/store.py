"""Every path and file under results/: one folder a study.

    study.json                 StudyHeader, written whole
    launches.jsonl             one LaunchRecord a line, only ever appended to
    checkpoints.jsonl          one CheckpointRow a line: what scalemark checkpoint saved and loaded
    verify.json                Verification, written whole: do the ways of training compute the same?
    steps/<launch>.parquet     every recorded step of every rank
    telemetry/<launch>.parquet what was sampled beside the ranks
    logs/<launch>/<rank>.log   what the ranks printed

No NaN reaches a file: JSON has null in its place (msgspec), and so has the Parquet (`finite`).
"""

import contextlib
import errno
import fcntl
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from bench.checkpoint_records import CheckpointRow
from bench.errors import UsageError
from bench.records import PHASES, SCHEMA, LaunchRecord, RankTrace, StudyHeader
from bench.verify_records import VERIFY_SCHEMA, Verification

RESULTS = Path("results")
HEADER = "study.json"
LAUNCHES = "launches.jsonl"
CHECKPOINTS = "checkpoints.jsonl"
VERIFIED = "verify.json"

_LARGE = re.compile(rb"\d{19}|[eE]\+?\d\d")  # 1e30 is a whole number, too, where one is expected
BEGUN = (".lock", ".writable", f"{HEADER}.tmp")  # what a run leaves that was killed before it had its header

_records = msgspec.json.Decoder(LaunchRecord)
T = TypeVar("T")


def decoded(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    """What the decoder makes of the data. Raises msgspec.DecodeError, for what is nested beyond Python's stack too."""
    try:
        return decoder.decode(data)
    except RecursionError:
        raise msgspec.DecodeError("JSON is malformed: nested too deeply") from None


class _Version(msgspec.Struct):
    schema: int = SCHEMA


class _HostFacts(msgspec.Struct, frozen=True):
    """What is read of a host, which a header has as plain data; other facts may be of any type."""

    cpus_usable: float | None = None
    cpus_counted: float | None = None
    shm_free_bytes: int | None = None
    accelerator: str | None = None
    devices: list[dict[str, Any]] = []
    nics: list[dict[str, Any]] = []
    ports: list[dict[str, Any]] = []
    variables: dict[str, Any] = {}


class _Facts(msgspec.Struct, frozen=True):
    host: _HostFacts


class Broken(NamedTuple):
    """A line of launches.jsonl that is no record: its number, from 1, and what is wrong with it."""

    line: int
    problem: str


@dataclass(frozen=True)
class Store:
    """One study on disk. `root` is its folder; its name is the study's."""

    root: Path

    @property
    def name(self) -> str:
        """The study's name: that of its folder."""
        return self.root.name

    @property
    def header_path(self) -> Path:
        """study.json."""
        return self.root / HEADER

    @property
    def launches_path(self) -> Path:
        """launches.jsonl."""
        return self.root / LAUNCHES

    def steps_path(self, launch: str) -> Path:
        """The Parquet file of a launch's steps."""
        return self.root / "steps" / f"{launch}.parquet"

    def telemetry_path(self, launch: str) -> Path:
        """The Parquet file of a launch's telemetry; its folder is made."""
        return self._folder("telemetry") / f"{launch}.parquet"

    def log_dir(self, launch: str) -> Path:
        """The folder of a launch's logs, one file a rank; it is made."""
        return self._folder("logs", launch)

    @property
    def traces_dir(self) -> Path:
        """Where the folders of traces lie; there may be none."""
        return self.root / "traces"

    def trace_dir(self, launch: str) -> Path:
        """The folder of a launch's profiler traces, one Chrome trace a rank; it is made."""
        return self._folder(self.traces_dir.name, launch)

    def _folder(self, *names: str) -> Path:
        """A folder in the study, made; not the study's own: one that was removed while it ran does not come back by halves."""
        folder = self.root
        for name in names:
            folder = folder / name
            folder.mkdir(exist_ok=True)
        return folder

    def create(self, header: StudyHeader, resume: bool = False) -> None:
        """Write study.json whole. With `resume` an existing study is taken over, its header rewritten.

        Raises UsageError for a folder that holds a study already, or something else.
        """
        if self.header_path.exists():
            if not resume:
                raise UsageError(
                    f"{self.root}: holds a study already; go on with it by --resume, or give another name by -o"
                )
        elif self.root.exists() and any(path.name not in BEGUN for path in self.root.iterdir()):
            raise UsageError(
                f"{self.root}: is in use, but not by a study ({HEADER} is missing); give another name"
            )
        _make(self.root)
        data = msgspec.json.format(msgspec.json.encode(header))
        _decode_header(data, self.header_path)
        with _named(self.header_path):
            _replace(self.header_path, data + b"\n")

    def header(self) -> StudyHeader:
        """study.json. Raises UsageError where it is missing, broken, edited or of a newer version."""
        try:
            data = self.header_path.read_bytes()
        except FileNotFoundError:
            raise UsageError(_not_a_study(self.root)) from None
        except OSError as error:
            raise UsageError(f"{self.header_path}: {error.strerror}") from None
        return _decode_header(data, self.header_path)

    def write_verification(self, found: Verification) -> None:
        """Write verify.json whole, in the place of an earlier one."""
        path = self.root / VERIFIED
        with _named(path):
            _replace(path, msgspec.json.format(msgspec.json.encode(found)) + b"\n")

    def verification(self) -> Verification | None:
        """verify.json; None where nothing was verified. Raises UsageError where it is broken, or of a newer version."""
        path = self.root / VERIFIED
        try:
            data = path.read_bytes()
            _refuse_newer(data, str(path), VERIFY_SCHEMA)
            return decoded(msgspec.json.Decoder(Verification), data)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {error}; put the original file back, or remove it") from None

    def append(self, record: LaunchRecord) -> None:
        """Add one launch, in one write, flushed to the disk. A partial last line is closed first.

        What a full disk took of it is taken back: the file ends as it did before.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            handle = os.open(self.launches_path, flags, 0o666)
        except FileNotFoundError:  # no matter of the input: it was there when the study began
            raise OSError(errno.EIO, "was removed while the study ran", str(self.root)) from None
        try:
            size = os.fstat(handle).st_size
            partial = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            line = b"\n" * partial + _encode(record) + b"\n"
            with _named(self.launches_path):
                if os.write(handle, line) != len(line):
                    os.ftruncate(handle, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
        finally:
            os.close(handle)

    def read(self) -> Iterator[LaunchRecord | Broken]:
        """Every line in order: a record, or what is wrong with it.

        Raises UsageError for a record that a newer version of the suite wrote.
        """
        if not self.launches_path.exists():
            return
        with self.launches_path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _decode_record(line, number, self.launches_path)

    def records(self) -> tuple[list[LaunchRecord], int]:
        """All whole records, and how many lines are none (cut short, or edited)."""
        lines = list(self.read())
        records = [line for line in lines if isinstance(line, LaunchRecord)]
        return records, len(lines) - len(records)

    def unreadable(self) -> str | None:
        """How many lines of launches.jsonl are no records, in words; None where all are."""
        count = self.records()[1]
        lines = "1 line" if count == 1 else f"{count} lines"
        return f"{self.launches_path}: {lines} could not be read" if count else None

    def write_steps(self, launch: str, traces: Sequence[RankTrace]) -> None:
        """steps/<launch>.parquet: one row a recorded step of a rank, in seconds, null where unknown.

        No file is written where no rank left a trace.
        """
        if not traces:
            return
        import pyarrow as pa
        from pyarrow import parquet

        path = self.steps_path(launch)
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.concat_tables([_steps_table(launch, trace) for trace in traces])
        temporary = path.with_suffix(".tmp")
        parquet.write_table(table, temporary)
        temporary.replace(path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the study for one conductor. Raises UsageError where another one holds it.

        A folder that is not a study's in the end is gone again: nothing has begun.
        """
        _make(self.root)
        with (self.root / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"{self.root}: another run is writing this study; wait for it, or give another name by -o"
                ) from None
            try:
                yield
            finally:
                self._clear()

    def _clear(self) -> None:
        """Remove the folder where it has only what a run begins with; its name is free for the next one."""
        with contextlib.suppress(OSError):
            if {path.name for path in self.root.iterdir()} <= set(BEGUN):
                for name in BEGUN:
                    (self.root / name).unlink(missing_ok=True)
                self.root.rmdir()


def _make(root: Path) -> None:
    """Make the study's folder. Raises UsageError where that cannot be, or nothing can be written there."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"{root}: cannot be written ({error.strerror}); name another folder by -o") from None


def open_store(study: str | Path, results: Path = RESULTS) -> Store:
    """The store of an existing study, by name or path. Raises UsageError where there is none."""
    root = resolve(study, results)
    if not (root / HEADER).is_file():
        raise UsageError(_not_a_study(root))
    return Store(root)


def newest(wanted: Callable[[StudyHeader], bool] = lambda header: True) -> Store | None:
    """The study in results/ whose header was written last, of those that are wanted; broken ones are passed over."""
    found = sorted(RESULTS.glob(f"*/{HEADER}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        with contextlib.suppress(UsageError):
            store = Store(path.parent)
            if wanted(store.header()):
                return store
    return None


def resolve(study: str | Path, results: Path = RESULTS) -> Path:
    """The folder that `results/NAME`, `NAME` or any path to a study means; it need not exist."""
    path = Path(study)
    if path.name in (HEADER, LAUNCHES):
        path = path.parent
    if (path / HEADER).is_file() or len(path.parts) != 1:
        return path
    return results / path


def finite(value: float | None) -> float | None:
    """The value, or None where it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of study.json and verify.json, and of one line of the .jsonl files, by file name."""
    types = {HEADER: StudyHeader, LAUNCHES: LaunchRecord, CHECKPOINTS: CheckpointRow, VERIFIED: Verification}
    return {name: {"$schema": _DIALECT, **msgspec.json.schema(kind)} for name, kind in types.items()}


_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _not_a_study(root: Path) -> str:
    if all((root / side / HEADER).is_file() for side in ("base", "new")):
        return (
            f"{root}: holds both sides of scalemark ab, a study each: name {root / 'base'} or {root / 'new'}, or compare"
            f" them by scalemark compare {root}"
        )
    if root.exists():
        return f"{root}: not a study: {HEADER} is missing; name a folder that `scalemark run` has written"
    known = sorted(path.parent.name for path in root.parent.glob(f"*/{HEADER}"))
    return f"{root}: no such study; in {root.parent}: {', '.join(known) or 'none'}"


def _decode_header(data: bytes, path: Path) -> StudyHeader:
    try:
        _refuse_newer(data, str(path))
        header = decoded(msgspec.json.Decoder(StudyHeader), data)
        for host in (header.host, *(member.host for member in header.nodes)):
            msgspec.convert({"host": host}, _Facts)
    except (msgspec.DecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}; put the original file back, or run the study again") from None
    for at, cell in enumerate(header.cells):
        if not cell.id.startswith(cell.case.id):
            raise UsageError(
                f"{path}: `$.cells[{at}].id` {cell.id!r} does not belong to its settings ({cell.case.id}): the file "
                "was edited; put the original back, or run the study again"
            )
    return header


def _decode_record(line: bytes, number: int, path: Path) -> LaunchRecord | Broken:
    try:
        record = decoded(_records, line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            _refuse_newer(line, f"{path}:{number}")
        return Broken(number, str(error))
    if record.schema > SCHEMA:
        _refuse_newer(line, f"{path}:{number}")
    if _LARGE.search(line) and _beyond_64_bits(msgspec.to_builtins(record)):
        return Broken(number, "a whole number of more than 64 bits")
    return record


def _beyond_64_bits(value: Any) -> bool:
    """Whether a whole number somewhere in plain data is one that no column of a table holds."""
    if isinstance(value, int):
        return not -(2**63) <= value < 2**63
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_beyond_64_bits, inner))


def _refuse_newer(data: bytes, where: str, known: int = SCHEMA) -> None:
    found = decoded(msgspec.json.Decoder(_Version), data).schema
    if found > known:
        raise UsageError(
            f"{where}: schema {found}, and this scalemark reads up to {known}; install a newer scalemark to read it"
        )


def _encode(record: LaunchRecord) -> bytes:
    """One line that can be read back: a window that holds no finite number is no window."""
    line = msgspec.json.encode(record)
    try:
        _records.decode(line)
    except msgspec.ValidationError:
        marks = (*record.marks, "window not finite")
        line = msgspec.json.encode(msgspec.structs.replace(record, window=None, marks=marks))
    return line


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """The system names no file where writing failed, as it does where opening did: a full disk is told with its path."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _steps_table(launch: str, trace: RankTrace) -> Any:
    import pyarrow as pa

    count = len(trace.step_s)
    first = trace.cut.first if trace.cut else count
    seconds = {"step_s": trace.step_s, **{f"{phase}_s": trace.phases_s.get(phase) for phase in PHASES}}
    return pa.table(
        {
            "launch": pa.array([launch] * count, pa.string()),
            "rank": pa.array([trace.rank] * count, pa.int32()),
            "step": pa.array(range(count), pa.int32()),
            **{name: pa.array(_column(values, count), pa.float64()) for name, values in seconds.items()},
            "samples": pa.array(trace.samples[:count] or [None] * count, pa.int32()),
            "in_window": pa.array([step >= first for step in range(count)], pa.bool_()),
        }
    )


def _column(values: Sequence[float] | None, count: int) -> list[float | None]:
    """One value a step; a rank that failed inside a step leaves the last phases short."""
    known = [finite(value) for value in values or ()][:count]
    return known + [None] * (count - len(known))
