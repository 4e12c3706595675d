"""Findings: each one is seen where its cause is, absent where it is not, and says what to do."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.analysis import analyse
from bench.answers import Finding
from bench.case import Case
from bench.checks import trust
from bench.checks.memory import shm_need
from bench.checks.seen import Known, Seen, capped, worst
from bench.checks.setup import cpu_demand
from bench.contamination import BUSY
from bench.evidence import gather
from bench.failures import REMEDIES
from bench.findings import TABLE
from bench.records import LaunchRecord
from bench.watch_checks import MISTAKES
from tests import networks
from tests.simulate import CPU_HOST, GPU_HOST, MIB, each_rank, failed, simulate
from tests.verified import verification

SINGLE = Case()
PHOTOS = Case(data="photos", num_workers=2)
Change = Callable[[LaunchRecord], LaunchRecord]


def ddp(ranks: int, **fields: Any) -> Case:
    """DDP on so many ranks."""
    return Case(strategy="ddp", ranks=ranks, **fields)


def found(root: Path, cells: list[Case], **fields: Any) -> dict[str, Finding]:
    """Code -> its first finding, for a simulated study."""
    findings: dict[str, Finding] = {}
    for finding in analyse([simulate(root / "study", cells, **fields)]).findings:
        findings.setdefault(finding.code, finding)
    return findings


def rewindow(record: LaunchRecord, state: str) -> LaunchRecord:
    """The record with another state of its cut."""
    assert record.window is not None
    cut = msgspec.structs.replace(record.window.cut, state=state)
    return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, cut=cut))


def rephase(record: LaunchRecord, *by_rank: dict[str, float | None]) -> LaunchRecord:
    """The record with phases of its ranks changed, in order of rank."""
    ranks = [
        msgspec.structs.replace(rank, phases_s=rank.phases_s | phases)
        for rank, phases in zip(record.ranks, by_rank, strict=True)
    ]
    return msgspec.structs.replace(record, ranks=tuple(ranks), phases_s=ranks[0].phases_s)


def only(case: Case, change: Change) -> Change:
    """`change` for one cell, nothing for the others."""
    return lambda record: change(record) if record.cell == case.id else record


def cooler(record: LaunchRecord) -> LaunchRecord:
    """The launch as of a machine that loses a hundredth of its speed from block to block."""
    assert record.window is not None
    assert record.window.samples_per_s is not None
    rate = record.window.samples_per_s * 0.99**record.block
    return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, samples_per_s=rate))


def marked(record: LaunchRecord, cost_s: float) -> LaunchRecord:
    """The launch with marks that cost so many seconds a step on every rank."""
    ranks = tuple(msgspec.structs.replace(rank, instrumentation_s=cost_s) for rank in record.ranks)
    return msgspec.structs.replace(record, ranks=ranks)


POWERSGD = "PowerSGD over gloo, a bucket at a time"
CLEAN = {"host": GPU_HOST, "spread": 0.002}


def test_a_clean_study_has_nothing_to_say(tmp_path: Path) -> None:
    """Equal settings, no faults, scaling as it should be: no warning and no problem."""
    findings = analyse([simulate(tmp_path / "s", [SINGLE, ddp(1), ddp(2)], **CLEAN)]).findings
    assert [finding.message for finding in findings if finding.level != "info"] == []


SEEN: dict[str, tuple[list[Case], dict[str, Any], str]] = {
    "failed-launches": (
        [SINGLE, ddp(2)],
        {"change": only(ddp(2), failed)},
        r"5 launches of 1 cell failed: exception \(rank 1: ValueError: no\)",
    ),
    "not-in-effect": (
        [ddp(2)],
        {"change": lambda r: msgspec.structs.replace(r, mismatches=("strategy: asked for ddp, ran as dp",))},
        "asked for ddp, ran as dp",
    ),
    "throughput-falls": (
        [SINGLE, ddp(2), ddp(4)],
        {"step_s": lambda case: 0.1 * case.devices**1.5, "spread": 0.001},
        r"adding devices loses throughput: 160 samples/s on 1 device and 80.* samples/s on 4 ranks under ddp; stop at 1 device$",
    ),
    "throughput-may-fall": (
        [SINGLE, ddp(2)],
        {"quick": True, "step_s": lambda case: 0.1 * case.devices**1.5, "spread": 0.0},
        r"^more devices are slower: 160 samples/s on 1 device and 113 .* on 2 ranks under ddp; one launch: it may be",
    ),
    "not-the-same": (
        [SINGLE, ddp(2)],
        {"verified": verification(ddp(2))},
        r"^does not train as one process does: ddp on 2 ranks, resnet-small: gradients: fc.weight differs by 0.5",
    ),
    "not-verified": (
        [SINGLE, ddp(2)],
        {"verified": verification(ddp(2), outcome="cannot tell", detail="the model draws random numbers")},
        r"^not known whether 1 way of training computes what one process does: ddp on 2 .*: the model draws random",
    ),
    "aa-differs": (
        [SINGLE],
        {"spread": 0.002, "twins": {SINGLE.id: 1.05}},
        r"^A/A pair differs: the same cell twice, single on 1 device.*-4\.\d % \[-\d\.\d, -\d\.\d\]: verdicts are off$",
    ),
    "study-drifts": (
        [SINGLE],
        {"spread": 0.001, "blocks": 6, "change": lambda r: cooler(r)},
        r"^throughput changed by -4\.\d % \[-\d\.\d, -\d\.\d\] from the first of 6 blocks to the last$",
    ),
    "instrumentation-cost": (
        [SINGLE, ddp(2)],
        {"change": only(ddp(2), lambda r: marked(r, 0.001))},
        r"^instrumentation takes 2\.\d % of a step \(ddp on 2 ranks",
    ),
    "threads-differ": (
        [SINGLE, ddp(2), ddp(4)],
        {"change": only(SINGLE, lambda r: each_rank(r, "effective", threads=2))},
        r"^baseline not comparable: threads 2 vs 1$",
    ),
    "memory-contradicts": (
        [ddp(2)],
        CLEAN | {"change": lambda r: each_rank(r, "memory", peak_reserved_bytes=90 * MIB)},
        r"rank [01]: .* MiB <= 90.0 MiB <= .* does not hold",
    ),
    "super-linear": (
        [SINGLE, ddp(2)],
        {"step_s": lambda case: 16 / 100 if case.devices == 1 else 32 / 210, "spread": 0.0},
        r"^super-linear: check baseline: efficiency 105\.0 % on 2 ranks; differs: strategy single vs ddp$",
    ),
    "cpu-oversubscribed": (
        [ddp(2, data="photos", num_workers=4)],
        {"host": CPU_HOST | {"cpus_usable": 2}},
        r"^CPU oversubscribed: 2 ranks x \(4 workers x 1 thread \+ 1 thread\) = 10 on 2 CPUs$",
    ),
    "devices-oversubscribed": (
        [ddp(4)],
        {"change": lambda r: msgspec.structs.replace(r, marks=("oversubscribed",))},
        "1 cell ran with more ranks than there are devices",
    ),
    "input-bound": ([Case(data="photos")], {}, r"^input-bound: 30\.\d ms of 7\d\.\d ms a step is waiting"),
    "hiccups": (
        [SINGLE, ddp(2)],
        {"change": only(SINGLE, lambda r: halting(r))},
        r"^hiccups: 1 % of the steps take 877 ms or more; the mean step is 101 ms, the median 37\.5 ms \(single on 1",
    ),
    "copy-bound": (
        [ddp(2)],
        CLEAN | {"change": lambda r: rephase(r, *[{"h2d": 0.03}] * 2)},
        r"^copy-bound: 30\.0 ms of",
    ),
    "slow-rank": (
        [ddp(2)],
        {"change": lambda r: rephase(r, {"backward": 0.08}, {"forward": 0.05})},
        r"^rank 1 is late: its forward",
    ),
    "dataparallel-overhead": (
        [Case(strategy="dp", ranks=2), ddp(2)],
        CLEAN | {"step_s": lambda case: 0.12 if case.strategy == "dp" else 0.09},
        r"DataParallel overhead: it reaches 7\d\.\d % of DDP's throughput",
    ),
    "not-converged": ([SINGLE, ddp(2)], {"spread": 0.08}, r"not converged: 2 of 2 cells; the widest is ±\d"),
    "busy-host": (
        [SINGLE, ddp(2)],
        {"change": only(SINGLE, lambda r: msgspec.structs.replace(r, marks=(f"{BUSY}0.9 of 2 CPUs",)))},
        r"busy host: other processes used 0\.9 of 2 CPUs",
    ),
    "ecc-errors": (
        [ddp(2)],
        CLEAN | {"change": lambda r: failed(seen_of("GPU-1", ecc_uncorrected=2.0)(r))},
        r"^2 uncorrected memory errors on cuda:1$",
    ),
    "contaminated": (
        [SINGLE],
        {
            "change": lambda r: msgspec.structs.replace(
                r, contaminated=("steal: 4 % of the CPUs", "busy host: 0.4")
            )
        },
        r"^steal: 4 % of the CPUs \(and 4 more\)$",
    ),
    "foreign-process": (
        [SINGLE, ddp(2)],
        CLEAN
        | {"change": lambda r: seen_of("GPU-1", foreign_processes=1.0, foreign_memory_bytes=3.0 * 2**30)(r)},
        r"^1 process of others computed on cuda:1 and held 3\.00 GiB of it",
    ),
    "rank-on-two-devices": (
        [ddp(4)],
        CLEAN
        | {"change": lambda r: seen_of("GPU-0", rank_0_memory_bytes=9e9, rank_3_memory_bytes=725.0 * MIB)(r)},
        r"^rank 3 also holds 725 MiB on cuda:0$",
    ),
    "clocks-throttled": (
        [ddp(2)],
        CLEAN
        | {
            "change": lambda r: seen_of(
                "GPU-1", throttle_hw_slowdown=0.4, throttle_hw_thermal_slowdown=0.4, sm_clock_mhz=1230.0
            )(r)
        },
        r"^cuda:1: clocks held down by heat for 40\.0 % of the window$",
    ),
    "clocks-limited": (
        [SINGLE],
        CLEAN | {"change": lambda r: seen_of("GPU-0", throttle_sw_power_cap=0.62)(r)},
        r"^cuda:0: clocks held down by the power limit for 62\.0 % of the window$",
    ),
    "unsteady": (
        [SINGLE, ddp(2)],
        {"change": only(SINGLE, lambda r: rewindow(r, "unsteady"))},
        "unsteady: 5 launches still drifted",
    ),
    "two-modes": (
        [SINGLE],
        {"blocks": 10, "spread": 0.0, "change": lambda r: slower(r, 1.2) if r.block == 4 else r},
        "two groups, 328 samples/s to 393 samples/s",
    ),
    "mixed-hosts": (
        [SINGLE, ddp(2)],
        {"change": only(SINGLE, lambda r: msgspec.structs.replace(r, fingerprint="other"))},
        "launches from 2 different hosts or software versions",
    ),
    "governor": (
        [SINGLE],
        {"host": CPU_HOST | {"governor": "performance, schedutil"}},
        r"^the CPU frequency governor is performance, schedutil: clocks follow the load",
    ),
    "speed-variables": (
        [SINGLE],
        {
            "change": lambda r: msgspec.structs.replace(
                r, environment={"NCCL_DEBUG": "INFO"} if r.block else {}
            )
        },
        r"NCCL_DEBUG=INFO; not the same in every launch: NCCL_DEBUG$",
    ),
    "shm-short": (
        [PHOTOS],
        {"host": CPU_HOST | {"shm_free_bytes": 4 * MIB}},
        r"\(/dev/shm\) may run full: 1 rank x 2 workers x 2 batches need 9\.19 MiB, 4\.00 MiB are free",
    ),
    "files-grow": (
        [SINGLE],
        {"change": lambda r: each_rank(r, "memory", open_fds=120)},
        r"open files of rank 0 grew from 20 to 120",
    ),
    "memory-uneven": (
        [Case(strategy="dp", ranks=4)],
        CLEAN
        | {
            "change": lambda r: each_rank(
                r, "memory", per_device_allocated_bytes=(29200 * MIB, *[11244 * MIB] * 3)
            )
        },
        r"^device 0 holds 2\.60 times what the others hold: 28\.5 GiB vs 11\.0 GiB$",
    ),
    "phases-missing": (
        [SINGLE],
        {"change": lambda r: rephase(r, {"backward": None})},
        r"^insufficient data \(missing: backward\)",
    ),
    "reference-used": ([ddp(2, sync_bn=True)], {}, "reference SyncBN on CPU: torch's own does not run here"),
    "stand-ins-used": ([Case(model="paced", data="paced")], {}, "paced data, paced model"),
    "serial-hook": (
        [SINGLE, ddp(2, comm_hook="powersgd")],
        {
            "change": only(
                ddp(2, comm_hook="powersgd"), lambda r: each_rank(r, "effective", stand_ins=(POWERSGD,))
            )
        },
        r"^PowerSGD over gloo, a bucket at a time: the real compression and exchange, but nothing overlaps",
    ),
    "pin-memory-idle": (
        [Case(data="photos", pin_memory=True)],
        {},
        r"^pin_memory has no effect: no accelerator$",
    ),
    "samples-uneven": (
        [ddp(4, data="photos")],
        {"change": lambda r: each_rank(r, "counts", dataset_len=10, padded=2)},
        "2 samples of 10 repeated an epoch by ddp on 4 ranks",
    ),
    "straggler-possible": (
        [SINGLE, ddp(2)],
        {"change": only(ddp(2), lambda r: rephase(r, {"backward": 0.0538}, {"backward": 0.0534}))},
        "straggler is possible, rank not identifiable from wall times",
    ),
    "enough-workers": (
        [Case(data="photos", num_workers=workers) for workers in (0, 2, 4, 8, 16)],
        {
            "step_s": lambda case: 16 / {0: 50, 2: 100, 4: 180, 8: 182, 16: 175}[case.num_workers],
            "spread": 0.001,
        },
        r"^num_workers 4 gives 180 samples/s; more workers give no more",
    ),
    "loss-not-finite": (
        [SINGLE, ddp(2)],
        {"change": only(SINGLE, lambda r: msgspec.structs.replace(r, marks=("loss is not finite",)))},
        r"^the loss of single on 1 device, batch 16 a device, resnet-small on device is not finite$",
    ),
    "compile-time": (
        [SINGLE, Case(compile=True, timeout_s=600.0)],
        {
            "spread": 0.0,
            "step_s": lambda case: 0.08 if case.compile else 0.1,
            "change": only(
                Case(compile=True, timeout_s=600.0),
                lambda r: msgspec.structs.replace(each_rank(r, "effective", graph_breaks=3), compile_s=20.0),
            ),
        },
        r"^torch\.compile took 20\.0 s before the window of single on .*, compile on, with 3 graph breaks$",
    ),
    "state-split": (
        [ddp(2), Case(strategy="zero1", ranks=2)],
        {
            "change": lambda r: each_rank(
                r,
                "effective",
                parameter_bytes=40 * MIB,
                optimizer_state_bytes=(20 if r.requested.strategy == "zero1" else 40) * MIB,
            )
        },
        r"^zero1 on 2 ranks, .*: a rank holds 60\.0 MiB of parameters and optimizer state, 80\.0 MiB under ddp$",
    ),
    "steady-assumed": ([SINGLE], {"change": lambda r: rewindow(r, "assumed")}, "steady state assumed"),
    "rank-warnings": (
        [ddp(2)],
        {"change": lambda r: rewarn(r, "find_unused_parameters=True not needed")},
        r"^ranks were warned: find_unused_parameters=True not needed$",
    ),
    "watch-sees": (
        [ddp(2)],
        {"change": lambda r: rewarn(r, MISTAKES["no-step"].text(steps=60))},
        "^watch sees: no optimizer stepped in 60 steps: nothing is learnt$",
    ),
    "not-run": ([SINGLE], {"change": lambda record: None}, "1 cell of the plan did not run"),
    "link-saturated": (
        [networks.ddp(link="100mbit")],
        {
            "header": networks.header(),
            "step_s": lambda case: 0.4,
            "change": networks.networked({4_000_000: 0.3506}),
        },
        r"^network-bound: 11\.4 MB/s is 91 % of 100 Mbit/s \(bus bandwidth of an all-reduce of 4\.00 MB; ddp on 2 nodes",
    ),
    "wrong-interface": (
        [networks.ddp()],
        {"header": networks.header(), "change": networks.networked(interfaces=("docker0",))},
        r"^ranks of node 0 \(n0\) talked to other nodes over docker0, not eth0$",
    ),
    "ib-unused": (
        [networks.ddp()],
        {
            "header": networks.header(
                *(networks.member(i, host={"ports": [networks.PORT]}) for i in range(2))
            ),
            "change": networks.networked(),
        },
        r"^mlx5_0 port 1 is ACTIVE on every node, but the gradients of ddp on 2 nodes of 1 rank, .* went over TCP$",
    ),
    "interface-variables": (
        [networks.ddp()],
        {
            "header": networks.header(
                networks.member(0, host={"variables": {"GLOO_SOCKET_IFNAME": "eth"}}), networks.member(1)
            )
        },
        r"^node 0 \(n0\): GLOO_SOCKET_IFNAME=eth: there is no interface eth here: gloo takes whole names",
    ),
    "nodes-differ": (
        [networks.ddp()],
        {"header": networks.header(networks.member(0), networks.member(1, host={"nccl": "2.27.5"}))},
        r"^nodes differ in nccl None \| 2\.27\.5: each step waits for the slowest$",
    ),
    "slow-pair": (
        [networks.ddp(3)],
        {
            "header": networks.header(
                *map(networks.member, range(3)),
                pairs=(*networks.pairs(2, bits_per_s=94e6), *networks.pairs(3)[1:]),
            )
        },
        r"^between node 0 \(n0\) and node 1 \(n1\): 94 Mbit/s, 941 Mbit/s between the median pair$",
    ),
    "more-bytes-than-ring": (
        [networks.ddp()],
        {"header": networks.header(), "change": networks.networked(sent_bytes=9e6)},
        r"^node 1 sent 9\.00 MB a step, 2\.2 times the 4\.00 MB of a ring all-reduce of the gradients \(ddp on 2",
    ),
    "hostname-loopback": (
        [networks.ddp()],
        {
            "header": networks.header(
                networks.member(0), networks.member(1, host={"hostname_address": "127.0.1.1"})
            )
        },
        r"^the host name of node 1 \(n1\) resolves to 127\.0\.1\.1, which gloo would offer to the other nodes",
    ),
    "clocks-differ": (
        [networks.ddp()],
        {"header": networks.header(networks.member(0), networks.member(1, ahead_s=-2.5))},
        r"^the clock of node 0 \(n0\) is 2\.50 s ahead of that of node 1 \(n1\)$",
    ),
    "quick-study": ([SINGLE], {"quick": True}, "one launch a cell, so no intervals and no verdicts"),
}


def seen_of(uuid: str, **measures: float | None) -> Change:
    """Telemetry of one device over the window: its mean and maximum, and its total, are the value."""
    telemetry = {
        f"{uuid}/{name}": {"mean": value, "max": value, "total": value} for name, value in measures.items()
    }
    return lambda record: msgspec.structs.replace(record, telemetry=telemetry)


def slower(record: LaunchRecord, factor: float) -> LaunchRecord:
    """The record at a lower throughput."""
    window = record.window
    assert window is not None
    assert window.samples_per_s is not None
    window = msgspec.structs.replace(window, samples_per_s=window.samples_per_s / factor)
    return msgspec.structs.replace(record, window=window)


def halting(record: LaunchRecord, mean_s: float = 0.101, p50_s: float = 0.0375) -> LaunchRecord:
    """The record with a window that few long steps dominate."""
    assert record.window is not None
    window = msgspec.structs.replace(record.window, step_s=mean_s, p50_s=p50_s, p99_s=0.877)
    return msgspec.structs.replace(record, window=window)


def rewarn(record: LaunchRecord, text: str) -> LaunchRecord:
    """The record with a warning in every rank."""
    ranks = tuple(msgspec.structs.replace(rank, warnings=(text,)) for rank in record.ranks)
    return msgspec.structs.replace(record, ranks=ranks)


@pytest.mark.parametrize(
    ("measures", "code"),
    [
        ({"foreign_processes": 0.0, "foreign_memory_bytes": 0.0}, "foreign-process"),
        ({"foreign_processes": None, "foreign_memory_bytes": None}, "foreign-process"),
        ({"rank_0_memory_bytes": 9e9}, "rank-on-two-devices"),
        ({"ecc_uncorrected": 0.0, "ecc_corrected": 9.0}, "ecc-errors"),
        ({"throttle_gpu_idle": 0.9, "throttle_hw_slowdown": 0.001}, "clocks-throttled"),
        ({"throttle_hw_thermal_slowdown": None, "throttle_sw_power_cap": None}, "clocks-throttled"),
        ({"throttle_sw_power_cap": 0.05}, "clocks-limited"),
    ],
)
def test_a_device_without_that_fault_has_no_such_finding(
    tmp_path: Path, measures: dict[str, float | None], code: str
) -> None:
    """None, null, idle clocks, corrected errors, and a rank's memory on its own device are nothing to report."""
    assert code not in found(tmp_path, [SINGLE], **CLEAN | {"change": seen_of("GPU-0", **measures)})


