"""Pressure of this host from /proc: time in which something waited for CPUs, memory or disks, and swapping.

The kernel counts the time for which at least one task of the machine waited (PSI, "some"); where it was built without,
that is null. Waiting is of anybody, the ranks included.
"""

import os
from pathlib import Path

from bench.samplers._counters import Counters
from bench.samplers._files import Files
from bench.sampling import Readings, Sampler, Watch

RESOURCES = ("cpu", "memory", "io")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class PressureReader:
    """Reads PSI and the counters of swapping; what the kernel does not offer is null, and `reasons` says why."""

    def __init__(self, watch: Watch, proc: Path = Path("/proc")) -> None:
        self.reasons: dict[str, str] = {}
        self._counters = Counters(self.reasons)
        self._files = Files(proc)

    def read(self, now_s: float) -> Readings:
        """What was added since the first reading: seconds of waiting, bytes swapped in and out."""
        values: Readings = {}
        for name in RESOURCES:
            self._counters.added(values, ("node", f"{name}_pressure_s"), self._waited_s(name))
        self._counters.added(values, ("node", "swapped_bytes"), self._swapped_bytes())
        return values

    def _waited_s(self, name: str) -> float | None:
        """Seconds for which some task waited, from `some avg10=0.00 ... total=MICROSECONDS`."""
        try:
            line = self._files.text(f"pressure/{name}").split(b"\n", 1)[0]
            return int(line.rpartition(b"total=")[2]) / 1e6
        except (OSError, ValueError) as error:
            self._missing(f"{name}_pressure_s", error)
            return None

    def _swapped_bytes(self) -> float | None:
        try:
            counts = dict(line.split() for line in self._files.whole_text("vmstat").splitlines())
            return float(PAGE_BYTES * (int(counts[b"pswpin"]) + int(counts[b"pswpout"])))
        except (OSError, ValueError, KeyError) as error:
            self._missing("swapped_bytes", error)
            return None

    def _missing(self, measure: str, error: Exception) -> None:
        self.reasons.setdefault(f"node/{measure}", f"{type(error).__name__}: {error}")


PLUGIN = Sampler(
    summary="Waiting for CPUs, memory and disks (PSI), and swapping, from /proc", open=PressureReader
)
