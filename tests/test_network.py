"""Interfaces and InfiniBand ports: rates and faults a device, from a /proc and a /sys made up for it."""

from pathlib import Path

import pytest

from bench import hostfacts
from bench.machine import Port
from bench.samplers.network import FULL, PLUGIN, NetworkReader
from bench.sampling import Readings, Watch

WATCH = Watch(folder="", parent_pid=0)


def interface(
    received: int, sent: int, *, errors: tuple[int, int] = (0, 0), drops: tuple[int, int] = (0, 0)
) -> str:
    """The counters of a line of /proc/net/dev."""
    return f"{received} 9 {errors[0]} {drops[0]} 0 0 0 0 {sent} 9 {errors[1]} {drops[1]} 0 0 0 0"


def write_net(proc: Path, **lines: str) -> None:
    """/proc/net/dev with these interfaces; the kernel puts no space after a colon when a number is long."""
    (proc / "net").mkdir(parents=True, exist_ok=True)
    body = "".join(f"{name:>6}:{line}\n" for name, line in lines.items())
    (proc / "net/dev").write_text(f"Inter-| Receive\n face |bytes\n{body}")


def write_port(
    sys: Path, received: int, sent: int, *, wide: bool = True, faults: tuple[int, int] = (0, 0)
) -> None:
    """Port 1 of mlx5_0: data counters of 64 bits in a folder of their own, or the plain ones."""
    port = sys / "class/infiniband/mlx5_0/ports/1"
    files = {"counters/port_rcv_errors": faults[0], "counters/port_xmit_discards": faults[1]}
    name = "counters_ext/port_{}_data_64" if wide else "counters/port_{}_data"
    for file, value in (files | {name.format("rcv"): received, name.format("xmit"): sent}).items():
        (port / file).parent.mkdir(parents=True, exist_ok=True)
        (port / file).write_text(f"{value}\n")


def reader_of(folder: Path) -> NetworkReader:
    """A reader of the files below a folder."""
    return NetworkReader(WATCH, folder / "proc", folder / "sys")


def test_interfaces_give_bytes_a_second_and_what_went_wrong(tmp_path: Path) -> None:
    """Rates are between readings, faults since the first one; silent interfaces are left out."""
    write_net(tmp_path / "proc", eth0=interface(1000, 500, errors=(7, 0)), ib0=interface(0, 0))
    reader = reader_of(tmp_path)
    assert reader.read(10.0) == {("eth0", "errors"): 0, ("eth0", "drops"): 0}
    write_net(tmp_path / "proc", eth0=interface(3000, 400, errors=(8, 2), drops=(0, 5)), ib0=interface(0, 0))
    assert reader.read(10.5) == {
        ("eth0", "rx_bytes_per_s"): 4000.0,
        ("eth0", "tx_bytes_per_s"): None,  # it went back
        ("eth0", "errors"): 3,
        ("eth0", "drops"): 5,
    }
    assert set(reader.reasons) == {"eth0/tx_bytes_per_s"}


def test_a_host_with_many_interfaces_loses_none(tmp_path: Path) -> None:
    """A list of interfaces longer than one read is read to its end."""
    values: Readings = {}
    write_net(tmp_path / "proc")
    reader = reader_of(tmp_path)
    for now_s, count in ((1.0, 10), (2.0, 30)):
        write_net(tmp_path / "proc", **{f"veth{i}": interface(count, count) for i in range(2000)})
        values = reader.read(now_s)
    assert (tmp_path / "proc/net/dev").stat().st_size > 1 << 16
    assert [values[f"veth{i}", "rx_bytes_per_s"] for i in range(2000)] == [20.0] * 2000