def test_a_device_that_no_rank_used_is_not_reported(tmp_path: Path) -> None:
    """What others do on a device beside the study, or how warm it gets, changes none of its numbers."""
    busy = seen_of("GPU-5", foreign_processes=2.0, throttle_hw_thermal_slowdown=1.0)
    codes = found(tmp_path, [SINGLE], **CLEAN | {"change": busy})
    assert not {"foreign-process", "clocks-throttled"} & codes.keys()


def test_a_slice_is_recognised_by_either_prefix(tmp_path: Path) -> None:
    """Ranks name a MIG slice as torch does, with a card's prefix; telemetry names it as NVML does."""
    change = seen_of("MIG-0", foreign_processes=1.0)
    assert "foreign-process" in found(tmp_path, [SINGLE], **CLEAN | {"change": change})


@pytest.mark.parametrize("code", SEEN)
def test_each_finding_is_seen_where_its_cause_is(tmp_path: Path, code: str) -> None:
    """The cause is there: the finding is made, worded as it should be, with a remedy."""
    cells, fields, message = SEEN[code]
    findings = found(tmp_path, cells, **fields)
    assert code in findings
    assert re.search(message, findings[code].message), findings[code].message
    assert len(findings[code].remedy) > 10


def test_a_variable_that_bites_says_how(tmp_path: Path) -> None:
    """Of two variables that are set the one that slows things says what it does; the other its value."""
    environment = {"NCCL_BLOCKING_WAIT": "1", "NCCL_DEBUG": "WARN"}
    change = {"change": lambda r: msgspec.structs.replace(r, environment=environment)}
    assert found(tmp_path, [SINGLE], **change)["speed-variables"].evidence == {
        "NCCL_BLOCKING_WAIT": "1: the host waits in every collective: nothing overlaps",
        "NCCL_DEBUG": "WARN",
    }


