"""Clocks of this host's CPUs from /sys: their frequency, and the time for which heat held them down.

Virtual machines mostly offer neither: both are null there, and the reason says so.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from bench.samplers._counters import Counters
from bench.samplers._files import Files
from bench.sampling import Readings, Sampler, Watch

EVERY_S = 1.0  # reading a frequency may wake a CPU
MOST = 16  # CPUs are looked at: evenly spread over those there are
FREQUENCY = "cpufreq/scaling_cur_freq"  # kHz
HEAT = "thermal_throttle/package_throttle_total_time_ms"
NONE = {
    "cpu_mhz": "the kernel offers no frequencies of CPUs: most virtual machines have none",
    "cpu_throttled_s": "the kernel does not count how long heat held CPUs down: most virtual machines do not",
}


class ClockReader:
    """Reads the mean frequency of the CPUs, and the longest time that heat held a package down."""

    def __init__(self, watch: Watch, sys: Path = Path("/sys")) -> None:
        self.reasons: dict[str, str] = {}
        self._counters, self._files = Counters(self.reasons), Files(sys)
        self._frequency = _spread(sys, FREQUENCY)
        self._heat = _spread(sys, HEAT)
        self._due_s = 0.0

    def read(self, now_s: float) -> Readings:
        """The frequency once a second, throttling every time."""
        values: Readings = {}
        if now_s >= self._due_s:
            self._due_s = now_s + EVERY_S
            khz = self._ask("cpu_mhz", self._frequency, fmean)
            values["node", "cpu_mhz"] = None if khz is None else khz / 1000
        throttled_ms = self._ask("cpu_throttled_s", self._heat, max)
        seconds = None if throttled_ms is None else throttled_ms / 1000
        self._counters.added(values, ("node", "cpu_throttled_s"), seconds)
        return values

    def _ask(self, measure: str, names: Sequence[str], over: Callable[[list[float]], float]) -> float | None:
        try:
            found = [float(self._files.text(name)) for name in names]
        except (OSError, ValueError) as error:
            self.reasons.setdefault(f"node/{measure}", f"{type(error).__name__}: {error}")
            return None
        if not found:
            self.reasons[f"node/{measure}"] = NONE[measure]
            return None
        return over(found)


def _spread(sys: Path, file: str) -> list[str]:
    """Names below /sys of a file of every CPU, of MOST of them where there are more."""
    folder = "devices/system/cpu"
    depth = len(sys.parts) + 3
    numbers = sorted(int(path.parts[depth][3:]) for path in sys.glob(f"{folder}/cpu[0-9]*/{file}"))
    most = min(MOST, len(numbers))
    chosen = [numbers[round(i * (len(numbers) - 1) / max(1, most - 1))] for i in range(most)]
    return [f"{folder}/cpu{number}/{file}" for number in chosen]


PLUGIN = Sampler(summary="Frequency of the CPUs and throttling by heat, from /sys", open=ClockReader)
