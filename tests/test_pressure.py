"""Samplers of what holds a machine up: waiting for CPUs, memory and disks, swapping, clocks of CPUs."""

import itertools
from pathlib import Path

import pytest

from bench.samplers.cpu_clock import EVERY_S, FREQUENCY, ClockReader, _spread
from bench.samplers.pressure import PAGE_BYTES, PressureReader
from bench.sampling import Watch

WATCH = Watch(folder="", parent_pid=0)


def pressure(folder: Path, waited_us: int, swapped_in: int = 0) -> None:
    """The files of /proc that say who waited."""
    (folder / "pressure").mkdir(exist_ok=True)
    for name in ("cpu", "memory", "io"):
        some = f"some avg10=1.00 avg60=0.50 avg300=0.10 total={waited_us}\n"
        (folder / "pressure" / name).write_text(some + "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")
    (folder / "vmstat").write_text(f"nr_free_pages 9\npswpin {swapped_in}\npswpout 1\npgmajfault 3\n")


def test_waiting_is_seconds_since_the_first_reading(tmp_path: Path) -> None:
    """Half a second of 'some' between two readings, whatever had been before; two pages swapped."""
    pressure(tmp_path, 5_000_000)
    reader = PressureReader(WATCH, proc=tmp_path)
    assert reader.read(0.0)["node", "cpu_pressure_s"] == 0.0
    pressure(tmp_path, 5_500_000, swapped_in=2)
    values = reader.read(1.0)
    assert values["node", "cpu_pressure_s"] == pytest.approx(0.5)
    assert values["node", "memory_pressure_s"] == values["node", "io_pressure_s"] == pytest.approx(0.5)
    assert values["node", "swapped_bytes"] == 2 * PAGE_BYTES
    assert reader.reasons == {}


def test_a_kernel_without_pressure_gives_nulls_with_reasons(tmp_path: Path) -> None:
    """No /proc/pressure: null and never 0; the other counters still come."""
    (tmp_path / "vmstat").write_text("pswpin 0\npswpout 0\n")
    reader = PressureReader(WATCH, proc=tmp_path)
    values = reader.read(0.0)
    assert values["node", "memory_pressure_s"] is None
    assert reader.reasons["node/memory_pressure_s"].startswith("FileNotFoundError")
    assert values["node", "swapped_bytes"] == 0.0


def cpu(folder: Path, number: int, khz: int, heat_ms: int) -> None:
    """One CPU's files of /sys."""
    for name, value in (
        ("cpufreq/scaling_cur_freq", khz),
        ("thermal_throttle/package_throttle_total_time_ms", heat_ms),
    ):
        path = folder / f"devices/system/cpu/cpu{number}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


@pytest.mark.parametrize(("count", "last"), [(1, 0), (16, 15), (17, 16), (31, 30), (128, 127)])
def test_the_cpus_that_are_looked_at_are_spread_over_all(tmp_path: Path, count: int, last: int) -> None:
    """At most 16, from the first to the last by number, no gap twice another and more."""
    for number in range(count):
        cpu(tmp_path, number, 2_000_000, 0)
    chosen = [int(name.split("/")[3][3:]) for name in _spread(tmp_path, FREQUENCY)]
    gaps = [b - a for a, b in itertools.pairwise(chosen)]
    assert (len(chosen), chosen[0], chosen[-1]) == (min(count, 16), 0, last)
    assert not gaps or max(gaps) <= min(gaps) + 1


def test_clocks_are_the_mean_of_the_cpus_and_heat_is_that_of_the_worst_package(tmp_path: Path) -> None:
    """2.0 and 3.0 GHz are 2.5 in the middle; half a second more of one package's throttling counts."""
    cpu(tmp_path, 0, 2_000_000, 100)
    cpu(tmp_path, 1, 3_000_000, 4_000)
    reader = ClockReader(WATCH, sys=tmp_path)
    assert reader.read(0.0) == {("node", "cpu_mhz"): 2500.0, ("node", "cpu_throttled_s"): 0.0}
    cpu(tmp_path, 1, 1_000_000, 4_500)
    assert reader.read(EVERY_S / 2) == {("node", "cpu_throttled_s"): 0.5}
    assert reader.read(EVERY_S)["node", "cpu_mhz"] == 1500.0


def test_a_host_without_clocks_has_nulls_with_reasons(tmp_path: Path) -> None:
    """As in most virtual machines: both are null, and why is said."""
    reader = ClockReader(WATCH, sys=tmp_path)
    assert reader.read(0.0) == {("node", "cpu_mhz"): None, ("node", "cpu_throttled_s"): None}
    assert "virtual machines" in reader.reasons["node/cpu_mhz"]
    assert "virtual machines" in reader.reasons["node/cpu_throttled_s"]