def test_compilation_says_when_it_has_paid(tmp_path: Path) -> None:
    """20 s of compilation and 20 ms a step saved: worth it after 1,000 steps; saved nothing: no such claim."""
    cells, fields, _ = SEEN["compile-time"]
    assert (
        found(tmp_path, cells, **fields)["compile-time"].remedy
        == "worth it for trainings of more than some 1,000 steps"
    )
    same = fields | {"step_s": lambda case: 0.1}
    assert "worth it" not in found(tmp_path / "same", cells, **same)["compile-time"].remedy


def test_what_a_watch_saw_has_its_own_remedy_and_is_no_warning_of_a_rank(tmp_path: Path) -> None:
    """It is said once, and what to do is what the table of mistakes says."""
    text = MISTAKES["no-step"].text(steps=60)
    seen = found(tmp_path, [ddp(2)], change=lambda r: rewarn(r, text))
    assert seen["watch-sees"].remedy == MISTAKES["no-step"].remedy
    assert "rank-warnings" not in seen


def test_a_watched_loop_that_waits_is_said_once_with_what_its_cpus_allow(tmp_path: Path) -> None:
    """`input-bound` takes the watch's remedy and its place; where nothing waits in the window the watch says it."""
    text = MISTAKES["no-workers"].text(waited=0.4, free=3, cpus=8, local_ranks=2)
    for data, code in (("photos", "input-bound"), ("device", "watch-sees")):
        seen = found(tmp_path / data, [Case(data=data)], change=lambda r: rewarn(r, text))
        assert {"input-bound", "watch-sees"} & seen.keys() == {code}
        assert seen[code].remedy == "raise num_workers, to 3 at most (CPUs here: 8, ranks: 2)"


