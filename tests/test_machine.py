"""What the host offers: visibility, quotas, devices by LOCAL_RANK, fingerprints, hints."""

import subprocess
import sys
import threading
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import hostfacts, machine
from bench.cgroup import cpu_quota, memory_groups, memory_limit_bytes
from bench.environment import (
    WITHHELD,
    bare_uuid,
    device_index,
    device_uuid,
    parse_visible,
    read_visible,
    speed_variables,
)
from bench.hints import fault_hints
from bench.machine import (
    Device,
    Host,
    Link,
    Nic,
    Port,
    comparable,
    fingerprint,
    slots,
    suggest_workers,
    unwatched,
    usable_cpus,
    watched_uuids,
)


def host(**changes: object) -> Host:
    """A host on which nothing bites, with changes."""
    quiet: dict[str, object] = {
        "hostname": "node0",
        "hostname_address": "10.0.0.1",
        "cpu_model": "A CPU",
        "cpus_counted": 16,
        "cpus_affinity": 16,
        "cpus_usable": 16,
        "memory_bytes": 64 << 30,
        "shm_total_bytes": 32 << 30,
        "shm_free_bytes": 32 << 30,
        "fd_soft": 65536,
        "fd_hard": 65536,
        "clocksource": "tsc",
        "nics": [Nic(name="eth0", speed_mbit=10_000, up=True, address="10.0.0.1", loopback=False)],
        "torch": "2.13.0",
        "backends": ["gloo", "nccl"],
        "accelerator": "cuda",
        "devices": [
            Device(index=0, name="A GPU", kind="cuda", uuid="GPU-0"),
            Device(index=1, name="A GPU", kind="cuda", uuid="GPU-1"),
        ],
    }
    return Host(**(quiet | changes))


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, None),
        ("", []),
        ("  ", []),
        ("0,1", ["0", "1"]),
        ("1,0", ["1", "0"]),
        (" 0 , 1 ", ["0", "1"]),
        ("-1", []),
        ("0,-1,2", ["0"]),
        ("2,x,1", ["2"]),
        ("0,,1", ["0"]),
        ("0,0", []),
        ("NoDevFiles", []),
        ("²,1", []),
        ("GPU-52a3,GPU-99f0", ["GPU-52a3", "GPU-99f0"]),
        ("MIG-377e,MIG-GPU-52a3/1/0", ["MIG-377e", "MIG-GPU-52a3/1/0"]),
        ("0,GPU-52a3", ["0"]),
        ("GPU-52a3,0", ["GPU-52a3"]),
        ("GPU-", []),
    ],
)
def test_visible_devices_are_read_as_the_driver_reads_them(
    value: str | None, entries: list[str] | None
) -> None:
    """Every form of CUDA_VISIBLE_DEVICES gives the entries that stay visible, in their order."""
    assert parse_visible(value) == entries


@pytest.mark.parametrize(
    ("value", "ignored"),
    [
        (None, None),
        ("", None),
        ("1,0", None),
        ("0,-1", None),
        ("0,", None),
        ("0,-1,2", "-1 ends the list, and what follows it is ignored: 2"),
        ("0,,1", "an empty entry ends the list, and what follows it is ignored: 1"),
        ("0,0", "0 stands there twice"),
        ("2,x,1,3", "'x', which is neither an index nor a GPU- or MIG- name, ends the list, and what follows it is"
         " ignored: 1, 3"),
        ("MIG-377e,GPU-52a3", "GPU-52a3, which is of another form than MIG-377e, ends the list"),
    ],
)  # fmt: skip
def test_what_of_visible_devices_is_ignored_is_said(value: str | None, ignored: str | None) -> None:
    """The entry that ends the list and what is lost behind it; a list that is ended on purpose loses nothing."""
    assert read_visible(value).ignored == ignored


@pytest.mark.parametrize(
    ("kind", "uuid", "text"),
    [
        ("cuda", "52a3b1c0-0000-1111-2222-333344445555", "GPU-52a3b1c0-0000-1111-2222-333344445555"),
        ("cuda", "52a3b1c0000011112222333344445555", "GPU-52a3b1c0-0000-1111-2222-333344445555"),
        (
            "cuda",
            bytes.fromhex("52a3b1c0000011112222333344445555"),
            "GPU-52a3b1c0-0000-1111-2222-333344445555",
        ),
        ("cuda", UUID("52a3b1c0-0000-1111-2222-333344445555"), "GPU-52a3b1c0-0000-1111-2222-333344445555"),
        ("cuda", "MIG-52a3b1c0-0000-1111-2222-333344445555", "MIG-52a3b1c0-0000-1111-2222-333344445555"),
        ("xpu", "52a3b1c0-0000-1111-2222-333344445555", "52a3b1c0-0000-1111-2222-333344445555"),
        ("cuda", None, None),
        ("cuda", "", None),
    ],
)
def test_a_uuid_is_written_as_nvml_does(kind: str, uuid: object, text: str | None) -> None:
    """Whatever object torch gives; other accelerators' are left as they are, and none is null."""
    assert device_uuid(kind, uuid) == text


