"""Peak memory of a piece of work: how far this process rose above what it held, and the device's own peak."""

import contextlib
import ctypes
from pathlib import Path
from typing import Any

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
RESET_PEAK = "5"  # proc(5): resets the peak resident set size


class Peak:
    """From `start` to `end`. Null where the platform has no such thing."""

    def __init__(self, module: Any | None, device: Any) -> None:
        self._module, self._device = module, device
        self._held: int | None = None

    def start(self) -> None:
        """Reset the peaks. What was freed before goes back to the system first: it would hide what is taken now."""
        self._held = None
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
        with contextlib.suppress(OSError):
            CLEAR.write_text(RESET_PEAK)
            self._held = _status_bytes("VmRSS")
        if self._module is not None:
            self._module.reset_peak_memory_stats(self._device)

    def end(self) -> tuple[int | None, int | None]:
        """Bytes that the process took beyond what it held, and the device's peak of allocated bytes."""
        peak = _status_bytes("VmHWM") if self._held is not None else None
        extra = None if peak is None or self._held is None else max(0, peak - self._held)
        module = self._module
        return extra, int(module.max_memory_allocated(self._device)) if module else None


def _status_bytes(name: str) -> int | None:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