def test_threads_of_watched_loops_are_made_equal_by_the_command_that_starts_them(tmp_path: Path) -> None:
    """There is no case to set threads in: the remedy is a variable before the command."""
    for model, remedy in (
        ("watch:Net", "OMP_NUM_THREADS=1 python train.py"),
        ("mlp", "set threads in the case"),
    ):
        alone = Case(model=model, data="own")
        change = only(alone, lambda r: each_rank(r, "effective", threads=2))
        cells = [alone, Case(strategy="ddp", ranks=2, model=model, data="own")]
        assert remedy in found(tmp_path / model[:3], cells, change=change)["threads-differ"].remedy


def test_broken_lines_are_a_finding(tmp_path: Path) -> None:
    """A cut last line is named with its number."""
    store = simulate(tmp_path / "s", [SINGLE])
    store.launches_path.write_bytes(store.launches_path.read_bytes()[:-20])
    analysis = analyse([store])
    (one,) = [finding for finding in analysis.findings if finding.code == "broken-lines"]
    assert "launches.jsonl:5: " in one.message
    assert analysis.truncated_lines == 1


def test_every_row_of_the_table_is_tested() -> None:
    """A finding added to the table needs a case here."""
    assert {rule.code for rule in TABLE} == SEEN.keys() | {"broken-lines"}
    assert len({rule.code for rule in TABLE}) == len(TABLE)


