"""The sampler beside the ranks: what it sees, what it survives, and that it ends."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from bench import plugins, temporary
from bench.samplers import host as host_sampler
from bench.samplers._processes import Processes
from bench.sampling import BURST_S, CPU_SHARE, READINGS, Line, Readings, Sampler, Turn, Watch
from bench.series import Rows, summarise
from bench.telemetry import Telemetry, read_lines, write_parquet

# A stand-in for an engine: two children, of which the first has a child of its own. The first burns CPU.
ENGINE = """
import os, time
ready, forked = os.pipe()
first = os.fork()
if first == 0:
    if os.fork() == 0: time.sleep(60)
    os.write(forked, b"x")
    while True: pass
os.read(ready, 1)
second = os.fork()
if second == 0:
    time.sleep(60)
print(first, second, flush=True)
time.sleep(60)
"""


def eventually(check: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether a state is reached in time."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.fixture
def engine() -> Iterator[tuple[int, int, int]]:
    """Process ids: the group's leader, its burning child, its sleeping child."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout
    burning, sleeping = (int(word) for word in process.stdout.readline().split())
    yield process.pid, burning, sleeping
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def seen(telemetry: Telemetry, lines: int = 12) -> bool:
    """Whether the sampler has written some readings."""
    path = Path(telemetry._watch.folder) / READINGS
    return path.exists() and len(path.read_bytes().splitlines()) >= lines


def test_cpu_of_ranks_and_workers_is_told_apart(engine: tuple[int, int, int], tmp_path: Path) -> None:
    """A rank that burns CPU shows more than one that sleeps and than its own sleeping worker."""
    leader, burning, sleeping = engine
    ranks = tmp_path / "ranks"
    ranks.write_text(f"0 {burning}\n1 {sleeping}\n")
    telemetry = Telemetry(leader, rank_pids=ranks, samplers=["host"], period_s=0.05).start()
    assert eventually(lambda: seen(telemetry, 40))
    recording = telemetry.stop()
    cpu = {
        key: stat["mean"] for key, stat in recording.summary.measures.items() if key.endswith("/cpu_percent")
    }
    assert {
        "rank 0/cpu_percent",
        "rank 1/cpu_percent",
        "rank 0 worker 0/cpu_percent",
        "engine/cpu_percent",
    } <= set(cpu)
    busy = cpu["rank 0/cpu_percent"]
    assert busy is not None
    for other in ("rank 1", "rank 0 worker 0", "engine"):
        value = cpu[f"{other}/cpu_percent"]
        assert value is not None
        assert value < busy / 2


def test_processes_are_found_by_group_alone(engine: tuple[int, int, int]) -> None:
    """Without a list of ranks every process of the group is watched by its id, and no other is."""
    leader, burning, sleeping = engine
    processes = Processes(leader, None)
    processes.read(1.0)
    subjects = {subject for subject, _ in processes.read(1.1)}
    assert {"engine", f"process {burning}", f"process {sleeping}"} < subjects
    assert len(subjects) == 4
    assert f"process {os.getpid()}" not in subjects


def test_ranks_may_become_known_later(engine: tuple[int, int, int], tmp_path: Path) -> None:
    """Until the list appears only the engine is read: no process is counted under two names. It may grow."""
    leader, burning, sleeping = engine
    ranks = tmp_path / "ranks"
    processes = Processes(leader, str(ranks))

    def subjects(now_s: float) -> set[str]:
        processes.read(now_s)
        return {subject for subject, _ in processes.read(now_s + 0.1)}

    assert subjects(1.0) == {"engine"}
    ranks.write_text(f"0 {burning}\n1 {str(sleeping)[:-1]}")
    assert "rank 0" in subjects(1.2)  # though it is not yet time to look for new processes
    assert processes.ranks == {burning: 0}
    ranks.write_text(f"0 {burning}\n1 {sleeping}\n")
    assert {"rank 0", "rank 1", "rank 0 worker 0"} <= subjects(4.0)