@pytest.mark.parametrize("wide", [True, False])
def test_a_port_counts_words_of_four_bytes(tmp_path: Path, wide: bool) -> None:
    """RDMA traffic is in the port's counters only; those of 64 bits are taken where there are two."""
    write_net(tmp_path / "proc")
    write_port(tmp_path / "sys", 1000, 10, wide=wide, faults=(4, 0))
    if wide:
        write_port(tmp_path / "sys", 5, 5, wide=False, faults=(4, 0))
    reader = reader_of(tmp_path)
    reader.read(1.0)
    write_port(tmp_path / "sys", 3000, 110, wide=wide, faults=(5, 2))
    values = reader.read(3.0)
    assert values == {
        ("mlx5_0 port 1", "rx_bytes_per_s"): 4000.0,
        ("mlx5_0 port 1", "tx_bytes_per_s"): 200.0,
        ("mlx5_0 port 1", "errors"): 1,
        ("mlx5_0 port 1", "drops"): 2,
    }


def test_a_full_counter_of_32_bits_is_null(tmp_path: Path) -> None:
    """Such a counter stops at its end: from there on the traffic is not known, and it is not 0."""
    write_net(tmp_path / "proc")
    write_port(tmp_path / "sys", FULL - 10, 0, wide=False)
    reader = reader_of(tmp_path)
    reader.read(1.0)
    write_port(tmp_path / "sys", FULL, 0, wide=False)
    assert reader.read(2.0)["mlx5_0 port 1", "rx_bytes_per_s"] is None
    assert "32 bits" in reader.reasons["mlx5_0 port 1/rx_bytes_per_s"]
    assert reader.read(3.0)["mlx5_0 port 1", "tx_bytes_per_s"] == 0


def test_what_cannot_be_read_is_null_with_a_reason(tmp_path: Path) -> None:
    """No /proc/net/dev, and a port without counters: nulls, and the other values still come."""
    write_port(tmp_path / "sys", 1, 1)
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors").unlink()
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_discards").write_text(
        "N/A (no PMA)\n"
    )
    reader = reader_of(tmp_path)
    values = reader.read(1.0)
    nulls = {"network/rx_bytes_per_s", "mlx5_0 port 1/errors", "mlx5_0 port 1/drops"}
    assert {"/".join(key) for key, value in values.items() if value is None} == nulls
    assert set(reader.reasons) == nulls
    assert reader.read(2.0)["mlx5_0 port 1", "rx_bytes_per_s"] == 0


def test_this_host_is_read() -> None:
    """The plug-in opens on this host, whatever its network is."""
    reader = PLUGIN.open(WATCH)
    reader.read(1.0)
    assert all(value is None or value >= 0 for value in reader.read(2.0).values())


def test_ports_are_listed_in_the_kernels_words(tmp_path: Path) -> None:
    """State without its number, rate and link layer; what is missing is null."""
    for name, files in {
        "mlx5_0/ports/1": {"state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "link_layer": "InfiniBand"},
        "mlx5_1/ports/1": {"state": "1: DOWN", "link_layer": "Ethernet"},
    }.items():
        (tmp_path / "infiniband" / name).mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / "infiniband" / name / file).write_text(f"{text}\n")
    assert hostfacts.ports(tmp_path) == [
        Port(device="mlx5_0", port=1, state="ACTIVE", rate="200 Gb/sec (4X HDR)", link_layer="InfiniBand"),
        Port(device="mlx5_1", port=1, state="DOWN", rate=None, link_layer="Ethernet"),
    ]
    assert hostfacts.ports(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("link", "hardware", "kind"),
    [("1", True, "ethernet"), ("1", False, "virtual"), ("32", True, "infiniband"), ("772", False, "loopback"),
     ("65534", False, None), (None, False, None)],
)  # fmt: skip
def test_an_interface_is_what_its_link_type_says(
    tmp_path: Path, link: str | None, hardware: bool, kind: str | None
) -> None:
    """Ethernet without hardware is virtual (a bridge, a container's); an unknown type is null."""
    folder = tmp_path / "net/x0"
    (folder / "device").mkdir(parents=True) if hardware else folder.mkdir(parents=True)
    if link:
        (folder / "type").write_text(f"{link}\n")
    assert hostfacts.nic_kind("x0", tmp_path) == kind
