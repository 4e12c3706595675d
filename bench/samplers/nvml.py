"""NVIDIA devices over NVML: utilisation, memory, power, temperature, clocks, why clocks are held down.

Devices are found by UUID and never by index: NVML counts in PCI order and sees every card, CUDA
does neither. Each measure is optional: what a device does not support is null with the reason.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from bench.samplers._nvml import find_handles, why
from bench.sampling import Readings, Sampler

# Bits of nvmlClocksEventReasons (nvml.h); the older ThrottleReasons have the same values.
THROTTLE_WORDS = {
    0x001: "gpu_idle", 0x002: "clocks_setting", 0x004: "sw_power_cap", 0x008: "hw_slowdown", 0x010: "sync_boost",
    0x020: "sw_thermal_slowdown", 0x040: "hw_thermal_slowdown", 0x080: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip

MEASURES: dict[str, Callable[[Any, Any], float]] = {
    "utilisation_percent": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "memory_used_bytes": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, 0),
    "sm_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, 1),
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, 2),
}


class NvmlReader:
    """Reads every watched device; `reasons` says, a device and measure, why a value is null."""

    def __init__(self, uuids: Iterable[str], nvml: Any = None) -> None:
        self.uuids = tuple(uuids)
        self.reasons: dict[str, str] = {}
        self.handles: dict[str, Any] = {}
        if not self.uuids:
            self.reasons["nvml"] = "no NVML: this launch uses no NVIDIA device"
            return
        try:
            self.nvml = nvml or importlib.import_module("pynvml")
            self.nvml.nvmlInit()
            self.handles = find_handles(self.nvml, self.uuids)
        except Exception as error:  # noqa: BLE001 - no driver, library or permission is normal
            self.reasons["nvml"] = f"no NVML: {why(error)}"

    def read(self, now_s: float) -> Readings:
        """Every measure of every watched device; 1.0 or 0.0 for each word that holds clocks down."""
        values: Readings = {}
        for uuid in self.uuids:
            for measure, call in MEASURES.items():
                values[uuid, measure] = self._call(uuid, measure, call)
            mask = self._call(uuid, "throttle", throttle_mask)
            for word, active in throttle_flags(mask).items():
                values[uuid, f"throttle_{word}"] = active
        return values

    def _call(self, uuid: str, measure: str, call: Callable[[Any, Any], float]) -> float | None:
        key = f"{uuid}/{measure}"
        if uuid not in self.handles:
            self.reasons.setdefault(key, self.reasons.get("nvml", "NVML has no device with this UUID"))
            return None
        try:
            return float(call(self.nvml, self.handles[uuid]))
        except Exception as error:  # noqa: BLE001 - each call may fail on its own
            self.reasons.setdefault(key, why(error))
            return None


def throttle_mask(nvml: Any, handle: Any) -> int:
    """The bit mask of what holds clocks down, by the name this NVML has for it."""
    name = "nvmlDeviceGetCurrentClocks{}Reasons"
    call = getattr(nvml, name.format("Event"), None) or getattr(nvml, name.format("Throttle"))
    return int(call(handle))


def throttle_flags(mask: float | None) -> dict[str, float | None]:
    """Each word as 1.0 or 0.0, so that its mean is a share of time; all null where there is no mask."""
    return {
        word: None if mask is None else float(bool(int(mask) & bit)) for bit, word in THROTTLE_WORDS.items()
    }


PLUGIN = Sampler(
    summary="NVIDIA devices over NVML, by UUID", open=lambda watch: NvmlReader(watch.device_uuids)
)