def test_two_spellings_of_a_uuid_are_one() -> None:
    """Prefix and capitals do not matter; a slice's number does."""
    assert bare_uuid("GPU-52A3") == bare_uuid("MIG-52a3 ") == bare_uuid("52a3") == "52a3"
    assert bare_uuid("MIG-GPU-52a3/1/0") == bare_uuid("GPU-52a3/1/0") != bare_uuid("GPU-52a3/2/0")


@given(st.text() | st.from_regex(r"[ 0-9,\-GPUMI/]*", fullmatch=True))
def test_no_text_in_visible_devices_raises(value: str) -> None:
    """Whatever the variable holds, the answer is a list without repeats and without -1."""
    entries = parse_visible(value)
    assert entries is not None
    assert len(set(entries)) == len(entries)
    assert all(entry == entry.strip() and entry and entry[0] != "-" for entry in entries)


@pytest.mark.parametrize(
    ("text", "quota"),
    [("200000 100000", 2.0), ("max 100000", None), ("50000 100000", 0.5), ("", None), ("x y", None)],
)
def test_cpu_quota_of_cgroup_v2(tmp_path: Path, text: str, quota: float | None) -> None:
    """cpu.max is quota over period; "max", an empty and an odd file set no limit."""
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path, "0::/\n") == quota


def test_cpu_quota_is_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    """A group is bound by its parents too, and not by groups beside it."""
    for name, text in {
        "": "400000 100000",
        "a": "150000 100000",
        "a/b": "300000 100000",
        "c": "10000 100000",
    }.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path, "0::/a/b\n") == 1.5
    assert cpu_quota(tmp_path, "0::/only/the/host/sees/this\n") == 4.0


def test_cpu_quota_of_cgroup_v1(tmp_path: Path) -> None:
    """v1 keeps quota and period in two files, under any order of controller names; -1 is no limit."""
    folder = tmp_path / "cpu,cpuacct" / "docker"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    own = "4:memory:/docker\n3:cpu,cpuacct:/docker\n1:name=systemd:/\n"
    assert cpu_quota(tmp_path, own) == 2.5
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(tmp_path, own) is None


def test_no_cgroup_files_mean_no_limit(tmp_path: Path) -> None:
    """A host without cgroup files, or without /proc/self/cgroup, has no quota and no memory limit."""
    for own in ("", "garbage", "0::/a\n"):
        assert cpu_quota(tmp_path / "missing", own) is None
        assert memory_limit_bytes(tmp_path / "missing", own) is None


def test_memory_limit_of_both_versions(tmp_path: Path) -> None:
    """memory.max and memory.limit_in_bytes are read; v1's number for "no limit" is none."""
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit_bytes(tmp_path, "0::/\n") is None
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert memory_limit_bytes(tmp_path, "0::/\n") == 1 << 30
    (tmp_path / "memory" / "job").mkdir(parents=True)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "memory.max").unlink()
    assert memory_limit_bytes(tmp_path, "4:memory:/job\n") is None
    (tmp_path / "memory" / "job" / "memory.limit_in_bytes").write_text("536870912\n")
    assert memory_limit_bytes(tmp_path, "4:memory:/job\n") == 512 << 20


