"""The study's secret: what every message between nodes is signed with. Environment or file, never the command line."""

import os
import secrets
import stat
import time
from pathlib import Path

from bench.errors import UsageError

NAME = "SCALEMARK_SECRET"
FILE = "SCALEMARK_SECRET_FILE"
SHORTEST = 8
LONGEST = 4096  # read of a file
ROOT = 0  # whose files are as good as this user's own


def find(make: bool = False, of_job: Path | None = None, wait_s: float = 0.0) -> bytes:
    """The secret of this node. With `make`, one is written for this user where there is none.

    `of_job` is the file of a job, in a folder that its nodes share. It may take `wait_s` to be seen here. Raises
    UsageError where there is none, where others may read its file, and for one that is too short.
    """
    text = os.environ.get(NAME)
    if text:
        return _checked(text, NAME)
    named = os.environ.get(FILE)
    path = Path(named) if named else of_job or default_path()
    if not path.exists() and not named and make:
        write(path, fresh())
    deadline = time.monotonic() + wait_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return _checked(_read(path), str(path))


def fresh() -> str:
    """A new secret."""
    return secrets.token_hex(16)


def default_path() -> Path:
    """Where a user's secret lies: the same file on every node, or a copy of it."""
    try:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError as error:
        raise UsageError(f"no study secret: {error}; set {NAME}") from None
    return base / "scalemark" / "secret"


def write(path: Path, text: str) -> None:
    """Write a secret that only this user can read. It comes to its name whole; where one is there already, that stays."""
    written = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text + "\n")
            os.link(written, path)  # unlike a rename it replaces nothing
        finally:
            written.unlink(missing_ok=True)
    except FileExistsError:
        return  # another node of this user was first
    except OSError as error:
        raise UsageError(f"study secret {path}: {error.strerror}; set {NAME}") from None


def _read(path: Path) -> str:
    try:
        with path.open() as file:
            state = os.fstat(file.fileno())  # of what is read, whatever the name stands for by now
            text = file.read(LONGEST)
    except FileNotFoundError:
        raise UsageError(
            f"no study secret on this node: {path} is missing: copy node 0's here (mode 600), or set {NAME} or {FILE} to"
            " the same on every node"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"study secret {path}: cannot be read ({error}); set {NAME}") from None
    if state.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"study secret {path}: others may read it: chmod 600 {path}")
    if state.st_uid not in (os.geteuid(), ROOT):
        raise UsageError(
            f"study secret {path}: it belongs to another user, who knows it: remove it, or set {NAME}"
        )
    return text


def _checked(text: str, where: str) -> bytes:
    text = text.strip()
    if len(text) < SHORTEST:
        raise UsageError(
            f"{where}: a study secret has at least {SHORTEST} characters (openssl rand -hex 16 makes one)"
        )
    return text.encode()
