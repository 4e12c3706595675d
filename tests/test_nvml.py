"""NVML by UUID, every call optional: with a fake library, since most test hosts have none."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bench import device_probe
from bench.samplers._nvml import find_handles
from bench.samplers.nvml import MEASURES, PLUGIN, THROTTLE_WORDS, NvmlReader
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
        self, *, names_are_bytes: bool = False, fail: dict[str, str] | None = None, mig: bool = False
    ) -> None:
        self.cards = ["GPU-cccc", "GPU-aaaa", "GPU-bbbb"]
        self.slices = {"GPU-bbbb": ["MIG-1111"]} if mig else {}
        self.names_are_bytes = names_are_bytes
        self.fail = fail or {}
        self.mask = 0x4 | 0x40
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
        return SimpleNamespace(gpu={"GPU-aaaa": 10, "GPU-bbbb": 20, "GPU-cccc": 0, "MIG-1111": 5}[handle])

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(
            used={"GPU-aaaa": 1, "GPU-bbbb": 2, "GPU-cccc": 3, "MIG-1111": 4}[handle] << 30
        )

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 312_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.mask

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


@pytest.mark.parametrize("names_are_bytes", [False, True])
def test_values_follow_the_uuid_not_the_index(names_are_bytes: bool) -> None:
    """Three cards counted in another order: each watched UUID gets its own card's values."""
    reader = NvmlReader(["GPU-aaaa", "GPU-bbbb"], FakeNvml(names_are_bytes=names_are_bytes))
    values = reader.read(0.0)
    assert values["GPU-aaaa", "utilisation_percent"] == 10
    assert values["GPU-bbbb", "utilisation_percent"] == 20
    assert values["GPU-bbbb", "memory_used_bytes"] == 2 << 30
    assert {subject for subject, _ in values} == {"GPU-aaaa", "GPU-bbbb"}
    assert reader.reasons == {}


def test_units_are_those_of_the_names() -> None:
    """Milliwatts become watts, the two clocks are not mixed up, and 0 % is 0 and not missing."""
    values = NvmlReader(["GPU-cccc"], FakeNvml()).read(0.0)
    assert values["GPU-cccc", "power_w"] == 312.5
    assert values["GPU-cccc", "temperature_c"] == 61
    assert values["GPU-cccc", "sm_clock_mhz"] == 1980
    assert values["GPU-cccc", "memory_clock_mhz"] == 2619
    assert values["GPU-cccc", "utilisation_percent"] == 0


def test_throttle_reasons_are_decoded_into_words() -> None:
    """Each word is 1 while its bit is set and 0 otherwise."""
    values = NvmlReader(["GPU-aaaa"], FakeNvml()).read(0.0)
    flags = {word: values["GPU-aaaa", f"throttle_{word}"] for word in THROTTLE_WORDS.values()}
    assert {word for word, active in flags.items() if active == 1.0} == {
        "sw_power_cap",
        "hw_thermal_slowdown",
    }
    assert all(active in (0.0, 1.0) for active in flags.values())


def test_an_older_library_has_throttle_reasons_by_their_older_name() -> None:
    """Bindings without ClocksEventReasons are asked for ClocksThrottleReasons."""

    class Older(FakeNvml):
        nvmlDeviceGetCurrentClocksEventReasons = None  # type: ignore[assignment]

        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
            return 0x8

    values = NvmlReader(["GPU-aaaa"], Older()).read(0.0)
    assert values["GPU-aaaa", "throttle_hw_slowdown"] == 1.0
    assert values["GPU-aaaa", "throttle_sw_power_cap"] == 0.0


CALLS = {
    "nvmlDeviceGetUtilizationRates": ["utilisation_percent"],
    "nvmlDeviceGetMemoryInfo": ["memory_used_bytes"],
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "memory_clock_mhz"],
    "nvmlDeviceGetCurrentClocksEventReasons": [f"throttle_{word}" for word in THROTTLE_WORDS.values()],
}