def test_memory_in_use_of_a_version_1_group(tmp_path: Path) -> None:
    """Its files have other names; the idle page cache of groups below is in it."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1000\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("900\n")
    (tmp_path / "memory" / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 400\n")
    assert [group.used_share() for group in memory_groups(tmp_path, "4:memory:/\n")] == [0.5]


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"), [(8, None, 8), (8, 2.0, 2), (2, 4.0, 2), (8, 2.7, 2), (8, 0.5, 1)]
)
def test_usable_cpus_are_whole_and_at_least_one(affinity: int, quota: float | None, usable: int) -> None:
    """The smaller of affinity and quota, rounded down, never 0."""
    assert usable_cpus(affinity, quota) == usable


@pytest.mark.parametrize(
    ("usable", "ranks", "workers"), [(2, 2, 0), (2, 1, 1), (16, 4, 3), (96, 8, 11), (1, 4, 0)]
)
def test_suggested_workers_leave_each_rank_a_cpu(usable: int, ranks: int, workers: int) -> None:
    """Workers are counted per rank of this node, with one CPU kept for the rank itself."""
    assert suggest_workers(usable, ranks) == workers


def test_a_rank_takes_its_device_by_local_rank() -> None:
    """Global rank 5 is local rank 1 on the second node of 4: device 1. One visible device is device 0."""
    assert device_index(1, 4) == 1
    assert [device_index(rank, 1) for rank in range(4)] == [0, 0, 0, 0]
    assert device_index(2, 1, [3]) == 0
    assert [device_index(rank, 8, [6, 2]) for rank in range(2)] == [6, 2]


def test_only_oversubscribed_ranks_share_devices() -> None:
    """Ranks beyond the devices take them in turn, and without any device there is an error."""
    assert [device_index(rank, 2) for rank in range(4)] == [0, 1, 0, 1]
    assert [device_index(rank, 4, [3, 1]) for rank in range(4)] == [3, 1, 3, 1]
    with pytest.raises(ValueError, match="no device is visible"):
        device_index(0, 0)


def test_speed_variables_are_found_and_secrets_withheld() -> None:
    """Variables that change speed are listed; what looks like a secret shows its name only."""
    found = speed_variables(
        {
            "NCCL_P2P_DISABLE": "1",
            "OMP_NUM_THREADS": "4",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "LD_PRELOAD": "/usr/lib/libjemalloc.so",
            "CUDA_VISIBLE_DEVICES": "1,0",
            "NCCL_AUTH_TOKEN": "abc",
            "TORCH_PROXY": "http://me:pw@example.org",
            "TORCH_HOME": "/somewhere",
            "PATH": "/bin",
            "API_KEY": "x",
        }
    )
    assert list(found) == sorted(found)
    assert found.pop("NCCL_AUTH_TOKEN") == found.pop("TORCH_PROXY") == WITHHELD
    assert found == {
        "NCCL_P2P_DISABLE": "1",
        "OMP_NUM_THREADS": "4",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "LD_PRELOAD": "/usr/lib/libjemalloc.so",
        "CUDA_VISIBLE_DEVICES": "1,0",
    }


def test_this_host_is_probed_without_torch_in_this_process() -> None:
    """probe_host gives versions and backends while neither torch nor NVML is loaded here."""
    code = (
        "import sys; from bench.machine import probe_host; import msgspec; host = probe_host();"
        "assert not {'torch', 'pynvml'} & set(sys.modules), 'loaded'; print(msgspec.json.encode(host).decode())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = msgspec.json.decode(done.stdout, type=Host)
    assert found.torch
    assert "gloo" in found.backends
    assert 1 <= found.cpus_usable <= found.cpus_affinity <= found.cpus_counted
    assert bool(found.devices) == (found.device_error is None)
    assert any(nic.loopback for nic in found.nics)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("raise RuntimeError('the driver is broken')", "exit code 1: RuntimeError: the driver is broken"),
        ("print('not json')", "exit code 0: it printed nothing"),
        ("import os; os.abort()", "exit code -6"),
        ("import time; time.sleep(60)", "did not answer within"),
    ],
)
def test_a_probe_that_fails_is_a_host_without_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statement: str, reason: str
) -> None:
    """A crash, a hang and nonsense each give a reason instead of an exception."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "own_python", lambda _: [sys.executable, "-c", statement])
    monkeypatch.setattr(machine, "PROBE_TIMEOUT_S", 2.0)
    probe = machine.probe_devices.__wrapped__()
    assert probe.devices == []
    assert probe.torch is None
    assert reason in str(probe.device_error)


