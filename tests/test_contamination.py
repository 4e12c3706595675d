"""What else the machine did in a window: the table of declared causes, on telemetry made up for each."""

import msgspec
import pytest

from bench.case import Case
from bench.contamination import TABLE, judge, replaced, told
from bench.launch import Result
from bench.plan import Plan
from bench.recording import Recorder
from bench.records import Cell, RankSummary
from bench.scene import Scene
from bench.series import TelemetrySummary, summarise
from bench.telemetry import Recording, no_rows
from tests.hosts import cpu_host
from tests.nvml import FakeNvml, fake_proc, reader_of
from tests.simulate import launch_record
from tests.traces import effective, trace

HOST = {
    "node/cpu_percent": 55.0,
    "rank 0/cpu_percent": 100.0,
    "engine/cpu_percent": 1.0,
    "sampler/cpu_percent": 0.5,
}


def ranks(*nodes, uuids=()):
    """A rank on each of these nodes, with a device where there are UUIDs."""
    return tuple(
        RankSummary(
            rank=at,
            node=node,
            host="h",
            pid=at + 1,
            status="ok",
            effective=effective(device_uuids=uuids[at : at + 1]),
        )
        for at, node in enumerate(nodes)
    )


def scene(window_s=2.0, who=None, cpus=None, shared=False, cold=False, **values):
    """A launch of one rank, in which these were the means, maxima and totals; `_` in a name stands for `/`'s place."""
    told = HOST | {key.replace("__", "/").replace("_of_", " "): value for key, value in values.items()}
    telemetry = {
        key: value if isinstance(value, dict) else {"mean": value, "max": value, "total": value}
        for key, value in told.items()
    }
    return Scene(telemetry, window_s, who or ranks(0), cpus or {0: 2}, shared=shared, cold=cold)


def test_a_quiet_host_has_nothing_to_say():
    """One rank at 100 % of one of two CPUs, and 8 % of a CPU beside it."""
    assert judge(scene()) == ((), False)


@pytest.mark.parametrize(
    ("busy", "words", "again"),
    [
        (65.0, None, False),  # 0.29 CPUs beside the launch
        (70.0, "busy host: other processes used 0.4 of 2 CPUs", False),
        (80.0, "busy host: other processes used 0.6 of 2 CPUs", True),
        (99.0, "busy host: other processes used 1.0 of 2 CPUs", True),
    ],
)
def test_cpu_time_of_other_processes_is_told_and_from_a_quarter_on_disqualifies(busy, words, again):
    """The node's CPU time less that of rank, engine and sampler, as a share of the node's CPUs."""
    found = judge(scene(node__cpu_percent=busy))
    assert found == ((words,) if words else (), again)


def test_on_many_cpus_a_few_that_others_use_are_nothing():
    """1.6 of 64 CPUs leave room for all; 4 are told; 20 disqualify."""
    many = {"cpus": {0: 64}}
    assert judge(scene(node__cpu_percent=(100 + 160) / 64, **many)) == ((), False)
    told = judge(scene(node__cpu_percent=(100 + 400) / 64, **many))
    assert told == (("busy host: other processes used 4.0 of 64 CPUs",), False)
    assert judge(scene(node__cpu_percent=(100 + 2000) / 64, **many)).disqualified


def test_one_cpu_that_the_launch_is_bound_to_is_all_that_counts():
    """Half of it is taken by others, whatever the rest of the machine does."""
    found = judge(scene(node__cpu_percent=100.0, rank_of_0__cpu_percent=48.5, cpus={0: 1}))
    assert found == (("busy host: other processes used 0.5 of 1 CPU",), True)


def test_processes_of_the_launch_are_not_of_others():
    """Loader workers, and what else is in the engine's process group, are ours."""
    own = {"rank_of_0_of_worker_of_0__cpu_percent": 60.0, "process_of_77__cpu_percent": 30.0}
    assert judge(scene(node__cpu_percent=99.0, **own)) == ((), False)


def test_what_was_not_read_is_not_judged():
    """Without the node's CPU time, or that of a rank, whose CPU time it was cannot be told."""
    assert judge(scene(node__cpu_percent=None)) == ((), False)
    assert judge(scene(node__cpu_percent=99.0, rank_of_0__cpu_percent=None)) == ((), False)


def test_a_window_of_few_readings_is_not_judged_by_them():
    """Under half a second CPU shares are too coarse; what one reading tells for sure is still told."""
    assert judge(scene(window_s=0.4, node__cpu_percent=99.0, node__steal_percent=40.0)) == ((), False)
    swap = judge(scene(window_s=0.4, node__swapped_bytes=3.0 * 2**20))
    assert swap.words == ("swap: 3 MiB went to swap or came back",)


