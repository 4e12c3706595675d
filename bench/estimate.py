"""How long a launch will take: what it took before on this host, else a rough guess that says so."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

from bench.case import Case
from bench.errors import BenchError
from bench.machine import Host, device_kind, fingerprint
from bench.options import data_plugin, model_plugin, option
from bench.plugins import load
from bench.store import HEADER, RESULTS, Store

LAUNCH_S = 0.6  # beside its steps
BLOCK_S = 4.0  # the engine and its fork server
STEP_FLOOR_S = 0.004
COMPILE_S = 20.0

# Seconds a sample on one CPU thread, seen on a 2-core host; devices are taken to be 100 times as fast.
CPU_SAMPLE_S = {
    "resnet-small": 0.005,
    "resnet18": 0.12,
    "resnet50": 0.35,
    "mlp": 0.0005,
    "gpt-small": 0.005,
    "gpt2": 11.0,
    "vit": 1.4,
    "torchvision": 0.3,
    "timm": 0.3,
    "hf": 1.0,
}
IMPORT_S = {"torchvision": 2.0, "timm": 3.0, "hf": 5.0}  # of the library, once a launch
DATA_SAMPLE_S = {"photos": 0.005, "imagefolder": 0.005, "synthetic": 0.0001, "tokens": 0.0001}
UNKNOWN_SAMPLE_S = 0.01
DEVICE_SPEED = 100


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds one launch takes, and whether that was measured here before."""

    seconds: float
    measured: bool


def estimates(cases: Iterable[Case], host: Host, results: Path = RESULTS) -> dict[str, Estimate]:
    """An estimate for every case, by id."""
    before = _measured(results, fingerprint(host))
    return {
        case.id: Estimate(seconds=before[case.id], measured=True)
        if case.id in before
        else Estimate(seconds=guess(case, host), measured=False)
        for case in cases
    }


def guess(case: Case, host: Host) -> float:
    """Seconds of one launch from rough costs a sample; ranks beyond the CPUs wait for one another."""
    crowding = max(1.0, case.devices / host.cpus_usable) if device_kind(host) == "cpu" else 1.0
    compute = case.device_batch * _compute_s(case, host) * crowding
    loading = case.device_batch * _loading_s(case)
    loading *= crowding if case.num_workers == 0 else crowding / min(case.num_workers, host.cpus_usable)
    step = compute + loading if case.num_workers == 0 else max(compute, loading)
    compiling = 0.0 if case.compile is False else COMPILE_S
    library = IMPORT_S.get(_plugin_name(case), 0.0) * crowding
    return LAUNCH_S + library + compiling + case.steps * (case.grad_accumulation * step + STEP_FLOOR_S)


def _plugin_name(case: Case) -> str:
    """The name of the model's plug-in; a user's own model has none of these."""
    return "" if model_plugin(case.model) is None else case.model.partition(":")[0]


def _compute_s(case: Case, host: Host) -> float:
    if case.model == "paced":
        options = load("models", "paced").options
        forward, backward = "forward_s_per_sample", "backward_s_per_sample"
        return float(option(case.model_args, options, forward) + option(case.model_args, options, backward))
    seconds = CPU_SAMPLE_S.get(_plugin_name(case), UNKNOWN_SAMPLE_S)
    return seconds if device_kind(host) == "cpu" else seconds / DEVICE_SPEED


def _loading_s(case: Case) -> float:
    name = case.data.partition(":")[0]
    if name == "paced":
        return float(option(case.data_args, data_plugin("paced")[0].options, "item_s"))
    return DATA_SAMPLE_S.get(name, 0.0)


def _measured(results: Path, here: str) -> dict[str, float]:
    """Median wall time of a launch, by cell, from earlier studies of this host."""
    walls: dict[str, list[float]] = {}
    for path in sorted(results.glob(f"*/{HEADER}"))[-50:]:
        try:
            records, _ = Store(path.parent).records()
        except (BenchError, OSError):
            continue
        for record in records:
            if record.status == "ok" and record.fingerprint == here and record.wall_s:
                walls.setdefault(record.cell, []).append(record.wall_s)
    return {cell: median(values) for cell, values in walls.items()}
