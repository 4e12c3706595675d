"""ab.json: what `scalemark ab` compared and how it was asked to; the two studies lie beside it."""

from pathlib import Path

import msgspec

from bench.ab_side import Side
from bench.errors import UsageError
from bench.stopping import Rules
from bench.store import BEGUN, Store, decoded

FILE = "ab.json"
SCHEMA = 1
LOGS = ("base.log", "new.log")  # of the sides' conductors


class AbHeader(msgspec.Struct, frozen=True, kw_only=True):
    """ab.json: what was compared, how it was asked for. The studies lie beside it, in `base` and `new`."""

    schema: int = SCHEMA
    version: str
    suites: tuple[str, ...]
    sets: tuple[str, ...] = ()
    nproc: int | None = None
    devices: tuple[int, ...] | None = None
    oversubscribe: bool = False
    command: tuple[str, ...]
    created_at: str
    quick: bool = False
    margin: float
    rules: Rules
    base: Side
    new: Side

    def stores(self, root: Path) -> tuple[Store, Store]:
        """The two studies of this comparison."""
        return Store(root / "base"), Store(root / "new")


def write(root: Path, header: AbHeader) -> None:
    """Write ab.json, whole."""
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f"{FILE}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(header)) + b"\n")
    temporary.replace(root / FILE)


def check_new(root: Path) -> None:
    """Raise UsageError for a folder that holds a comparison already, or something else."""
    if (root / FILE).exists():
        raise UsageError(
            f"{root}: holds a comparison already; go on with it by --resume, or give another name by -o"
        )
    if any(path.name not in (*BEGUN, *LOGS, f"{FILE}.tmp") for path in root.iterdir()):
        raise UsageError(f"{root}: is in use, but not by a comparison ({FILE} is missing); give another name")


def read(root: Path) -> AbHeader:
    """ab.json of a folder. Raises UsageError where it is missing, broken or of a newer version."""
    path = root / FILE
    try:
        found = decoded(msgspec.json.Decoder(AbHeader), path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{root}: not written by scalemark ab: {FILE} is missing") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}; put the original file back, or run it again") from None
    if found.schema > SCHEMA:
        raise UsageError(f"{path}: schema {found.schema}, and this scalemark reads up to {SCHEMA}")
    return found


def check_resumed(root: Path, before: AbHeader, asked: AbHeader) -> None:
    """Raise UsageError where going on would put launches of something else beside those that are there."""
    for field in ("suites", "sets", "nproc", "devices", "oversubscribe", "quick"):
        _same(root, field, getattr(before, field), getattr(asked, field))
    _same(root, "seed", before.rules.seed, asked.rules.seed)
    _same(root, "margin", _percent(before.margin), _percent(asked.margin))
    _same(root, "intervals of", _percent(before.rules.target), _percent(asked.rules.target))
    for name in ("base", "new"):
        for field in Side.__struct_fields__:
            if field != "scalemark":
                was, now = (getattr(getattr(header, name), field) for header in (before, asked))
                _same(root, f"{name}: {field}", was, now)


def _same(root: Path, what: str, was: object, now: object) -> None:
    if was != now:
        raise UsageError(
            f"--resume: {root} was run with {what} {_word(was)}, and now it is {_word(now)}: give what it was run with,"
            " or leave out --resume and give another name by -o"
        )


def _percent(share: float) -> str:
    return f"{share * 100:g} %"


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
