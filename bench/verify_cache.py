"""Ways of training that were verified on this host before, by the same code: they need not be run again.

Only a way whose checks all passed is kept, and none whose code lies elsewhere: a user's own model or data, several nodes.
"""

import hashlib
import os
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.case import canonical
from bench.environment import cache_folder
from bench.errors import UsageError
from bench.machine import Host, fingerprint
from bench.options import built_first
from bench.sameness import mine
from bench.verify_records import Way
from bench.verify_words import GOOD


def read(way: Way, host: Host) -> Way | None:
    """The way with what was found before, and when; None where it has to be run."""
    path = _place(way, host)
    if path is None:
        return None
    try:
        old = msgspec.json.decode(path.read_bytes(), type=Way)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return msgspec.structs.replace(old, cells=way.cells) if old.outcome in GOOD else None


def keep(way: Way, host: Host) -> None:
    """Write down a way that was found good; a folder that cannot be written is none."""
    path = _place(way, host)
    if path is None or way.outcome not in GOOD or way.seconds is None:
        return
    today = datetime.now(UTC).date().isoformat()
    data = msgspec.json.encode(msgspec.structs.replace(way, before=today, cells=()))
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as scratch:
            scratch.write(data)
        os.replace(scratch.name, path)


def _place(way: Way, host: Host) -> Path | None:
    case = way.case
    if built_first(case) or case.data.partition(":")[0] in ("own", "imagefolder") or case.nodes > 1:
        return None
    versions = mine()
    parts = [fingerprint(host), versions.source, versions.python, str(versions.torch)]
    text = canonical(case) + "\n".join(parts).encode()
    try:
        return cache_folder() / f"verified-{hashlib.sha256(text).hexdigest()[:16]}.json"
    except UsageError:
        return None
