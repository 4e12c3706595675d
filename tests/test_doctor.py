"""`doctor`: what it prints, in JSON and on terminals of any width."""

import subprocess
import sys

import msgspec
import pytest

from bench.hints import Hint
from bench.machine import Device, Host, Link, Nic, Port
from bench.verbs import doctor

GPUS = [
    Device(index=i, name="NVIDIA Example", kind="cuda", uuid=f"GPU-{i}", memory_bytes=80 << 30, pci=f"0000:{i}b:00.0",
           pcie="gen5 x16", numa=i // 2)
    for i in range(3)
]  # fmt: skip

RICH_HOST = Host(
    hostname="node0",
    hostname_address="10.0.0.1",
    os="An OS",
    kernel="6.1",
    python="3.12.1",
    cpu_model="A CPU",
    cpus_counted=64,
    cpus_affinity=32,
    cpu_quota=15.5,
    cpus_usable=15,
    numa_nodes=2,
    governor="powersave",
    memory_bytes=512 << 30,
    memory_limit_bytes=64 << 30,
    shm_total_bytes=64 << 20,
    shm_free_bytes=60 << 20,
    fd_soft=1024,
    nics=[
        Nic(name="eth0", speed_mbit=100_000, up=True, address="10.0.0.1", loopback=False, kind="ethernet"),
        Nic(name="lo", speed_mbit=None, up=True, address="127.0.0.1", loopback=True),
    ],
    ports=[
        Port(device="mlx5_0", port=1, state="ACTIVE", rate="200 Gb/sec (4X HDR)", link_layer="InfiniBand"),
        Port(device="mlx5_1", port=1),
    ],
    torch="2.13.0",
    cuda="13.0",
    nccl="2.29.7",
    driver="580.1",
    backends=["gloo", "nccl"],
    accelerator="cuda",
    devices=GPUS,
    device_links=[
        Link(first=0, second=1, path="NVLink x18"),
        Link(first=1, second=2, path="SYS: between NUMA nodes"),
    ],
    variables={"NCCL_DEBUG": "WARN"},
)
HINTS = [Hint(code="shm-small", message="/dev/shm holds 64 MiB", remedy="docker: --shm-size=8g")]


def test_everything_that_matters_is_printed() -> None:
    """Devices, links, CPUs usable against counted, /dev/shm, files, interfaces, versions, governor, remedies."""
    page = "\n".join(doctor.text(RICH_HOST, HINTS, 110))
    for fact in (
        "cuda:1 NVIDIA Example, 80.0 GiB, PCI 0000:1b:00.0, gen5 x16, NUMA node 0, GPU-1",
        "NVLink x18: 0-1",
        "SYS: between NUMA nodes: 1-2",
        "15 usable of 64 counted (affinity 32, quota 15.5)",
        "2 NUMA nodes",
        "governor powersave",
        "60.0 MiB free of 64.0 MiB",
        "1,024 (hard limit: no limit)",
        "eth0: 10.0.0.1, up, ethernet, 100,000 Mbit/s",
        "mlx5_0 port 1: InfiniBand, ACTIVE, 200 Gb/sec (4X HDR)",
        "mlx5_1 port 1: link not known, state not known, rate not known",
        "3 devices over NVML, by UUID",
        "lo: 127.0.0.1, up, loopback",
        "torch 2.13.0",
        "driver 580.1, CUDA or ROCm 13.0, NCCL 2.29.7",
        "gloo, nccl",
        "3 cuda devices (what NGPU counts)",
        "at most 4 loader workers a rank",
        "NCCL_DEBUG=WARN",
        "/dev/shm holds 64 MiB [shm-small]",
        "-> docker: --shm-size=8g",
    ):
        assert fact in page


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("2,0,1", "cuda:0 is device 2, cuda:1 is device 0, cuda:2 is device 1"),
        ("GPU-52,GPU-9", "cuda:0 is GPU-52, cuda:1 is GPU-9"),
        ("0,-1,2", "cuda:0 is device 0; -1 ends the list, and what follows it is ignored: 2"),
        ("0,0", "no device; 0 stands there twice"),
        ("", "CUDA_VISIBLE_DEVICES=: no device"),
    ],
)
def test_what_visible_devices_mean_here_is_said(value: str, says: str) -> None:
    """Which name became which device, in their order, and what of the variable is ignored."""
    shown = msgspec.structs.replace(RICH_HOST, variables={"CUDA_VISIBLE_DEVICES": value})
    assert f"{says}\n" in "\n".join(doctor.text(shown, [], 200))


