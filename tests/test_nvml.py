"""NVML by UUID, every call optional: with a fake library, since most test hosts have none."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import device_probe
from bench.samplers._nvml import find_handles
from bench.samplers._nvml_calls import COUNTERS, MEASURES, PCIE, THROTTLE_WORDS
from bench.samplers.nvml import PCIE_S, PLUGIN
from bench.sampling import Watch
from tests.nvml import FakeNvml, failing, fake_proc, reader_of


@pytest.mark.parametrize("names_are_bytes", [False, True])
def test_values_follow_the_uuid_not_the_index(names_are_bytes: bool) -> None:
    """Three cards counted in another order: each watched UUID gets its own card's values."""
    reader = reader_of(["GPU-aaaa", "GPU-bbbb"], FakeNvml(names_are_bytes=names_are_bytes))
    values = reader.read(0.0)
    assert values["GPU-aaaa", "utilisation_percent"] == 10
    assert values["GPU-bbbb", "utilisation_percent"] == 20
    assert values["GPU-bbbb", "memory_used_bytes"] == 2 << 30
    assert {subject for subject, _ in values} == {"GPU-aaaa", "GPU-bbbb"}
    assert {key for key in reader.reasons if "foreign" not in key} == set()


def test_units_are_those_of_the_names() -> None:
    """Milliwatts become watts, the two clocks are not mixed up, and 0 % is 0 and not missing."""
    values = reader_of(["GPU-cccc"], FakeNvml()).read(0.0)
    assert values["GPU-cccc", "power_w"] == 312.5
    assert values["GPU-cccc", "power_limit_w"] == 700
    assert values["GPU-cccc", "pcie_tx_bytes_per_s"] == 3_000_000
    assert values["GPU-cccc", "pcie_rx_bytes_per_s"] == 500_000
    assert values["GPU-cccc", "temperature_c"] == 61
    assert values["GPU-cccc", "sm_clock_mhz"] == 1980
    assert values["GPU-cccc", "memory_clock_mhz"] == 2619
    assert values["GPU-cccc", "utilisation_percent"] == 0


def test_counters_are_what_was_added_since_the_first_reading() -> None:
    """Millijoules since the driver was loaded become joules of this launch; errors from before it do not count."""
    nvml = FakeNvml()
    reader = reader_of(["GPU-aaaa"], nvml)
    first = reader.read(0.0)
    assert [first["GPU-aaaa", name] for name in COUNTERS] == [0, 0, 0]
    nvml.millijoules, nvml.corrected, nvml.uncorrected = 5_250_000, 43, 3
    second = reader.read(0.1)
    assert [second["GPU-aaaa", name] for name in COUNTERS] == [250, 3, 1]


def test_a_counter_that_was_reset_is_null_from_then_on() -> None:
    """What a counter had counted before its reset is not known, and later readings cannot give it back."""
    nvml = FakeNvml()
    reader = reader_of(["GPU-aaaa"], nvml)
    reader.read(0.0)
    for nvml.millijoules in (10, 6_000_000):
        assert reader.read(1.0)["GPU-aaaa", "energy_j"] is None
    assert "reset" in reader.reasons["GPU-aaaa/energy_j"]


def test_devices_take_turns_with_the_slow_pcie_calls() -> None:
    """One device a reading, each once a second: ten readings of two devices ask each one once."""
    nvml = FakeNvml()
    reader = reader_of(["GPU-aaaa", "GPU-bbbb"], nvml)
    readings = [reader.read(10 + tenth / 10) for tenth in range(10)]
    assert nvml.pcie_calls == ["GPU-aaaa"] * 2 + ["GPU-bbbb"] * 2
    asked = [{uuid for uuid, measure in values if measure in PCIE} for values in readings]
    assert max(map(len, asked)) == 1
    reader.read(10 + PCIE_S)
    assert nvml.pcie_calls[4:] == ["GPU-aaaa"] * 2


def test_throttle_reasons_are_decoded_into_words() -> None:
    """Each word is 1 while its bit is set and 0 otherwise."""
    values = reader_of(["GPU-aaaa"], FakeNvml()).read(0.0)
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

    values = reader_of(["GPU-aaaa"], Older()).read(0.0)
    assert values["GPU-aaaa", "throttle_hw_slowdown"] == 1.0
    assert values["GPU-aaaa", "throttle_sw_power_cap"] == 0.0