def test_problems_come_first(tmp_path: Path) -> None:
    """Problems, then warnings, then what is good to know."""
    cells, fields, _ = SEEN["failed-launches"]
    levels = [
        f.level for f in analyse([simulate(tmp_path / "s", [*cells, Case(data="photos")], **fields)]).findings
    ]
    assert levels == sorted(levels, key=["problem", "warning", "info"].index)
    assert len(set(levels)) > 1


def test_the_sum_of_busy_threads_is_written_out() -> None:
    """Ranks x (workers x threads a worker + threads of the rank itself)."""
    assert cpu_demand(2, 4, 0, threads_per_worker=2) == (16, "2 ranks x 4 workers x 2 threads = 16")
    assert cpu_demand(2, 4, 2) == (12, "2 ranks x (4 workers x 1 thread + 2 threads) = 12")
    assert cpu_demand(1, 0, 4) == (4, "1 rank x 4 threads = 4")


def test_shared_memory_holds_every_prefetched_batch() -> None:
    """Ranks x workers x prefetch x bytes of a batch."""
    assert shm_need(ranks=2, workers=4, prefetch=2, batch_bytes=10) == 160


def test_enough_cpus_are_no_finding(tmp_path: Path) -> None:
    """As many busy threads as CPUs is fine, and models that sleep compete for none."""
    cell = ddp(2, data="photos", num_workers=1)
    assert "cpu-oversubscribed" not in found(tmp_path, [cell], host=CPU_HOST | {"cpus_usable": 4})
    paced = ddp(8, model="paced")
    assert "cpu-oversubscribed" not in found(tmp_path / "paced", [paced], host=CPU_HOST | {"cpus_usable": 2})


