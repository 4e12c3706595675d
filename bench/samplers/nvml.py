"""NVIDIA devices over NVML: utilisation, memory, power, energy, temperature, clocks, PCIe, ECC, processes.

Devices are found by UUID and never by index: NVML counts in PCI order and sees every card, CUDA
does neither. Each measure is optional: what a device does not support is null with the reason.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.samplers._counters import Counters
from bench.samplers._device_processes import DeviceProcesses
from bench.samplers._nvml import find_handles, why
from bench.samplers._nvml_calls import (
    COUNTERS,
    MEASURES,
    PCIE,
    compute_processes,
    throttle_flags,
    throttle_mask,
)
from bench.sampling import Readings, Sampler, Watch

PCIE_S = 1.0  # how often a device's PCIe traffic is measured: it takes NVML 40 ms
PROCESSES_S = 0.5  # how often the processes of all devices are listed


class NvmlReader:
    """Reads every watched device; `reasons` says, a device and measure, why a value is null."""

    def __init__(self, watch: Watch, nvml: Any = None, proc: Path = Path("/proc")) -> None:
        self.uuids = watch.device_uuids
        self.reasons: dict[str, str] = {}
        self.handles: dict[str, Any] = {}
        self._counters = Counters(self.reasons)
        self._processes = DeviceProcesses(watch, self.reasons, proc)
        self._pcie_s = self._processes_s = 0.0
        self._turn = 0
        if not self.uuids:
            self.reasons["nvml"] = watch.device_reason or "no NVML: this launch uses no NVIDIA device"
            return
        try:
            self.nvml = nvml or importlib.import_module("pynvml")
            self.nvml.nvmlInit()
            self.handles = find_handles(self.nvml, self.uuids)
            if watch.device_reason:  # of the devices that are not among these
                self.reasons["devices"] = watch.device_reason
        except Exception as error:  # noqa: BLE001 - no driver, library or permission is normal
            self.reasons["nvml"] = f"no NVML: {why(error)}"

    def read(self, now_s: float) -> Readings:
        """Every measure of every watched device; 1.0 or 0.0 for each word that holds clocks down."""
        values: Readings = {}
        for uuid in self.uuids:
            for measure, call in MEASURES.items():
                values[uuid, measure] = self._call(uuid, measure, call)
            for measure, call in COUNTERS.items():
                self._counters.added(values, (uuid, measure), self._call(uuid, measure, call))
            mask = self._call(uuid, "throttle", throttle_mask)
            for word, active in throttle_flags(mask).items():
                values[uuid, f"throttle_{word}"] = active
        if self.uuids and now_s >= self._pcie_s:
            values |= self._pcie(now_s)
        if self.uuids and now_s >= self._processes_s:
            self._processes_s = now_s + PROCESSES_S
            listed = {uuid: self._ask(uuid, "foreign_processes", compute_processes) for uuid in self.uuids}
            values |= self._processes.read(listed)
        return values

    def _pcie(self, now_s: float) -> Readings:
        """PCIe traffic of one device; they take turns, so that no reading takes long."""
        uuid = self.uuids[self._turn % len(self.uuids)]
        self._turn, self._pcie_s = self._turn + 1, now_s + PCIE_S / len(self.uuids)
        return {(uuid, measure): self._call(uuid, measure, call) for measure, call in PCIE.items()}

    def _call(self, uuid: str, measure: str, call: Callable[[Any, Any], float]) -> float | None:
        found = self._ask(uuid, measure, call)
        return None if found is None else float(found)

    def _ask(self, uuid: str, measure: str, call: Callable[[Any, Any], Any]) -> Any:
        key = f"{uuid}/{measure}"
        if uuid not in self.handles:
            self.reasons[key] = self.reasons.get("nvml", "NVML has no device with this UUID")
            return None
        try:
            return call(self.nvml, self.handles[uuid])
        except Exception as error:  # noqa: BLE001 - each call may fail on its own
            self.reasons[key] = why(error)
            return None


PLUGIN = Sampler(summary="NVIDIA devices over NVML, by UUID", open=NvmlReader)
