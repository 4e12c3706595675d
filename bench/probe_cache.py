"""What the device probe said, kept for hosts without any accelerator: there it says the same every time.

Only an answer without devices is kept, and only where the system has no device file that an accelerator would need.
It holds until torch, the interpreter, a variable that torch reads, or the boot changes.
"""

import hashlib
import importlib.util
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from bench import __version__
from bench.environment import cache_folder
from bench.errors import UsageError

# device files of NVIDIA (also Jetson and WSL), AMD, Intel and other accelerators
DEVICE_FILES = (
    "nvidia*",
    "nvhost*",
    "nvgpu*",
    "dxg",
    "dri",
    "kfd",
    "accel*",
    "davinci*",
    "habana*",
    "hl[0-9]*",
    "neuron*",
)
VARIABLES = ("CUDA", "NVIDIA", "HIP", "ROCR", "ROCM", "ZE_", "ONEAPI", "TORCH", "PYTORCH", "LD_", "PYTHON")


def place(dev: Path = Path("/dev")) -> Path | None:
    """The file for this host's answer; None where there may be an accelerator, or no torch."""
    if any(True for pattern in DEVICE_FILES for _ in dev.glob(pattern)):
        return None
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    parts = [
        __version__,
        sys.executable,
        found.origin,
        *_stamp(Path(found.origin)),
        *_stamp(_probe()),
        _boot(),
    ]
    parts += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
    digest = hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()[:16]
    try:
        return cache_folder() / f"probe-{digest}.json"
    except UsageError:
        return None


def read(path: Path | None) -> bytes | None:
    """What was kept; None where nothing was."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError:
        return None


def keep(path: Path | None, answer: bytes) -> None:
    """Write an answer, whole; a cache that cannot be written is none."""
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as scratch:
            scratch.write(answer)
        os.replace(scratch.name, path)


def _probe() -> Path:
    return Path(__file__).with_name("device_probe.py")


def _stamp(path: Path) -> tuple[str, ...]:
    """Time of the file and of its folder: an installation changes them."""
    try:
        return str(path.stat().st_mtime_ns), str(path.parent.stat().st_mtime_ns)
    except OSError:
        return ()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