def test_a_late_rank_is_named_and_its_victim_is_not(tmp_path: Path) -> None:
    """Rank 1 waits 50 ms for its data; rank 0's 53 ms of backward are waiting for it, not communication."""

    def late(record: LaunchRecord) -> LaunchRecord:
        small = {"h2d": 0.0, "forward": 0.002, "optimizer": 0.0, "other": 0.0}
        record = rephase(
            record,
            {"data_wait": 0.0001, "backward": 0.0534} | small,
            {"data_wait": 0.0503, "backward": 0.0052} | small,
        )
        ranks = tuple(msgspec.structs.replace(rank, step_s=0.0555) for rank in record.ranks)
        return msgspec.structs.replace(record, ranks=ranks)

    findings = found(tmp_path, [ddp(2, data="photos")], change=late)
    message = findings["input-bound"].message
    assert message.startswith("input-bound: rank 1: 50.3 ms of 55.5 ms a step is waiting for the next batch")
    assert message.endswith("the other ranks wait for it in backward")
    assert "straggler-possible" not in findings
    assert "slow-rank" not in findings


def test_a_delay_inside_backward_is_not_given_to_a_rank(tmp_path: Path) -> None:
    """Both ranks show the same long backward: the finding abstains, and no rank is named."""
    cells, fields, _ = SEEN["straggler-possible"]
    findings = found(tmp_path, cells, **fields)
    assert "slow-rank" not in findings
    assert "input-bound" not in findings
    assert "rank 1" not in findings["straggler-possible"].message


def test_copies_timed_by_the_cpu_are_not_called_copy_bound(tmp_path: Path) -> None:
    """Copies are asynchronous: without the device's clock there is no such finding."""
    change = SEEN["copy-bound"][1]["change"]
    cpu = found(
        tmp_path, [ddp(2)], **CLEAN | {"change": lambda r: msgspec.structs.replace(change(r), clock="cpu")}
    )
    assert "copy-bound" not in cpu


def test_no_workers_is_a_legal_recommendation(tmp_path: Path) -> None:
    """Cheap items: every worker makes it slower, and 0 is what to set."""
    cells = [Case(data="synthetic", num_workers=workers) for workers in (0, 1, 2)]
    finding = found(tmp_path, cells, step_s=lambda case: 0.1 + 0.05 * case.num_workers)["enough-workers"]
    assert finding.remedy == "set num_workers=0"


@pytest.mark.parametrize(("usable", "choice"), [(2, 0), (4, 1), (16, 4)])
def test_no_more_workers_are_recommended_than_the_cpus_allow(
    tmp_path: Path, usable: int, choice: int
) -> None:
    """Two ranks on 2 CPUs leave none for workers, on 4 one each, though more were faster."""
    cells = [ddp(2, data="photos", num_workers=workers) for workers in (0, 1, 2, 4)]
    finding = found(tmp_path, cells, host=CPU_HOST | {"cpus_usable": usable}, spread=0.001)["enough-workers"]
    assert finding.remedy == f"set num_workers={choice}"
    assert ("would crowd" in finding.message) == (usable < 16)


