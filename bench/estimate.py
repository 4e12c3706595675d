"""How long a launch will take: what it took before on this host, else a rough guess that says so."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

import msgspec

from bench.case import Case
from bench.errors import BenchError
from bench.legal import Brought
from bench.machine import Host, device_kind, fingerprint
from bench.options import data_plugin, model_plugin, option
from bench.plugins import Options, load
from bench.store import HEADER, RESULTS, Store

LAUNCH_S = 0.6  # beside its steps
BLOCK_S = 4.0  # the engine and its fork server
STEP_FLOOR_S = 0.004
COMPILE_S = 20.0

# Seconds a sample with the default options on one CPU thread, seen on a 2-core host; devices are taken to be 100
# times as fast.
CPU_SAMPLE_S = {
    "resnet-small": 0.005,
    "resnet18": 0.12,
    "resnet50": 0.35,
    "mlp": 0.0005,
    "gpt-small": 0.005,
    "gpt2": 11.0,
    "vit": 1.4,
}
PRODUCTS_PER_S = (
    1.2e10  # of a weight and an activation, forward and backward, as GPT-2 and ViT did them there
)
IMPORT_S = {"torchvision": 2.0, "timm": 3.0, "hf": 5.0}  # of the library, once a launch
DATA_SAMPLE_S = {"photos": 0.005, "imagefolder": 0.005, "synthetic": 0.0001, "tokens": 0.0001}
UNKNOWN_SAMPLE_S = 0.01
DEVICE_SPEED = 100


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds one launch takes, and whether that was measured here before."""

    seconds: float
    measured: bool


def estimates(
    cases: Iterable[Case], host: Host, brought: Mapping[str, Brought] | None = None, results: Path = RESULTS
) -> dict[str, Estimate]:
    """An estimate for every case, by id; `brought` has what was found by building a case's model, by id too."""
    known = brought or {}
    before = _measured(results, fingerprint(host))
    return {
        case.id: Estimate(seconds=before[case.id], measured=True)
        if case.id in before
        else Estimate(seconds=guess(case, host, known.get(case.id)), measured=False)
        for case in cases
    }


def guess(case: Case, host: Host, brought: Brought | None = None) -> float:
    """Seconds of one launch from rough costs a sample; ranks beyond the CPUs wait for one another."""
    crowding = max(1.0, case.devices / host.cpus_usable) if device_kind(host) == "cpu" else 1.0
    compute = case.device_batch * _compute_s(case, host, brought) * crowding
    loading = case.device_batch * _loading_s(case)
    loading *= crowding if case.num_workers == 0 else crowding / min(case.num_workers, host.cpus_usable)
    step = compute + loading if case.num_workers == 0 else max(compute, loading)
    compiling = 0.0 if case.compile is False else COMPILE_S
    library = IMPORT_S.get(_plugin_name(case), 0.0) * crowding
    return LAUNCH_S + library + compiling + case.steps * (case.grad_accumulation * step + STEP_FLOOR_S)


def _plugin_name(case: Case) -> str:
    """The name of the model's plug-in; a user's own model has none of these."""
    return "" if model_plugin(case.model) is None else case.model.partition(":")[0]


def _compute_s(case: Case, host: Host, brought: Brought | None) -> float:
    name = _plugin_name(case)
    if name == "paced":
        options = load("models", name).options
        forward, backward = "forward_s_per_sample", "backward_s_per_sample"
        return float(option(case.model_args, options, forward) + option(case.model_args, options, backward))
    seconds = CPU_SAMPLE_S.get(name, UNKNOWN_SAMPLE_S)
    if name in CPU_SAMPLE_S:
        options = load("models", name).options
        given = {key: option(case.model_args, options, key) for key in options}
        seconds *= _arithmetic(given) / _arithmetic(options)
    elif brought is not None and brought.products:
        seconds = brought.products / PRODUCTS_PER_S
        seconds = seconds if name else max(seconds, UNKNOWN_SAMPLE_S)  # a user's may do anything else
    return seconds if device_kind(host) == "cpu" else seconds / DEVICE_SPEED


def _arithmetic(options: Options) -> float:
    """What a sample costs by a model's options, in any unit: a transformer's products, an image's area, a layer's weights."""
    size = {key: float(value) for key, value in options.items()}
    if "heads" in size:
        tokens = size["sequence"] if "sequence" in size else (size["image_size"] / size["patch"]) ** 2
        block = 12 * size["width"] ** 2 + 2 * tokens * size["width"]
        return tokens * (size["depth"] * block + size.get("vocabulary", 0.0) * size["width"])
    if "image_size" in size:
        return size["image_size"] ** 2
    ends = size["inputs"] + size["classes"]
    return size["width"] * (ends + max(0.0, size["depth"] - 2) * size["width"])


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