@pytest.mark.parametrize(
    ("values", "words", "again"),
    [
        ({"node__steal_percent": 2.0}, None, False),
        ({"node__steal_percent": 4.0}, "steal: the hypervisor took 4 % of the CPUs", False),
        ({"node__steal_percent": 12.0}, "steal: the hypervisor took 12 % of the CPUs", True),
        ({"node__runnable": 4.0}, None, False),  # 3 processes of the launch, each with one thread
        ({"node__runnable": 6.2}, "load: 6.2 tasks at a time wanted 2 CPUs", False),
        ({"node__cpu_throttled_s": 0.5}, "CPUs throttled: heat held CPUs down in 25 % of the window", True),
        ({"node__cpu_mhz": {"mean": 2400.0, "max": 2600.0}}, None, False),
        (
            {"node__cpu_mhz": {"mean": 2000.0, "max": 2600.0}},
            "CPU clocks: the CPUs ran 23 % below 2600 MHz, the highest of the window",
            False,
        ),
        ({"node__memory_used_percent": 97.0}, "memory: 97 % of the memory was in use", False),
        (
            {"node__memory_pressure_s": 0.4},
            "memory pressure: something waited for memory in 20 % of the window",
            False,
        ),
        (
            {"ranks__read_bytes": 35.0 * 2**20},
            "first touch: 35 MiB came from disks, not from the page cache",
            False,
        ),
        ({"ranks__read_bytes": 35.0 * 2**20, "cold": True}, None, False),  # as asked for
        ({"ranks__read_bytes": None, "node__swapped_bytes": None, "node__cpu_mhz": None}, None, False),
    ],
)
def test_each_cause_has_its_thresholds(values, words, again):
    """Below the first nothing is said, above the second the launch is disqualified, and the numbers are told."""
    assert judge(scene(**values)) == ((words,) if words else (), again)


def on_device(**values):
    """A launch on one of two devices, with other things going on on the second."""
    told = {f"GPU-1__{name}": value for name, value in values.items()}
    other = {"GPU-2__foreign_processes": 3.0, "GPU-2__throttle_hw_slowdown": 1.0}
    return judge(scene(who=ranks(0, uuids=("GPU-1",)), **told, **other))


def test_only_devices_of_the_launch_count():
    """What goes on on a device that no rank uses contaminates nothing."""
    assert on_device(foreign_processes=0.0) == ((), False)


def test_other_processes_on_the_device_disqualify():
    """One is enough; where NVML cannot tell nothing is said."""
    assert on_device(foreign_processes=1.0) == (("foreign process: 1 of others computed on GPU-1",), True)
    assert on_device(foreign_processes=None) == ((), False)


def test_throttling_disqualifies_and_names_its_cause():
    """Heat before the slowdown that is set beside it; a power limit is normal at full load."""
    found = on_device(throttle_hw_slowdown=0.4, throttle_hw_thermal_slowdown=0.4)
    assert found == (("throttled: heat held clocks of GPU-1 down in 40 % of the window",), True)
    assert on_device(throttle_sw_power_cap=0.9) == ((), False)


def test_a_device_whose_clock_fell_is_told():
    """The mean 12 % below the highest; not of a device that was idle at times, or may have been: its clock falls by itself."""
    fell = {"sm_clock_mhz": {"mean": 1742.0, "max": 1980.0}}
    words = "device clocks: GPU-1 ran 12 % below 1980 MHz, the highest of the window"
    assert on_device(**fell, throttle_gpu_idle=0.0) == ((words,), False)
    assert on_device(**fell) == ((), False)
    assert on_device(**fell, throttle_gpu_idle=0.5) == ((), False)


def test_what_nvml_says_reaches_the_judgement(tmp_path):
    """From NVML's list of processes and its throttle mask: heat and a process of others on the rank's device."""
    nvml = FakeNvml()
    nvml.mask = 0x40
    nvml.running = {"GPU-aaaa": [(10, 2**30), (99, 2**30)], "GPU-bbbb": [(98, 2**30)]}
    (tmp_path / "ranks").write_text("0 10\n")
    proc = fake_proc(tmp_path / "proc", {10: 7, 99: 99, 98: 98})
    reader = reader_of(["GPU-aaaa", "GPU-bbbb"], nvml, proc, engine_pgid=7, rank_pids=str(tmp_path / "ranks"))
    rows = no_rows()
    for time_s in (0.0, 1.0):
        for (subject, measure), value in reader.read(time_s).items():
            for name, cell in zip(rows, (time_s, 0, subject, measure, value), strict=True):
                rows[name].append(cell)
    telemetry = summarise(rows, reader.reasons).measures
    found = judge(Scene(telemetry, 1.0, ranks(0, uuids=("GPU-aaaa",)), {0: 2}))
    assert found.disqualified
    assert found.words == (
        "foreign process: 1 of others computed on GPU-aaaa",
        "throttled: heat held clocks of GPU-aaaa down in 100 % of the window",
    )