@pytest.mark.parametrize("reason", sorted(REMEDIES))
def test_every_class_of_failure_has_its_remedy(tmp_path: Path, reason: str) -> None:
    """A failed launch says its class, who failed first, and what to do about that class."""
    finding = found(tmp_path, [ddp(2)], change=lambda r: failed(r, reason=reason))["failed-launches"]
    assert finding.remedy == REMEDIES[reason]
    assert finding.evidence == {"reason": reason, "failed first": "rank 1"}


def test_idle_pinning_is_said_once_and_is_no_problem(tmp_path: Path) -> None:
    """A pinned cell on a CPU host is known to be idle: good to know, and not also called not in effect."""
    findings = found(tmp_path, [Case(data="photos"), Case(data="photos", pin_memory=True)])
    assert findings["pin-memory-idle"].level == "info"
    assert "not-in-effect" not in findings


def test_failures_of_two_classes_are_two_findings(tmp_path: Path) -> None:
    """Out of memory and a hang are not mixed."""
    store = simulate(
        tmp_path / "s",
        [SINGLE, ddp(2)],
        change=lambda r: (
            failed(r, reason="hang", status="timeout", first_rank=None)
            if r.cell == SINGLE.id
            else failed(r, reason="oom_device")
        ),
    )
    failures = [f for f in analyse([store]).findings if f.code == "failed-launches"]
    assert {f.evidence["reason"] for f in failures} == {"hang", "oom_device"}
    hang = next(f for f in failures if f.evidence["reason"] == "hang")
    assert "failed first" not in hang.evidence


def test_a_failure_names_its_log(tmp_path: Path) -> None:
    """The file of the rank that failed first where there is one, else the launch's folder, else nothing."""
    cells, fields, _ = SEEN["failed-launches"]
    store = simulate(tmp_path / "s", cells, **fields)

    def log() -> str | None:
        (one,) = [f for f in analyse([store]).findings if f.code == "failed-launches"]
        return one.evidence.get("log")

    assert log() is None
    for launch in [row.launch for row in store.read() if row.status == "failed"]:
        folder = store.log_dir(launch)
    assert str(log()).startswith(str(store.root / "logs"))
    first = Path(str(log()))
    (first / "1.log").write_text("no")
    assert log() == str(first / "1.log")
    assert folder.is_dir()


def test_a_window_that_few_steps_dominate_names_no_cause_and_makes_its_comparisons_doubtful(
    tmp_path: Path,
) -> None:
    """Its steps are counted where they were kept, waiting in it is no input-bound study, no launch is dropped."""
    cells = [Case(data="photos"), Case(data="photos", num_workers=9)]
    assert "input-bound" in found(tmp_path / "calm", cells)

    def change(record: LaunchRecord) -> LaunchRecord:
        return halting(record) if record.requested.num_workers == 0 else record

    store = simulate(tmp_path / "s", cells, change=change, write_steps=True)
    analysis = analyse([store])
    seen = {finding.code: finding for finding in analysis.findings}
    assert "input-bound" not in seen
    assert re.match(
        r"hiccups: \d+ steps? of up to .* ms makes? .* % of a window of 45 steps", seen["hiccups"].message
    )
    (pair,) = [one for one in analysis.comparisons if one.factor == "num_workers"]
    assert "doubtful: few steps dominate the window of 0" in (pair.note or "")
    assert pair.ratio.n == 5
    alone = analyse([simulate(tmp_path / "alone", cells[:1], change=change)]).best
    assert alone is not None
    assert alone.loss is None
    assert ["hiccups" in cell.marks for cell in analysis.cells] == [True, False]
    same = simulate(
        tmp_path / "even", cells, change=lambda r: halting(r, 0.14, 0.1) if not r.requested.num_workers else r
    )
    assert "hiccups" not in {finding.code for finding in analyse([same]).findings}


def late(record: LaunchRecord, rank: int, by_s: float = 0.05) -> LaunchRecord:
    """The record with one of two ranks late in its forward by so much."""
    forward = record.phases_s["forward"] or 0.0
    phases = [{"forward": forward}, {"forward": forward}]
    phases[rank] = {"forward": forward + by_s}
    return rephase(record, *phases)


@pytest.mark.parametrize(
    ("change", "blocks", "named"),
    [
        (lambda r: late(r, 1), 5, True),
        (lambda r: late(r, 1 if r.block else 0), 5, True),  # four of five
        (lambda r: late(r, r.block % 2), 5, False),
        (lambda r: late(r, 1), 1, True),
        (lambda r: late(varied(r), 1, 0.02), 1, False),  # a large part of a step, less than its steps vary
        (lambda r: late(varied(r), 1, 0.02), 5, True),
        (lambda r: late(shorter(r, 15), 1), 1, False),
        (lambda r: late(r, r.block), 2, False),
    ],
)
def test_a_slow_rank_needs_launches_that_agree_or_a_margin_beyond_the_steps(
    tmp_path: Path, change: Change, blocks: int, named: bool
) -> None:
    """Most launches name the same rank; one or two have enough steps, and a margin beyond the spread of these."""
    assert ("slow-rank" in found(tmp_path, [ddp(2)], blocks=blocks, change=change)) == named