CALLS = {
    "nvmlDeviceGetUtilizationRates": ["utilisation_percent"],
    "nvmlDeviceGetMemoryInfo": ["memory_used_bytes"],
    "nvmlDeviceGetPowerUsage": ["power_w"],
    "nvmlDeviceGetEnforcedPowerLimit": ["power_limit_w"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "memory_clock_mhz"],
    "nvmlDeviceGetTotalEnergyConsumption": ["energy_j"],
    "nvmlDeviceGetTotalEccErrors": ["ecc_corrected", "ecc_uncorrected"],
    "nvmlDeviceGetPcieThroughput": ["pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"],
    "nvmlDeviceGetComputeRunningProcesses": ["foreign_processes", "foreign_memory_bytes"],
    "nvmlDeviceGetCurrentClocksEventReasons": [f"throttle_{word}" for word in THROTTLE_WORDS.values()],
}


@pytest.mark.parametrize("error", ["NotSupported", "NoPermission", "Uninitialized", "GpuIsLost"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_is_null_with_its_reason_and_hurts_no_other(
    tmp_path: Path, call: str, error: str
) -> None:
    """Only the measures of the failing call are null, never 0, and the reason is the error's name."""
    nvml = FakeNvml(fail={call: error})
    nvml.running = {"GPU-aaaa": [(501, 1)]}
    reader = reader_of(["GPU-aaaa"], nvml, fake_proc(tmp_path, {501: 500}), engine_pgid=500)
    values = reader.read(0.0)
    assert [measure for (_, measure), value in values.items() if value is None] == CALLS[call]
    assert set(reader.reasons.values()) == {error}
    assert all(key.startswith("GPU-aaaa/") for key in reader.reasons)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_nvml_at_all_is_null_with_a_reason(call: str) -> None:
    """Without the library every measure of every watched device is null, and the reason says so."""
    reader = reader_of(["GPU-aaaa"], FakeNvml(fail={call: "LibraryNotFound"}))
    values = reader.read(0.0)
    assert values
    assert set(values.values()) == {None}
    assert reader.reasons["nvml"] == "no NVML: LibraryNotFound"
    assert reader.reasons["GPU-aaaa/power_w"] == "no NVML: LibraryNotFound"
    assert {*MEASURES, *COUNTERS, *PCIE, "foreign_processes"} < {measure for _, measure in values}


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
    reader = reader_of(["GPU-dddd", "GPU-aaaa"], FakeNvml())
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
    assert find_handles(FakeNvml(mig=1), ["MIG-1111"]) == {"MIG-1111": "MIG-1111"}
    assert find_handles(FakeNvml(mig=1), ["GPU-1111"]) == {"GPU-1111": "MIG-1111"}
    values = reader_of(["MIG-1111"], FakeNvml(mig=1)).read(0.0)
    assert values["MIG-1111", "memory_used_bytes"] == 4 << 30


def test_a_slice_is_found_by_the_name_that_older_drivers_give_it() -> None:
    """MIG-GPU-<card>/<instance>/<instance> is the slice with these numbers on that card, and no other."""
    nvml = FakeNvml(mig=2)
    assert find_handles(nvml, ["MIG-GPU-bbbb/7/1"]) == {"MIG-GPU-bbbb/7/1": "MIG-2222"}
    assert find_handles(nvml, ["MIG-GPU-aaaa/7/1", "MIG-GPU-bbbb/8/0"]) == {}


def test_what_a_slice_does_not_support_is_null_beside_what_it_does() -> None:
    """A MIG slice has memory of its own; its use and power are null, never those of the whole card."""

    class Slice(FakeNvml):
        def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
            if handle.startswith("MIG-"):
                raise failing("NotSupported")
            return super().nvmlDeviceGetUtilizationRates(handle)

    reader = reader_of(["MIG-1111"], Slice(mig=1))
    values = reader.read(0.0)
    assert values["MIG-1111", "utilisation_percent"] is None
    assert values["MIG-1111", "memory_used_bytes"] == 4 << 30
    assert reader.reasons["MIG-1111/utilisation_percent"] == "NotSupported"


@pytest.mark.parametrize(
    ("slices", "device", "visible", "settled"),
    [
        (0, {"uuid": "GPU-aaaa"}, None, "GPU-aaaa"),
        (0, {"uuid": "GPU-AAAA"}, ["1"], "GPU-aaaa"),
        (0, {"uuid": "GPU-dddd"}, None, "GPU-dddd"),
        (0, {"uuid": None, "pci": "0000:02:00.0"}, None, "GPU-bbbb"),
        (0, {"uuid": None, "pci": None}, ["GPU-cccc"], "GPU-cccc"),
        (0, {"uuid": None, "pci": None}, ["0"], None),
        (2, {"uuid": "GPU-2222"}, None, "MIG-2222"),
        (2, {"uuid": "GPU-bbbb"}, ["MIG-2222"], "MIG-2222"),
        (2, {"uuid": "GPU-bbbb"}, ["MIG-GPU-bbbb/7/0"], "MIG-1111"),
        (1, {"uuid": "GPU-bbbb"}, None, "MIG-1111"),
        (2, {"uuid": "GPU-bbbb"}, None, None),
        (2, {"uuid": "GPU-bbbb"}, ["2"], None),
        (2, {"uuid": "GPU-aaaa"}, None, "GPU-aaaa"),
    ],
)
def test_a_device_has_the_uuid_that_nvml_knows_it_by(
    monkeypatch: pytest.MonkeyPatch,
    slices: int,
    device: dict[str, Any],
    visible: list[str] | None,
    settled: str | None,
) -> None:
    """torch may leave the UUID out or give the card's for a slice; what stays open is null, never the whole card."""
    names = "" if visible is None else ",".join(visible)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names) if visible else monkeypatch.delenv(
        "CUDA_VISIBLE_DEVICES", raising=False
    )
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(mig=slices))  # type: ignore[arg-type]
    devices = [{"index": 0} | device]
    facts = device_probe.nvml_facts(devices)
    assert devices[0]["uuid"] == settled
    assert ("nvml_error" in facts) == (settled is None)


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
    without, _ = probed(FakeNvml(fail={"nvmlInit": "DriverNotLoaded"}), monkeypatch)
    assert "no NVML" in without["links_reason"] and "no NVML" in without["nvml_error"]
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
        self.version = self.distributed = SimpleNamespace()

    def get_device_module(self, kind: str) -> SimpleNamespace:
        return self.module