def test_devices_that_are_not_watched_are_said_with_the_reason() -> None:
    """On ROCm the page says in one line what is not measured beside the ranks, and nothing of NVML's UUIDs."""
    page = " ".join(" ".join(doctor.text(msgspec.structs.replace(RICH_HOST, rocm="6.4"), [], 110)).split())
    assert "Telemetry ROCm: no NVML; amd-smi is not read by this version" in page
    assert "over NVML" not in page


def test_equal_links_are_said_once() -> None:
    """Where every two devices are joined alike, one line says it."""
    links = [Link(first=a, second=b, path="NVLink x18") for a, b in ((0, 1), (0, 2), (1, 2))]
    page = "\n".join(doctor.text(msgspec.structs.replace(RICH_HOST, device_links=links), []))
    assert "NVLink x18 between every two devices" in page


def test_a_bare_host_is_said_in_words_not_none() -> None:
    """What is not known is written as words; no Python None and no traceback reaches the page."""
    bare = Host(
        hostname="vm", cpus_counted=2, cpus_affinity=2, cpus_usable=2, device_error="torch is a CPU build"
    )
    page = "\n".join(doctor.text(bare, []))
    assert "None" not in page
    assert "none: torch is a CPU build" in page
    assert "2 CPU ranks" in page
    assert "no CPU is left for loader workers" in " ".join(page.split())
    assert "Nothing here looks as if it would bite." in page


@pytest.mark.parametrize("width", [30, 44, 60, 80, 110])
def test_lines_fit_the_terminal(width: int) -> None:
    """No line is wider than the terminal, unless one word is."""
    for line in doctor.text(RICH_HOST, HINTS, width):
        longest = max((len(word) for word in line.split()), default=0)
        assert len(line) <= max(width, longest + doctor.LABEL + 2)


def test_control_characters_do_not_reach_the_terminal() -> None:
    """A name or a variable that holds escape sequences is printed without them."""
    odd = msgspec.structs.replace(RICH_HOST, variables={"LD_PRELOAD": "\x1b[2Jx\ny"})
    page = doctor.text(odd, [Hint(code="x", message="a\x1b]0;b", remedy="c\rd")])
    assert all(char.isprintable() for line in page for char in line)


def test_json_is_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--json gives the host, its fingerprint, slots and hints, and they decode into the same types."""
    monkeypatch.setattr(doctor, "probe_host", lambda: RICH_HOST)
    assert doctor.run(json_out=True) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert msgspec.convert(found["host"], Host) == RICH_HOST
    assert found["slots"] == 3
    assert len(found["fingerprint"]) == 12
    assert {"cpu-quota", "shm-small", "fd-limit", "governor"} <= {hint["code"] for hint in found["hints"]}


def test_doctor_runs_as_a_command_on_this_host() -> None:
    """The verb works under Typer on the real host, and neither torch nor NVML is loaded for it here."""
    code = (
        "import sys, typer; from bench.verbs.doctor import PLUGIN; app = typer.Typer(); app.command()(PLUGIN)\n"
        "try: app(sys.argv[1:])\n"
        "finally: assert not {'torch', 'pynvml'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, "--json"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert msgspec.json.decode(done.stdout)["host"]["torch"]


def test_what_compiling_low_precision_and_model_libraries_need_is_said():
    """The compiler, how the CPU computes bf16 and fp16, and the libraries; or that there is none."""
    found = msgspec.structs.replace(
        RICH_HOST, compiler="g++", cpu_formats=["bf16"], libraries={"timm": "1.0", "transformers": "5.0"}
    )
    said = "\n".join(doctor.text(found, HINTS, 110))
    assert "C++ compiler for torch.compile: g++" in said
    assert "bf16: in hardware, fp16: emulated, slow" in said
    assert "model libraries: timm 1.0, transformers 5.0" in said
    bare = "\n".join(doctor.text(RICH_HOST, HINTS, 110))
    assert "torch.compile: none: compiled cells are skipped" in bare
    assert "model libraries: none" in bare
    assert "bf16" not in bare