@pytest.mark.parametrize("error", ["NotSupported", "NoPermission", "Uninitialized", "GpuIsLost"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_null_with_its_reason_and_hurts_no_other(call: str, error: str) -> None:
    """Only the measures of the failing call are null, never 0, and the reason is the error's name."""
    reader = NvmlReader(["GPU-aaaa"], FakeNvml(fail={call: error}))
    values = reader.read(0.0)
    assert [measure for (_, measure), value in values.items() if value is None] == CALLS[call]
    assert set(reader.reasons.values()) == {error}
    assert all(key.startswith("GPU-aaaa/") for key in reader.reasons)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_nvml_at_all_is_null_with_a_reason(call: str) -> None:
    """Without the library every measure of every watched device is null, and the reason says so."""
    reader = NvmlReader(["GPU-aaaa"], FakeNvml(fail={call: "LibraryNotFound"}))
    values = reader.read(0.0)
    assert values
    assert set(values.values()) == {None}
    assert reader.reasons["nvml"] == "no NVML: LibraryNotFound"
    assert reader.reasons["GPU-aaaa/power_w"] == "no NVML: LibraryNotFound"
    assert set(MEASURES) < {measure for _, measure in values}


def test_nothing_to_watch_needs_no_nvml() -> None:
    """A launch on CPUs loads no NVML bindings and says why there is nothing."""
    code = (
        "import sys; from bench.samplers.nvml import PLUGIN; from bench.sampling import Watch;"
        "reader = PLUGIN.open(Watch(folder='', parent_pid=0)); assert reader.read(0.0) == {};"
        "assert 'pynvml' not in sys.modules; print(reader.reasons)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "no NVML" in done.stdout


def test_missing_bindings_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without the NVML bindings gives nulls."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reader = PLUGIN.open(Watch(folder="", parent_pid=0, device_uuids=("GPU-aaaa",)))
    assert set(reader.read(0.0).values()) == {None}
    assert reader.reasons["nvml"].startswith("no NVML: ModuleNotFoundError")


def test_a_uuid_that_nvml_does_not_know_is_null() -> None:
    """No other card's values stand in for a device that is not found."""
    reader = NvmlReader(["GPU-dddd", "GPU-aaaa"], FakeNvml())
    values = reader.read(0.0)
    assert values["GPU-dddd", "memory_used_bytes"] is None
    assert values["GPU-aaaa", "memory_used_bytes"] == 1 << 30
    assert reader.reasons["GPU-dddd/memory_used_bytes"] == "NVML has no device with this UUID"


def test_a_card_that_cannot_be_asked_is_passed_over() -> None:
    """A lost card among others does not keep the others from being found."""

    class OneLost(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
            if index == 0:
                raise failing("GpuIsLost")
            return super().nvmlDeviceGetHandleByIndex(index)

    assert find_handles(OneLost(), ["GPU-aaaa", "GPU-cccc"]) == {"GPU-aaaa": "GPU-aaaa"}


def test_mig_slices_are_found_by_their_own_uuid() -> None:
    """A slice has its own values, and its UUID is known with or without its prefix, as torch gives it."""
    assert find_handles(FakeNvml(mig=True), ["MIG-1111"]) == {"MIG-1111": "MIG-1111"}
    assert find_handles(FakeNvml(mig=True), ["GPU-1111"]) == {"GPU-1111": "MIG-1111"}
    values = NvmlReader(["MIG-1111"], FakeNvml(mig=True)).read(0.0)
    assert values["MIG-1111", "memory_used_bytes"] == 4 << 30


def probed(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the device probe adds from NVML for torch's devices aaaa and bbbb."""
    devices = [{"index": 0, "uuid": "GPU-aaaa"}, {"index": 1, "uuid": "GPU-bbbb"}]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
    return device_probe.nvml_facts(devices), devices


def test_probe_reads_driver_pcie_and_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's version may be bytes; devices without NVLink are joined over PCIe."""
    facts, devices = probed(FakeNvml(), monkeypatch)
    assert facts["driver"] == "570.86.10"
    assert facts["links"] == [{"first": 0, "second": 1, "path": "SYS: between NUMA nodes"}]
    assert devices[0]["pcie"] == "gen5 x16"


@pytest.mark.parametrize(
    ("ends", "path"),
    [
        ({"GPU-aaaa": ["GPU-bbbb"] * 2 + ["GPU-cccc"], "GPU-bbbb": ["GPU-aaaa"] * 2}, "NVLink x2"),
        ({"GPU-aaaa": ["switch"] * 4, "GPU-bbbb": ["switch"] * 3}, "NVLink x3"),
        ({"GPU-aaaa": ["GPU-cccc"], "GPU-bbbb": ["GPU-cccc"]}, "SYS: between NUMA nodes"),
    ],
)
def test_probe_counts_nvlinks(monkeypatch: pytest.MonkeyPatch, ends: dict[str, list[str]], path: str) -> None:
    """Links between the pair are counted, direct or through a switch; links to a third card are not."""
    nvml = FakeNvml()
    nvml.linked = ends
    facts, _ = probed(nvml, monkeypatch)
    assert [link["path"] for link in facts["links"]] == [path]


def test_probe_without_nvml_says_why_there_are_no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are null with a reason where NVML is missing, forbidden or there is one device."""
    assert "no NVML" in probed(FakeNvml(fail={"nvmlInit": "DriverNotLoaded"}), monkeypatch)[0]["links_reason"]
    facts, _ = probed(FakeNvml(fail={"nvmlDeviceGetTopologyCommonAncestor": "NotSupported"}), monkeypatch)
    assert facts["links"][0]["path"] == "unknown (NotSupported)"
    assert device_probe.links(FakeNvml(), [{"index": 0, "uuid": "GPU-aaaa"}], {}) == {
        "links_reason": "fewer than two devices"
    }


def test_torch_devices_get_nvml_names() -> None:
    """torch's bare UUID gets its prefix, PCI numbers become an address; what is missing is None."""
    properties = SimpleNamespace(
        name="A GPU", total_memory=1 << 30, uuid="52a3b1c0-0000-1111-2222-333344445555",
        pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0,
    )  # fmt: skip
    one = device_probe.device(SimpleNamespace(get_device_properties=lambda _: properties), "cuda", 3)
    assert one["uuid"] == "GPU-52a3b1c0-0000-1111-2222-333344445555"
    assert one["pci"] == "0000:1b:00.0"
    bare = device_probe.device(SimpleNamespace(), "mps", 0)
    assert (bare["name"], bare["uuid"], bare["memory_bytes"], bare["pci"]) == ("mps", None, None, None)


class FakeTorch:
    """Just enough of torch for the probe's look at accelerators."""

    __version__ = "2.13.0"

    def __init__(self, built_for: str | None, count: int = 0, error: str | None = None) -> None:
        def init() -> None:
            if error:
                raise RuntimeError(error)

        self.accelerator = SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type=built_for) if built_for else None,
            is_available=lambda: count > 0,
            device_count=lambda: count,
        )
        self.module = SimpleNamespace(init=init)

    def get_device_module(self, kind: str) -> SimpleNamespace:
        return self.module


def test_probe_says_why_there_is_no_device() -> None:
    """A CPU build, a driver that fails and hidden devices each give one line."""
    assert "built without" in device_probe.accelerators(FakeTorch(None))["device_error"]
    failed = device_probe.accelerators(FakeTorch("cuda", error="Found no NVIDIA driver\nlong advice"))
    assert failed == {"device_error": "Found no NVIDIA driver"}
    assert device_probe.accelerators(FakeTorch("xpu")) == {"device_error": "torch sees no xpu device"}
    assert "too old" in device_probe.accelerators(SimpleNamespace(__version__="2.1"))["device_error"]


def test_probe_lists_every_visible_device_in_order() -> None:
    """Devices carry torch's ordinals."""
    found = device_probe.accelerators(FakeTorch("cuda", count=2))
    assert found["accelerator"] == "cuda"
    assert [one["index"] for one in found["devices"]] == [0, 1]
    assert "device_error" not in found