def varied(record: LaunchRecord) -> LaunchRecord:
    """The record with steps that vary by a third."""
    window = record.window
    assert window is not None
    assert window.p50_s is not None
    window = msgspec.structs.replace(window, p95_s=window.p50_s * 1.33)
    return msgspec.structs.replace(record, window=window)


def shorter(record: LaunchRecord, steps: int) -> LaunchRecord:
    """The record with a window of so many steps."""
    assert record.window is not None
    return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, steps=steps))


def test_real_work_done_serially_is_no_stand_in(tmp_path: Path) -> None:
    """PowerSGD over gloo is ranked with the others and is in no finding about stand-ins."""
    cells, fields, _ = SEEN["serial-hook"]
    assert "stand-ins-used" not in found(tmp_path, cells, **fields)
    analysis = analyse([simulate(tmp_path / "alone", cells[1:], **fields)])
    assert "stand-ins" not in (analysis.best_note or "")


def test_a_width_beyond_the_value_is_a_range(tmp_path: Path) -> None:
    """±503 % would be a negative throughput: the limits are given in its place."""
    message = found(tmp_path, [SINGLE], blocks=5, spread=1.5)["not-converged"].message
    assert re.search(r"the widest is \[\S+ samples/s, \S+ samples/s\] after 5 launches", message), message


def test_few_launches_are_not_called_wide(tmp_path: Path) -> None:
    """Three of five, however they lie: no word of a width, and five that are wide beside them have theirs."""
    cells = {"spread": 0.2, "change": lambda r: r if r.requested == SINGLE or r.block < 3 else None}
    evidence = gather([simulate(tmp_path / "s", [SINGLE, ddp(2)], **cells)])
    seen = [one.message for one in trust.not_converged(Known(evidence, (), ()))]
    few = "too few launches: 1 of 2 cells; the fewest are 3, where 5 were asked for"
    assert seen[0] == few
    assert re.fullmatch(r"not converged: 1 of 2 cells; the widest is ±\S+ % after 5 launches, .*", seen[1])
    assert [cell.width_marks for cell in evidence.cells.values()] == [
        ("not converged",),
        ("too few launches: 3 of 5",),
    ]


def test_a_small_loss_in_one_launch_is_no_finding(tmp_path: Path) -> None:
    """One launch that is 5 % below may be any launch."""
    step = {1: 0.1, 2: 0.21}
    codes = found(tmp_path, [SINGLE, ddp(2)], quick=True, spread=0.0, step_s=lambda c: step[c.devices])
    assert "throughput-may-fall" not in codes
    assert "throughput-falls" not in codes


def test_efficiency_just_below_the_limit_is_no_finding(tmp_path: Path) -> None:
    """104.9 % is not called super-linear."""
    rates = {1: 100.0, 2: 209.8}
    findings = found(
        tmp_path, [SINGLE, ddp(2)], step_s=lambda case: case.global_batch / rates[case.devices], spread=0.0
    )
    assert "super-linear" not in findings


def test_super_linear_by_chance_says_so(tmp_path: Path) -> None:
    """Above 105 % with an interval that includes 100 % is still told, as what may be chance."""
    rates = {1: 100.0, 2: 240.0}
    cells = [SINGLE, ddp(2)]
    wide = found(tmp_path, cells, step_s=lambda c: c.global_batch / rates[c.devices], spread=0.25)
    assert "it may be chance" in wide["super-linear"].message


def test_noise_between_counts_is_not_a_loss_of_throughput(tmp_path: Path) -> None:
    """A flat curve with wide intervals does not say that devices take throughput away."""
    rates = {1: 100.0, 2: 99.0}
    findings = found(
        tmp_path, [SINGLE, ddp(2)], step_s=lambda case: case.global_batch / rates[case.devices], spread=0.05
    )
    assert "throughput-falls" not in findings


def test_one_finding_speaks_for_all_cells_that_show_it() -> None:
    """The gravest is worded, the others are counted and listed."""
    (one,) = worst(
        [Seen("small", ("a",), weight=1), Seen("large", ("b",), weight=2), Seen("mid", ("c",), weight=1.5)]
    )
    assert (one.message, one.cells) == ("large (and 2 more cells)", ("b", "c", "a"))
    assert list(worst([])) == []


def test_a_cell_on_two_curves_is_told_once() -> None:
    """The same words of the same cells are one finding; of other cells they are another."""
    one, other = Seen("super-linear", ("a",)), Seen("super-linear", ("b",))
    assert capped([one, other, one]) == [one, other]


def test_a_large_matrix_does_not_bury_the_rest() -> None:
    """Past six findings of one kind the others are counted in one."""
    many = [Seen(f"finding {i}", (f"cell {i}",)) for i in range(30)]
    kept = capped(many)
    assert len(kept) == 6
    assert kept[-1].message == "25 more like these, first: finding 5"
    assert len(kept[-1].cells) == 25
    assert capped(many[:6]) == many[:6]