def test_probe_says_why_there_is_no_device() -> None:
    """A CPU build, a driver that fails and hidden devices each give one line."""
    assert "built without" in device_probe.accelerators(FakeTorch(None))["device_error"]
    failed = device_probe.accelerators(FakeTorch("cuda", error="Found no NVIDIA driver\nlong advice"))
    assert failed == {"device_error": "Found no NVIDIA driver"}
    assert device_probe.accelerators(FakeTorch("xpu")) == {"device_error": "torch sees no xpu device"}
    assert "too old" in device_probe.accelerators(SimpleNamespace(__version__="2.1"))["device_error"]


@pytest.mark.parametrize(("cuda", "hip"), [("13.0", None), (None, "6.4")])
def test_probe_tells_rocm_from_cuda(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, hip: str | None
) -> None:
    """Both call their devices cuda; the version of one stands where the other's would, and ROCm's apart."""
    fake = FakeTorch("cuda", count=1)
    fake.version = SimpleNamespace(cuda=cuda, hip=hip)
    fake.distributed = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fail={"nvmlInit": "LibraryNotFound"}))  # type: ignore[arg-type]
    found = device_probe.look()
    assert (found["cuda"], found["rocm"], found["accelerator"]) == (cuda or hip, hip, "cuda")
    assert "no NVML" in found["nvml_error"]


def test_probe_lists_every_visible_device_in_order() -> None:
    """Devices carry torch's ordinals."""
    found = device_probe.accelerators(FakeTorch("cuda", count=2))
    assert found["accelerator"] == "cuda"
    assert [one["index"] for one in found["devices"]] == [0, 1]
    assert "device_error" not in found