def test_a_rank_outside_the_group_is_found_by_its_id(engine: tuple[int, int, int], tmp_path: Path) -> None:
    """A listed rank and its children are watched whatever their group is."""
    _, burning, _ = engine
    processes = Processes(None, str(tmp_path / "ranks"))
    processes.read(0.0)
    (tmp_path / "ranks").write_text(f"3 {burning}\n")
    processes.read(1.0)
    assert {subject for subject, _ in processes.read(1.1)} == {"rank 3", "rank 3 worker 0"}


def test_the_engine_may_be_named_with_the_ranks(engine: tuple[int, int, int], tmp_path: Path) -> None:
    """A sampler that began before the engine watches its group from then on."""
    leader, burning, sleeping = engine
    processes = Processes(None, str(tmp_path / "ranks"))
    processes.read(0.0)
    (tmp_path / "ranks").write_text(f"engine {leader}\n0 {burning}\n")
    processes.read(1.0)
    subjects = {subject for subject, _ in processes.read(1.1)}
    assert subjects == {"engine", "rank 0", "rank 0 worker 0", f"process {sleeping}"}


def test_a_worker_that_ends_frees_its_name(tmp_path: Path) -> None:
    """Workers that come and go each epoch keep to as many names as live at one time."""
    (tmp_path / "ranks").write_text("0 10\n")
    proc = tmp_path / "proc"

    def stat(pid: int, parent: int, ticks: int) -> None:
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        fields = ["S", parent, 7, 7, *[0] * 7, ticks, 0, *[0] * 9]
        (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(map(str, fields))}\n")

    stat(10, 1, 0)
    stat(11, 10, 0)
    stat(12, 10, 0)
    stat(13, 1, 0)
    processes = Processes(7, str(tmp_path / "ranks"), proc)
    processes.read(0.0)
    stat(10, 1, 50)
    assert processes.read(1.0) == {
        ("rank 0", "cpu_percent"): 50.0,
        ("rank 0 worker 0", "cpu_percent"): 0.0,
        ("rank 0 worker 1", "cpu_percent"): 0.0,
        ("process 13", "cpu_percent"): 0.0,
    }
    (proc / "11" / "stat").write_text("11 (x) Z 10 7 7\n")
    stat(14, 10, 0)
    processes.read(2.0)
    processes.read(3.0)
    assert processes.known[14].subject == "rank 0 worker 0"
    assert processes.known[12].subject == "rank 0 worker 1"


def test_all_cpu_time_of_a_new_worker_is_its_own(tmp_path: Path) -> None:
    """What it used before it was found counts; of one that was there before the rank was known only what came since."""
    (tmp_path / "ranks").write_text("0 10\n")

    def stat(pid: int, ticks: int) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        fields = ["S", 1 if pid == 10 else 10, 7, 7, *[0] * 7, ticks, 0, *[0] * 9]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) {' '.join(map(str, fields))}\n")

    stat(10, 500)
    stat(11, 900)
    processes = Processes(7, str(tmp_path / "ranks"), tmp_path)
    processes.read(0.0)
    stat(12, 40)
    values = processes.read(1.0)
    assert (values["rank 0", "cpu_percent"], values["rank 0 worker 0", "cpu_percent"]) == (0.0, 0.0)
    stat(12, 60)
    assert processes.read(2.0)["rank 0 worker 1", "cpu_percent"] == 60.0