def test_a_record_says_what_went_on_beside_it(tmp_path):
    """From traces and readings to the record: the words, and that it is disqualified; a failed launch is not judged."""
    case = Case(batch=4, data="synthetic")
    cell = Cell(id=case.id, case=case, suite="s")
    plan = Plan(suites=("s",), cells=(cell,), factors={}, estimates={})
    rows = no_rows()
    readings = (("node", "cpu_percent", 99.0), ("rank 0", "cpu_percent", 100.0))
    for reading in readings:
        for name, value in zip(rows, (1.0, 0, *reading), strict=True):
            rows[name].append(value)
    recording = Recording(rows=rows, summary=TelemetrySummary())
    one = trace(effective=effective(wrapper="ResNet", world_size=1), step_s=(0.1,) * 20)
    host = msgspec.structs.replace(cpu_host(), cpus_counted=64)  # bound to two of them
    recorder = Recorder(plan, host, None)
    good = recorder.record(
        cell, "x", 0, 0, Result(traces=(one,), failure=None, timed_out=False, wall_s=1.0), recording, 1
    )
    assert good.contaminated == ("busy host: other processes used 1.0 of 2 CPUs",)
    assert good.disqualified
    assert not any("busy" in mark for mark in good.marks)
    bad = recorder.record(
        cell, "x", 0, 0, Result(traces=(), failure=None, timed_out=False, wall_s=1.0), recording, 1
    )
    assert (bad.status, bad.contaminated, bad.disqualified) == ("failed", (), False)


def test_of_several_nodes_the_worst_is_told():
    """Each node by its own CPUs and processes; nodes on one machine are one."""
    busy = {
        "node__cpu_percent": 70.0, "node_of_1__cpu_percent": 99.0, "rank_of_1__cpu_percent": 100.0,
        "node_of_1_of_engine__cpu_percent": 1.0,
    }  # fmt: skip
    two = {"who": ranks(0, 1), "cpus": {0: 2, 1: 2}}
    found = judge(scene(**busy, **two))
    assert found == (("busy host: other processes used 1.0 of 2 CPUs on node 1",), True)
    assert judge(scene(**busy | {"node__cpu_percent": 99.0}, **two, shared=True)) == ((), False)


def test_every_cause_of_the_table_is_declared_once():
    """Names are told apart, and what disqualifies marks as well."""
    assert len({rule.name for rule in TABLE}) == len(TABLE)
    assert all(rule.again_above is None or rule.again_above >= rule.marked_above for rule in TABLE)


def test_causes_of_several_launches_are_told_once_each():
    """In the words of the first launch, with how many more there are."""
    launches = [("steal: 4 %",), ("busy host: 1.0 of 2", "steal: 9 %"), (), ("steal: 5 %",)]
    assert told(launches) == {"steal": "steal: 4 % (and 2 more)", "busy host": "busy host: 1.0 of 2"}


def test_a_launch_is_replaced_by_one_with_a_result():
    """A repeat that failed replaces nothing: the first stays in the numbers."""
    first = launch_record(Case(), 0, 0)
    again = msgspec.structs.replace(launch_record(Case(), 0, 1), launch="again", retry_of=first.launch)
    assert replaced([first, again]) == {first.launch: "replaced by again"}
    assert replaced([first, msgspec.structs.replace(again, status="failed", window=None)]) == {}
    assert (
        replaced([first, msgspec.structs.replace(again, mismatches=("threads: 1 asked for, 2 in effect",))])
        == {}
    )


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_repeat_that_is_disqualified_too_replaces_nothing(factor):
    """One of the two counts: the first, whatever the throughput of the second; the second is the one left out."""
    first = msgspec.structs.replace(launch_record(Case(), 0, 0), disqualified=True)
    window = msgspec.structs.replace(first.window, samples_per_s=first.window.samples_per_s * factor)
    again = msgspec.structs.replace(first, launch="again", retry_of=first.launch, window=window)
    assert replaced([first, again]) == {"again": f"run again no better: {first.launch} stays"}
