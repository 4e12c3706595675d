"""NVML as its bindings show it, made up: three cards, and any call can be made to fail."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.samplers._device_processes import FIRST_NAMESPACE
from bench.samplers.nvml import NvmlReader
from bench.sampling import Watch


class NVMLError(Exception):
    """The base of NVML's errors."""


def failing(name: str) -> type[NVMLError]:
    """An error class named as NVML's bindings name theirs."""
    return type(f"NVMLError_{name}", (NVMLError,), {})


class FakeNvml:
    """Three cards in an order of NVML's own; any call can be made to fail."""

    NVML_NVLINK_MAX_LINKS = 4

    def __init__(
        self, *, names_are_bytes: bool = False, fail: dict[str, str] | None = None, mig: int = 0
    ) -> None:
        self.cards = ["GPU-cccc", "GPU-aaaa", "GPU-bbbb"]
        self.slices = {"GPU-bbbb": ["MIG-1111", "MIG-2222"][:mig]} if mig else {}
        self.names_are_bytes = names_are_bytes
        self.fail = fail or {}
        self.mask = 0x4 | 0x40
        self.millijoules, self.corrected, self.uncorrected = 5_000_000, 40, 2
        self.pcie_calls: list[str] = []
        self.running: dict[str, list[tuple[int, int | None]]] = {}
        self.linked: dict[str, list[str]] = {}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and (error := object.__getattribute__(self, "fail").get(name)):

            def raises(*_: object) -> None:
                raise failing(error)("text that is not shown")

            return raises
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.86.10"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str | bytes:
        return handle.encode() if self.names_are_bytes else handle

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 2 if self.slices.get(handle) else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, slot: int) -> str:
        try:
            return self.slices[handle][slot]
        except IndexError:
            raise failing("NotFound") from None

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(
            gpu={"GPU-aaaa": 10, "GPU-bbbb": 20, "GPU-cccc": 0, "MIG-1111": 5, "MIG-2222": 6}[handle]
        )

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(
            used={"GPU-aaaa": 1, "GPU-bbbb": 2, "GPU-cccc": 3, "MIG-1111": 4, "MIG-2222": 5}[handle] << 30
        )

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 312_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.mask

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self.millijoules

    def nvmlDeviceGetTotalEccErrors(self, handle: str, error: int, counter: int) -> int:
        return (self.corrected, self.uncorrected)[error] if counter == 0 else 10**6

    def nvmlDeviceGetPcieThroughput(self, handle: str, counter: int) -> int:
        self.pcie_calls.append(handle)
        return (3000, 500)[counter]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.running.get(handle, [])]

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle not in self.slices:
            raise failing("NotSupported")
        return [1, 1]

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetComputeInstanceId(self, handle: str) -> int:
        return int(handle == "MIG-2222")

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> str:
        return self.cards[int(address.split(":")[1], 16)]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: str) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: str) -> int:
        return 16

    def nvmlDeviceGetTopologyCommonAncestor(self, first: str, second: str) -> int:
        return 20 if "GPU-cccc" in (first, second) else 50

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(domain=0, bus=self.cards.index(handle), device=0)

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:
        return int(link < len(self.linked.get(handle, [])))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: str, link: int) -> int:
        return 2 if self.linked[handle][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: str, link: int) -> SimpleNamespace:
        end = self.linked[handle][link]
        return (
            SimpleNamespace(domain=0, bus=99, device=0) if end == "switch" else self.nvmlDeviceGetPciInfo(end)
        )


def fake_proc(folder: Path, groups: dict[int, int], namespace: str = FIRST_NAMESPACE) -> Path:
    """A /proc with these processes and their groups, in a namespace of process ids."""
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(namespace)
    for pid, group in groups.items():
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(f"{pid} (a (b) c) S 1 {group} {group} 0 -1\n")
    return folder


def reader_of(uuids: list[str], nvml: FakeNvml, proc: Path = Path("/no/proc"), **watch: Any) -> NvmlReader:
    """A reader of these devices."""
    return NvmlReader(Watch(folder="", parent_pid=0, device_uuids=tuple(uuids), **watch), nvml, proc)