def test_own_python_ignores_the_working_directory(tmp_path: Path) -> None:
    """A user's own folder named bench does not take the place of this package."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("raise SystemExit('the wrong bench')")
    command = machine.own_python("import bench; print(bench.__file__)")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == Path(machine.__file__).parent


def test_slots_are_accelerators_or_usable_cpus() -> None:
    """Slots count accelerators where there are any, else the CPUs that may be used."""
    assert slots(host()) == 2
    bare = host(devices=[], accelerator=None, cpus_usable=3)
    assert slots(bare) == 3
    assert machine.device_kind(host()) == "cuda"
    assert machine.device_kind(bare) == "cpu"


def test_fingerprint_changes_with_what_must_be_equal_only() -> None:
    """Names, addresses and free memory do not matter; device, driver, torch, NCCL, quota and links do."""
    same = fingerprint(host())
    assert len(same) == 12
    assert fingerprint(host(hostname="node1", hostname_address=None, shm_free_bytes=5, fd_soft=9)) == same
    for change in (
        {"devices": host().devices[:1]},
        {"driver": "570.1"},
        {"torch": "2.9.0"},
        {"nccl": "2.27"},
        {"cpu_quota": 4.0},
        {"cpu_model": "Another"},
        {"device_links": [Link(first=0, second=1, path="NVLink x18")]},
    ):
        assert fingerprint(host(**change)) != same
        assert comparable(host(**change)) != comparable(host())


@pytest.mark.parametrize(
    ("changes", "uuids", "reason"),
    [
        ({}, ("GPU-0", "GPU-1"), None),
        ({"devices": [], "accelerator": None, "nvml_error": "no NVML: x"}, (), None),
        ({"nvml_error": "no NVML: x"}, ("GPU-0", "GPU-1"), "no NVML: x"),
        ({"rocm": "6.4"}, (), "ROCm: no NVML; amd-smi is not read by this version: use, memory, power"),
        ({"accelerator": "xpu"}, (), "XPU: no NVML; xpu-smi is not read by this version: use, memory, power"),
        ({"accelerator": "mps"}, (), "MPS: no NVML: use, memory, power"),
    ],
)
def test_devices_that_nvml_does_not_know_are_not_watched_and_why_is_one_line(
    changes: dict[str, object], uuids: tuple[str, ...], reason: str | None
) -> None:
    """ROCm calls its devices cuda: they are told apart. A host without devices needs no reason."""
    found = host(**changes)
    assert watched_uuids(found) == uuids
    text = unwatched(found)
    assert text == reason if reason is None else str(text).startswith(reason)
    assert "\n" not in str(text)


def codes(found: Host) -> list[str]:
    return [hint.code for hint in fault_hints(found)]


def test_a_quiet_host_has_no_hints() -> None:
    """Nothing is warned of where nothing will bite."""
    assert codes(host()) == []


NOTHING = {"devices": [], "accelerator": None}
ETH0 = Nic(name="eth0", speed_mbit=1000, up=True, address="10.0.0.1", loopback=False)
ACTIVE = Port(device="mlx5_0", port=1, state="4: ACTIVE")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"torch": None, **NOTHING}, "torch-missing"),
        ({"torch": "2.8.1+cu128"}, "torch-old"),
        ({"backends": []}, "no-backend"),
        ({**NOTHING, "device_error": "built without"}, "no-accelerator"),
        ({**NOTHING, "visible": []}, "devices-hidden"),
        ({**NOTHING, "driver": "570.1"}, "torch-without-device"),
        ({**NOTHING, "visible": [], "variables": {"CUDA_VISIBLE_DEVICES": "0,0"}}, "devices-hidden"),
        ({"variables": {"CUDA_VISIBLE_DEVICES": "0,-1,1"}}, "visible-ignored"),
        ({"variables": {"CUDA_VISIBLE_DEVICES": "0,1,7"}}, "visible-missing"),
        ({"nvml_error": "no NVML: DriverNotLoaded"}, "devices-unwatched"),
        ({"rocm": "6.4"}, "devices-unwatched"),
        ({"accelerator": "xpu"}, "devices-unwatched"),
        ({"cpu_quota": 2.0, "cpus_usable": 2}, "cpu-quota"),
        ({"cpus_affinity": 4, "cpus_usable": 4}, "cpu-affinity"),
        ({"governor": "performance, powersave"}, "governor"),
        ({"governor": "schedutil"}, "governor"),
        ({"memory_limit_bytes": 8 << 30}, "memory-limit"),
        ({"shm_total_bytes": 64 << 20}, "shm-small"),
        ({"shm_free_bytes": 1 << 20}, "shm-full"),
        ({"fd_soft": 1024}, "fd-limit"),
        ({"variables": {"OMP_NUM_THREADS": "8"}}, "variable-omp-num-threads"),
        ({"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, "variable-cuda-launch-blocking"),
        ({"variables": {"TORCH_NCCL_BLOCKING_WAIT": "True"}}, "variable-torch-nccl-blocking-wait"),
        ({"variables": {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}}, "variable-torch-nccl-async-error-handling"),
        ({"variables": {"NCCL_SOCKET_IFNAME": "=lo"}}, "variable-nccl-socket-ifname"),
        ({"variables": {"NCCL_PROTO": "Simple"}}, "variable-nccl-proto"),
        ({"variables": {"NCCL_MAX_NCHANNELS": "2"}}, "variable-nccl-max-nchannels"),
        ({"variables": {"NCCL_NET": "Socket"}, "ports": [ACTIVE]}, "variable-nccl-net"),
        ({"variables": {"GLOO_SOCKET_IFNAME": "=eth0"}, "nics": [ETH0]}, "variable-gloo-socket-ifname"),
        ({"variables": {"GLOO_SOCKET_IFNAME": "^docker"}, "nics": [ETH0]}, "variable-gloo-socket-ifname"),
        ({"variables": {"GLOO_SOCKET_IFNAME": "eth"}, "nics": [ETH0]}, "variable-gloo-socket-ifname"),
        ({"variables": {"GLOO_SOCKET_IFNAME": "eth0,eth9"}, "nics": [ETH0]}, "variable-gloo-socket-ifname"),
        ({"variables": {"TP_SOCKET_IFNAME": "eth0"}}, "variable-tp-socket-ifname"),
        ({"clocksource": "hpet"}, "clock-slow"),
        ({"hostname_address": None}, "hostname-unresolved"),
        ({"hostname_address": "127.0.1.1"}, "hostname-loopback"),
    ],
)
def test_each_trouble_gives_its_own_hint(changes: dict[str, object], code: str) -> None:
    """One thing that bites gives exactly its hint, with a message and a remedy."""
    assert codes(host(**changes)) == [code]
    (hint,) = fault_hints(host(**changes))
    assert hint.message
    assert hint.remedy


def test_harmless_values_give_no_hint() -> None:
    """A variable at a harmless value, torch 2.10 and a memory limit above the memory are quiet."""
    quiet = {
        "CUDA_VISIBLE_DEVICES": "1,0,-1",
        "CUDA_LAUNCH_BLOCKING": "0",
        "NCCL_DEBUG": "WARN",
        "NCCL_P2P_DISABLE": "",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "^lo",
        "NCCL_BLOCKING_WAIT": "0",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    found = host(variables=quiet, torch="2.10.0a0+git1", memory_limit_bytes=65 << 30, nics=[ETH0])
    assert codes(found) == []


def test_the_remedy_for_file_limits_is_possible() -> None:
    """Where the hard limit is no higher, raising the soft limit is not what is advised."""
    (low,) = fault_hints(host(fd_soft=1024, fd_hard=1024))
    (high,) = fault_hints(host(fd_soft=1024, fd_hard=8192))
    assert "ulimit -n 8192" in high.remedy
    assert "ulimit" not in low.remedy


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolving a name gives up after its time limit and says None; a name that is not there as well."""
    answered = threading.Event()

    def unknown(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    def silent(*_: object, **__: object) -> None:
        answered.wait(10)
        unknown()

    monkeypatch.setattr(hostfacts, "RESOLVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(hostfacts.socket, "getaddrinfo", silent)
    assert hostfacts.resolved("node0") is None
    assert not answered.is_set()
    answered.set()
    monkeypatch.setattr(hostfacts.socket, "getaddrinfo", unknown)
    assert hostfacts.resolved("node0") is None


@pytest.mark.parametrize(
    ("text", "formats"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n", ["bf16"]),
        ("flags : fpu amx_bf16 avx512_fp16\n", ["bf16", "fp16"]),
        ("flags : fpu avx2\n", []),
        ("Features : fp asimd asimdhp\n", ["fp16"]),
        ("processor : 0\n", None),
        (None, None),
    ],
)
def test_what_the_cpu_computes_itself_is_in_its_flags(monkeypatch, text, formats):
    """bf16 and fp16 by the kernel's flags of x86 and ARM; not known where there are none."""
    monkeypatch.setattr(hostfacts, "read", lambda path: text)
    assert hostfacts.cpu_formats() == formats


def test_model_libraries_are_found_without_importing_them(monkeypatch):
    """Those that are installed, with their versions."""
    from importlib import metadata

    def version(name):
        if name == "timm":
            raise metadata.PackageNotFoundError(name)
        return f"1.{len(name)}"

    monkeypatch.setattr(hostfacts.metadata, "version", version)
    assert hostfacts.libraries() == {"transformers": "1.12", "torchvision": "1.11"}
