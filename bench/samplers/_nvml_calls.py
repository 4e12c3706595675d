"""What NVML is asked of a device, and how its answers become the measures' units."""

from collections.abc import Callable
from typing import Any

Call = Callable[[Any, Any], float]  # (pynvml, handle) -> value

MEASURES: dict[str, Call] = {
    "utilisation_percent": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "memory_used_bytes": lambda nvml, handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "power_limit_w": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, 0),
    "sm_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, 1),
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, 2),
}

# Counters since the driver was loaded: millijoules; memory errors (corrected, uncorrected; volatile).
COUNTERS: dict[str, Call] = {
    "energy_j": lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    "ecc_corrected": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, 0, 0),
    "ecc_uncorrected": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
}

# Each call watches the bus for 20 ms. NVML gives KB a second.
PCIE: dict[str, Call] = {
    "pcie_tx_bytes_per_s": lambda nvml, handle: nvml.nvmlDeviceGetPcieThroughput(handle, 0) * 1000,
    "pcie_rx_bytes_per_s": lambda nvml, handle: nvml.nvmlDeviceGetPcieThroughput(handle, 1) * 1000,
}

# Bits of nvmlClocksEventReasons (nvml.h); the older ThrottleReasons have the same values.
THROTTLE_WORDS = {
    0x001: "gpu_idle", 0x002: "clocks_setting", 0x004: "sw_power_cap", 0x008: "hw_slowdown", 0x010: "sync_boost",
    0x020: "sw_thermal_slowdown", 0x040: "hw_thermal_slowdown", 0x080: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip


def compute_processes(nvml: Any, handle: Any) -> list[Any]:
    """Processes that compute on a device, with `pid` and `usedGpuMemory` (bytes, or None)."""
    return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))


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