def fake_proc(folder: Path, *, cpu: str, others: tuple[str, ...] = ()) -> None:
    """The files of /proc that the host sampler reads: times of the first CPU, and of others beside it."""
    lines = [f"cpu{at} {times}" for at, times in enumerate((cpu, *others))]
    (folder / "stat").write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 1 2", "ctxt 3"]))
    (folder / "loadavg").write_text("1.50 1.00 0.50 2/300 4242\n")
    (folder / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:   64 kB\n")


def host_reader(proc: Path, cpus: tuple[int, ...] = (0,), **places: Path) -> host_sampler.HostReader:
    """The sampler on fake files, without control groups of its own."""
    places = {"shm": proc, "cgroups": proc / "none"} | places
    return host_sampler.HostReader(Watch(folder="", parent_pid=0), proc=proc, cpus=cpus, **places)


@pytest.mark.parametrize(
    ("cpus", "busy", "stolen", "runnable"),
    [
        (
            (1, 2),
            55.0,
            5.0,
            None,
        ),  # 90 and 20 %; the idle one and the one that others fill are not of the study
        ((0, 1, 2, 3), 52.5, 2.5, 1.0),
        ((6, 7), 52.5, 2.5, 1.0),  # a container's /proc with numbers of its own
    ],
)
def test_cpus_are_those_that_ranks_may_use(
    tmp_path: Path, cpus: tuple[int, ...], busy: float, stolen: float, runnable: float | None
) -> None:
    """Of an affinity mask narrower than the machine: what others do elsewhere is not read, whose CPUs a task wants is not known."""
    idle = "0 0 0 0 0 0 0 0 0 0"
    fake_proc(tmp_path, cpu=idle, others=(idle, idle, idle))
    reader = host_reader(tmp_path, cpus)
    reader.read(0.0)
    later = ("90 0 0 0 0 0 0 10 0 0", "10 0 10 80 0 0 0 0 0 0", "100 0 0 0 0 0 0 0 0 0")
    fake_proc(tmp_path, cpu="0 0 0 100 0 0 0 0 0 0", others=later)
    values = reader.read(1.0)
    assert (values["node", "cpu_percent"], values["node", "steal_percent"]) == (busy, stolen)
    assert values["node", "runnable"] == runnable
    assert ("node/runnable" in reader.reasons) == (runnable is None)


def test_memory_is_that_of_a_control_group_where_it_is_fuller(tmp_path: Path) -> None:
    """36 % of the machine against a group of 100 pages that uses 80, of which 10 are idle page cache."""
    fake_proc(tmp_path, cpu="0 0 0 9 0 0 0 0 0 0")
    for name, text in (("max", "100"), ("current", "80"), ("stat", "anon 65\ninactive_file 10\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    reader = host_reader(tmp_path, cgroups=tmp_path)
    assert reader.read(0.0)["node", "memory_used_percent"] == pytest.approx(70.0)
    (tmp_path / "memory.current").write_text("30")
    assert reader.read(0.1)["node", "memory_used_percent"] == pytest.approx(36.0)
    (tmp_path / "memory.current").unlink()
    assert reader.read(0.2)["node", "memory_used_percent"] == pytest.approx(36.0)


def test_host_measures_are_rates_between_readings(tmp_path: Path) -> None:
    """CPU and steal are shares of the elapsed ticks."""
    fake_proc(tmp_path, cpu="100 0 100 800 0 0 0 0 0 0")
    reader = host_reader(tmp_path)
    first = reader.read(10.0)
    assert first["node", "load1"] == 1.5
    assert first["node", "runnable"] == 1.0  # two, one of which reads this
    assert first["node", "memory_available_bytes"] == 64 * 1024
    assert first["node", "memory_used_percent"] == pytest.approx(36.0)
    assert ("node", "cpu_percent") not in first
    fake_proc(tmp_path, cpu="120 0 110 860 0 0 0 10 0 0")
    second = reader.read(10.5)
    assert second["node", "cpu_percent"] == 30.0
    assert second["node", "steal_percent"] == 10.0


def test_a_source_that_cannot_be_read_is_null_with_a_reason(tmp_path: Path) -> None:
    """A host without these files gives nulls and reasons, and the other measures still come."""
    fake_proc(tmp_path, cpu="1 0 0 9 0 0 0 0")
    (tmp_path / "meminfo").write_text("nothing of use\n")
    (tmp_path / "loadavg").unlink()
    reader = host_reader(tmp_path, shm=tmp_path / "none")
    values = reader.read(0.0)
    nulls = {"node/load1", "node/memory_available_bytes", "node/shm_used_bytes"}
    assert {"/".join(key) for key, value in values.items() if value is None} == nulls
    assert set(reader.reasons) == nulls
    fake_proc(tmp_path, cpu="2 0 0 18 0 0 0 0")
    assert reader.read(1.0)["node", "cpu_percent"] == 10.0


def test_what_ranks_and_workers_read_from_disks_is_added_up(tmp_path: Path) -> None:
    """Of rank and worker, those that have ended too, and of no other process of the group; it never falls."""
    proc, ranks = tmp_path / "proc", tmp_path / "ranks"
    ranks.write_text("0 10\n")

    def process(pid: int, parent: int, faults: int, read_bytes: int) -> None:
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        fields = ["S", parent, 7, 7, 0, 0, 0, 5, 5, faults, 9, *[0] * 11]
        (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) {' '.join(map(str, fields))}\n")
        (proc / str(pid) / "io").write_text(f"rchar: 9\nread_bytes: {read_bytes}\nwrite_bytes: 7\n")

    process(10, 1, 1, 4096)
    process(11, 10, 2, 8192)
    process(13, 1, 50, 10**9)
    processes = Processes(7, str(ranks), proc)
    assert processes.touched() == {}
    processes.read(0.0)
    processes.read(0.1)
    assert processes.touched() == {"read_bytes": 12288.0, "major_faults": 3.0}
    (proc / "11" / "stat").write_text("11 (x) Z 10 7 7\n")
    process(10, 1, 4, 40960)
    processes.read(0.2)
    assert processes.touched() == {"read_bytes": 49152.0, "major_faults": 6.0}


def test_a_kernel_that_hides_what_is_read_gives_null_with_a_reason(tmp_path: Path) -> None:
    """Without /proc/PID/io the bytes are null and said to be; faults are still counted."""
    fake_proc(tmp_path, cpu="1 0 0 9 0 0 0 0")
    (tmp_path / "ranks").write_text("0 10\n")
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "stat").write_text(f"10 (x) S 1 7 7 {' '.join(['0'] * 18)}\n")
    watch = Watch(folder="", parent_pid=0, engine_pgid=7, rank_pids=str(tmp_path / "ranks"))
    reader = host_sampler.HostReader(watch, proc=tmp_path, shm=tmp_path)
    reader.read(0.0)
    values = reader.read(0.1)
    assert values["ranks", "read_bytes"] is None
    assert reader.reasons["ranks/read_bytes"].startswith("the kernel does not say")
    assert values["ranks", "major_faults"] == 0.0


class Broken:
    """A reader that raises."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def read(self, now_s: float) -> Readings:
        raise RuntimeError("the device fell off the bus")


def test_a_reader_that_raises_is_a_reason_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening or reading a sampler may fail in any way; the line says why, the first time."""
    watch = Watch(folder="", parent_pid=0)
    turn = Turn("broken", Broken())
    assert turn.take(watch, 0.0).reasons == {"broken": "RuntimeError: the device fell off the bus"}
    assert turn.take(watch, 0.0).reasons == {}

    def refuse(watch: Watch) -> Broken:
        raise PermissionError("no")

    monkeypatch.setattr(plugins, "load", lambda kind, name: Sampler("refuses", refuse))
    assert Turn("refusing").take(watch, 0.0).reasons == {"refusing": "PermissionError: no"}


def test_a_costly_reader_is_read_less_often() -> None:
    """Past its burst a reader waits until its CPU time is again its share of the time that passed."""
    watch = Watch(folder="", parent_pid=0)

    class Idle(Broken):
        def read(self, now_s: float) -> Readings:
            return {}

    cheap, costly = Turn("cheap", Idle()), Turn("costly", Idle(), spent_s=BURST_S + 1.0)
    began_s = time.monotonic()
    cheap.take(watch, began_s)
    costly.take(watch, began_s)
    assert cheap.due_s < costly.due_s
    assert costly.due_s - began_s >= 1.0 / CPU_SHARE


def test_readings_follow_the_asked_period_and_clock(tmp_path: Path) -> None:
    """Times are of CLOCK_MONOTONIC, rise, and all columns are equally long."""
    before = time.monotonic()
    telemetry = Telemetry(samplers=["host"], period_s=0.05, node=3).start()
    assert eventually(lambda: seen(telemetry))
    rows = telemetry.stop().rows
    assert len({len(column) for column in rows.values()}) == 1
    assert set(rows["node"]) == {3}
    assert before <= rows["time_s"][0] <= rows["time_s"][-1] <= time.monotonic()
    loads = [at for at, measure in zip(rows["time_s"], rows["measure"], strict=True) if measure == "load1"]
    assert all(later > earlier for earlier, later in itertools.pairwise(loads))


def test_all_samplers_run_by_default_and_missing_nvml_is_normal() -> None:
    """Without devices to watch the host is sampled, and the reason for no device measures is kept."""
    telemetry = Telemetry().start()
    assert eventually(lambda: seen(telemetry))
    summary = telemetry.stop().summary
    assert summary.reasons["nvml"].startswith("no NVML")
    assert summary.measures["node/load1"]["mean"] is not None
    assert summary.readings > 1
    assert "sampler" not in summary.reasons


# A library with one device that takes 100 W by the clock that readings have.
NVML = """
import time
from types import SimpleNamespace
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return "GPU-aaaa"
def nvmlDeviceGetTotalEnergyConsumption(handle): return 100_000 * time.monotonic()
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(used=7)
"""


def test_a_device_is_watched_from_the_process_to_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Energy is what flowed in the window, though it holds no reading; after the stop all is read once more."""
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    telemetry = Telemetry(device_uuids=["GPU-aaaa"], samplers=["nvml"], period_s=60.0).start()
    assert eventually(lambda: seen(telemetry, 1))
    begin_s = time.monotonic()
    time.sleep(0.2)
    end_s = time.monotonic()
    recording = telemetry.stop()
    energy = summarise(recording.rows, {}, begin_s, end_s).measures["GPU-aaaa/energy_j"]["total"]
    assert energy == pytest.approx(100 * (end_s - begin_s), rel=0.5)  # a busy host
    assert max(recording.rows["time_s"]) >= end_s
    assert recording.summary.measures["GPU-aaaa/memory_used_bytes"] == {"mean": 7, "max": 7}
    assert recording.summary.measures["GPU-aaaa/power_w"] == {"mean": None, "max": None}
    assert "AttributeError" in recording.summary.reasons["GPU-aaaa/power_w"]


def test_why_no_device_is_watched_is_told() -> None:
    """On accelerators that have no NVML the record says in one line what is not measured."""
    telemetry = Telemetry(samplers=["nvml"], device_reason="ROCm: no NVML: nothing is measured").start()
    assert eventually(lambda: seen(telemetry, 1))
    assert telemetry.stop().summary.reasons == {"nvml": "ROCm: no NVML: nothing is measured"}


def test_the_sampler_loads_no_torch_and_little_else() -> None:
    """The sampler's code and its plug-ins load without torch, numpy, pandas, psutil and NVML bindings."""
    code = (
        "import sys; from bench import plugins, sampling;"
        "[plugins.load('samplers', name) for name in plugins.names('samplers')];"
        "print({'torch', 'numpy', 'pandas', 'psutil', 'pynvml', 'typer', 'rich'} & set(sys.modules) or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"


def test_stop_leaves_no_process_and_no_file() -> None:
    """After stop the process has ended and its folder is gone; a second stop has nothing to add."""
    telemetry = Telemetry(samplers=["host"]).start()
    pid, folder = telemetry.pid, Path(telemetry._watch.folder)
    assert pid is not None
    assert eventually(lambda: seen(telemetry))
    telemetry.stop()
    assert not alive(pid)
    assert not folder.exists()
    assert telemetry.stop().rows["value"] == []


def test_stop_works_while_a_forked_child_holds_the_pipe() -> None:
    """The sampler is told to stop in words: a child that inherited the pipe does not keep it open."""
    telemetry = Telemetry(samplers=["host"]).start()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        assert eventually(lambda: seen(telemetry))
        assert "sampler" not in telemetry.stop().summary.reasons
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_sampler_ends_with_its_parent() -> None:
    """When the process that started it is killed, the sampler ends by itself and clears up."""
    code = (
        "import os, time; from bench.telemetry import Telemetry; telemetry = Telemetry(samplers=['host']).start();"
        "child = os.fork(); child and print(telemetry.pid, telemetry._watch.folder, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout
    try:
        pid, folder = parent.stdout.readline().split()
        assert alive(int(pid))
        parent.kill()
        parent.wait()
        assert eventually(lambda: not alive(int(pid)))
        assert not Path(folder).exists()
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def test_what_both_leave_when_they_are_killed_is_swept() -> None:
    """The sampler killed first and then its parent: the next run finds the folder by its name, and removes it."""
    code = (
        "import os; from bench.telemetry import Telemetry; telemetry = Telemetry(samplers=['host']).start();"
        "print(telemetry._watch.folder, flush=True); os.kill(telemetry.pid, 9); os.kill(os.getpid(), 9)"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    assert Path(left).is_dir()
    temporary.sweep()
    assert not Path(left).exists()


def test_an_interrupt_from_the_terminal_does_not_end_it() -> None:
    """SIGINT is for the conductor: the sampler goes on until it is told to stop."""
    telemetry = Telemetry(samplers=["host"], period_s=0.05).start()
    assert telemetry.pid is not None
    assert eventually(lambda: seen(telemetry))
    os.kill(telemetry.pid, signal.SIGINT)
    time.sleep(0.2)
    assert alive(telemetry.pid)
    assert os.getpgid(telemetry.pid) != os.getpgid(0)
    assert "sampler" not in telemetry.stop().summary.reasons


def test_a_killed_sampler_keeps_what_it_saw_and_says_so() -> None:
    """Readings before the kill are returned, and the summary names the end."""
    telemetry = Telemetry(samplers=["host"], period_s=0.05).start()
    assert telemetry.pid is not None
    assert eventually(lambda: seen(telemetry))
    os.kill(telemetry.pid, signal.SIGKILL)
    recording = telemetry.stop()
    assert recording.rows["value"]
    assert recording.summary.reasons["sampler"] == "the sampler ended early with code -9"


def test_a_stuck_sampler_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that does not answer (a driver that hangs) is killed, not waited for."""
    monkeypatch.setattr("bench.telemetry.STOP_S", 0.2)
    telemetry = Telemetry(samplers=["host"]).start()
    pid = telemetry.pid
    assert pid is not None
    assert eventually(lambda: seen(telemetry))
    os.kill(pid, signal.SIGSTOP)
    assert "had to be killed" in telemetry.stop().summary.reasons["sampler"]
    assert eventually(lambda: not alive(pid))


def test_a_sampler_that_cannot_start_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter, or one that fails at once, gives an empty recording with the reason."""
    monkeypatch.setattr("bench.telemetry.own_python", lambda _: ["/no/such/python"])
    assert "did not start" in Telemetry().start().stop().summary.reasons["sampler"]
    monkeypatch.setattr(
        "bench.telemetry.own_python", lambda _: [sys.executable, "-c", "raise SystemExit('no luck')"]
    )
    failed = Telemetry().start()
    assert eventually(lambda: failed.pid is not None and not alive(failed.pid))
    assert failed.stop().summary.reasons["sampler"] == "the sampler ended early with code 1: no luck"
    assert Telemetry().stop().summary.reasons["sampler"] == "the sampler was not started"


ROWS: Rows = {
    "time_s": [1.0, 2.0],
    "node": [0, 0],
    "subject": ["rank 0", "GPU-a"],
    "measure": ["cpu_percent", "power_w"],
    "value": [10.0, None],
}


def test_a_file_cut_short_gives_what_there_is(tmp_path: Path) -> None:
    """The last line of a killed sampler may be half a line; it is passed over."""
    line = msgspec.json.encode(Line(1.0, [("node", "load1", 0.5)], {"nvml": "no NVML"}))
    path = tmp_path / "readings"
    path.write_bytes(line + b"\n" + line[:-9])
    rows, reasons = read_lines(path, node=1)
    assert rows["value"] == [0.5]
    assert reasons == {"nvml": "no NVML"}
    assert read_lines(tmp_path / "missing", 0)[0]["value"] == []


def test_parquet_holds_the_rows_and_no_half_file_is_left(tmp_path: Path) -> None:
    """Columns, order and nulls survive; the temporary name is gone; nothing sampled is still a file."""
    import pyarrow.parquet as pq

    write_parquet(tmp_path / "t.parquet", ROWS)
    table = pq.read_table(tmp_path / "t.parquet").to_pydict()
    assert list(table) == ["node", "subject", "time_s", "measure", "value"]
    assert table["value"] == ROWS["value"]
    assert table["subject"] == ROWS["subject"]
    write_parquet(tmp_path / "empty.parquet", {name: [] for name in ROWS})
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.parquet", "t.parquet"]
