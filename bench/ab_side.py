"""One side of `scalemark ab`: which Python, in which folder, and whether the suite can run there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

import bench
from bench.errors import UsageError
from bench.gitstate import git_state
from bench.plugins import clip

NEEDED = ("torch", "numpy", "scipy", "msgspec", "psutil", "pyarrow")  # by what runs in a side
OLDEST = (3, 11)
PROBE_S = 60.0
PROBE = """
import json, sys
from importlib import metadata, util
sys.path[:] = [place for place in sys.path if place]
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
found = util.find_spec("bench")
print(json.dumps({
    "python_version": ".".join(map(str, sys.version_info[:3])),
    "torch": version("torch"),
    "missing": [name for name in sys.argv[1:] if util.find_spec(name) is None],
    "bench": list(found.submodule_search_locations or []) if found else [],
}))
"""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side: the interpreter, the working directory, and what is known of both."""

    python: str
    folder: str
    python_version: str
    torch: str | None = None
    scalemark: str | None = None  # its version; None until the side has told
    borrowed: bool = False  # the scalemark that leads is used: there is none in that environment
    git: str | None = None

    @property
    def name(self) -> str:
        """The side in a few words: `../feature (torch 2.9.1, 3f2a91c with changes)`."""
        facts = [f"torch {self.torch}" if self.torch else None, self.git and f"git {self.git}"]
        return f"{self.python} in {self.folder} ({', '.join(fact for fact in facts if fact)})"


def find(option: str, text: str) -> Side:
    """The side that PYTHON, FOLDER or PYTHON@FOLDER means. Raises UsageError, naming the option.

    A folder's own `.venv/bin/python` runs it where there is one, else the Python of this command.
    """
    python, folder = _places(option, text)
    return _probed(option, python, folder)


def _places(option: str, text: str) -> tuple[str, Path]:
    here = Path.cwd()
    if os.path.isdir(text):  # pathlib raises for a name that is too long
        return _of_folder(Path(text)), here / text
    python = _interpreter(text)
    if python is not None:
        return python, here
    before, _, folder = text.rpartition("@")
    python = _interpreter(before)
    if python is not None and os.path.isdir(folder):
        return python, here / folder
    missing = f"no such folder: {clip(folder)!r}" if python else "no such interpreter or folder"
    raise UsageError(
        f"{option} {clip(text)!r}: {missing}; give a PYTHON (.venv-old/bin/python), a FOLDER to run in, or both as"
        " PYTHON@FOLDER"
    )


def _of_folder(folder: Path) -> str:
    own = folder / ".venv" / "bin" / "python"
    return str(own.absolute()) if own.is_file() else sys.executable


def _interpreter(text: str) -> str | None:
    """Absolute, and as it was given: what a link in an environment points to has none of its packages."""
    found = shutil.which(text) if text else None
    return str(Path(found).absolute()) if found else None


class _Found(msgspec.Struct):
    python_version: str
    torch: str | None
    missing: list[str]
    bench: list[str]


def _probed(option: str, python: str, folder: Path) -> Side:
    """Ask the interpreter what it has. Raises UsageError where a side cannot run with it."""
    found = _ask(option, python, folder)
    if tuple(map(int, found.python_version.split(".")))[:2] < OLDEST:
        raise UsageError(f"{option} {python}: Python {found.python_version}; 3.11 or later is needed")
    if found.missing:
        raise UsageError(
            f"{option} {python}: {', '.join(found.missing)} cannot be imported there: install scalemark in that"
            f" environment, or: {python} -m pip install {' '.join(found.missing)}"
        )
    return Side(
        python=python,
        folder=os.path.normpath(folder),
        python_version=found.python_version,
        torch=found.torch,
        borrowed=not any(Path(place, "led.py").is_file() for place in found.bench),
        git=git_state(folder),
    )


def _ask(option: str, python: str, folder: Path) -> _Found:
    try:
        done = subprocess.run(
            [python, "-c", PROBE, *NEEDED], cwd=folder, capture_output=True, timeout=PROBE_S, text=True,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=_Found)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{option} {python}: did not answer within {PROBE_S:.0f} s") from None
    except OSError as error:
        raise UsageError(f"{option} {python}: cannot be started ({error.strerror})") from None
    except (IndexError, msgspec.DecodeError):
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise UsageError(f"{option} {python}: is no Python that works: {clip(last, 200)}") from None


def lend(folder: Path) -> None:
    """Put this package alone, and nothing that lies beside it, into a folder for another Python's path."""
    (folder / "bench").symlink_to(Path(bench.__file__).absolute().parent, target_is_directory=True)
