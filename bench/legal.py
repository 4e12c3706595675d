"""Which cases can run here, and why not: known before anything starts. First rule that speaks wins."""

from collections.abc import Callable

import msgspec

from bench import plugins
from bench.case import Case
from bench.errors import UsageError
from bench.machine import Host, device_kind, slots
from bench.options import check_options, data_plugin

KNOWN_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """What a user's own model brings, found before the study by building it once."""

    dataset_len: int | None = None
    has_dataset: bool = False
    has_sample: bool = False
    batch_norm: bool = False


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules need besides the case."""

    host: Host
    oversubscribe: bool = False
    devices: tuple[int, ...] | None = None
    brought: Brought | None = None

    @property
    def kind(self) -> str:
        """cpu, cuda, xpu, ..."""
        return device_kind(self.host)

    @property
    def slots(self) -> int:
        """Device slots that may be used."""
        return len(self.devices) if self.devices is not None else slots(self.host)


def check(case: Case, context: Context) -> None:
    """Raise UsageError for what no host could run: unknown names, wrong options, too many devices."""
    plugins.check_name("strategies", case.strategy)
    data, _ = data_plugin(case.data)
    check_options("data", case.data.partition(":")[0], case.data_args, data.options)
    if ":" not in case.model:
        plugins.check_name("models", case.model)
        check_options("models", case.model, case.model_args, plugins.load("models", case.model).options)
    if case.backend is not None and case.backend not in {*KNOWN_BACKENDS, *context.host.backends}:
        raise UsageError(
            plugins.unknown("backend", case.backend, sorted({*KNOWN_BACKENDS, *context.host.backends}))
        )
    if context.kind != "cpu" and case.devices > context.slots and not context.oversubscribe:
        found = ", ".join(f"{d.index}: {d.name}" for d in context.host.devices)
        raise UsageError(
            f"ranks: {case.ranks} devices asked for, {context.slots} to be had ({found}); lower ranks,"
            " or --oversubscribe to let ranks share devices"
        )


def why_not(case: Case, context: Context) -> str | None:
    """The reason why this case is skipped on this host, or None."""
    for rule in RULES:
        reason = rule(case, context)
        if reason:
            return reason
    return None


def batches_per_epoch(length: int, ranks: int, batch: int) -> int:
    """Whole batches a rank gets in an epoch: DistributedSampler pads to equal ranks, the tail is dropped."""
    return -(-length // ranks) // batch


def chunks(batch: int, devices: int) -> tuple[int, ...]:
    """How DataParallel scatters a batch: torch.chunk's sizes, perhaps fewer than there are devices."""
    size = -(-batch // devices)
    return tuple(min(size, batch - start) for start in range(0, batch, size))


def _strategy(case: Case) -> plugins.Strategy:
    return plugins.load("strategies", case.strategy)  # type: ignore[no-any-return]


def _one_device(case: Case, _: Context) -> str | None:
    if _strategy(case).one_device and case.devices > 1:
        return f"{case.strategy} runs on one device, {case.devices} were asked for"
    return None


def _one_node(case: Case, _: Context) -> str | None:
    return "several nodes are not supported by this version" if case.nodes > 1 else None


def _sync_bn(case: Case, context: Context) -> str | None:
    if not case.sync_bn:
        return None
    if not _strategy(case).collective:
        return f"sync_bn needs ddp: {case.strategy} has no process group to synchronise over"
    return None


def _workers(case: Case, _: Context) -> str | None:
    if case.num_workers == 0 and case.persistent_workers:
        return "persistent_workers needs num_workers > 0"
    if case.num_workers == 0 and case.prefetch_factor is not None:
        return "prefetch_factor needs num_workers > 0"
    return None


def _loader(case: Case, _: Context) -> str | None:
    if data_plugin(case.data)[0].loader:
        return None
    for field in ("num_workers", "pin_memory", "non_blocking"):
        if getattr(case, field):
            return f"data {case.data!r} has no loader: {field} has no effect"
    return None


def _images(case: Case, context: Context) -> str | None:
    if ":" in case.model or not data_plugin(case.data)[0].image:
        return None
    return (
        None
        if plugins.load("models", case.model).image
        else f"data {case.data!r} gives images, {case.model} takes none"
    )


def _own_data(case: Case, context: Context) -> str | None:
    brought = context.brought
    if case.data == "own" and ":" not in case.model:
        return "data 'own' needs a model of your own that brings a data set"
    if ":" not in case.model or brought is None:
        return None
    if case.data == "own" and not brought.has_dataset:
        return f"{case.model} brings no data set: return Workload(dataset=...) or set data=synthetic"
    needs_sample = case.data != "own" and not (brought.has_dataset and case.data == "device")
    if needs_sample and not brought.has_sample:
        return f"{case.model} gives no Sample, so data {case.data!r} cannot be made for it: use data=own"
    return None


def _strong(case: Case, _: Context) -> str | None:
    if case.scaling == "strong" and case.batch % case.devices and not _strategy(case).single_process:
        return f"strong scaling: a global batch of {case.batch} does not divide over {case.devices} ranks"
    return None


def _batch_norm(case: Case, context: Context) -> str | None:
    if not case.sync_bn:
        return None
    if ":" not in case.model:
        has = plugins.load("models", case.model).batch_norm
    else:
        has = context.brought is None or context.brought.batch_norm
    return None if has else f"sync_bn: {case.model} has no BatchNorm layer"


def _shared_devices(case: Case, context: Context) -> str | None:
    if _strategy(case).single_process and context.kind != "cpu" and case.ranks > context.slots:
        return f"{case.strategy} cannot share devices: {case.ranks} asked for, {context.slots} to be had"
    return None


def _chunks(case: Case, _: Context) -> str | None:
    if not _strategy(case).single_process:
        return None
    sizes = chunks(case.global_batch, case.ranks)
    if len(sizes) < case.ranks:
        shown = ",".join(map(str, sizes))
        return f"DataParallel: a batch of {case.global_batch} makes chunks {shown}: {len(sizes)} of {case.ranks} devices used"
    return None


def _length(case: Case, context: Context) -> str | None:
    plugin, _ = data_plugin(case.data)
    length = plugin.length(case)
    if case.data == "own" and context.brought is not None:
        length = context.brought.dataset_len
    if length is None or not plugin.loader:
        return None
    single = _strategy(case).single_process
    ranks, batch = (1, case.global_batch) if single else (case.devices, case.device_batch)
    if batches_per_epoch(length, ranks, batch) == 0:
        return f"dataset {length}, world {ranks}, batch {batch}, drop_last: 0 steps per rank"
    return None


def _backend(case: Case, context: Context) -> str | None:
    if case.backend is None:
        return None
    if not _strategy(case).collective:
        return f"backend {case.backend}: {case.strategy} has no process group"
    if case.backend not in context.host.backends:
        return f"backend {case.backend}: not in this torch (has: {', '.join(context.host.backends)})"
    if context.kind == "cpu" and case.backend in ("nccl", "xccl"):
        return f"backend {case.backend} needs accelerators; CPU ranks use gloo"
    if case.backend == "nccl" and case.devices > context.slots:
        return "backend nccl refuses ranks that share a device: use gloo"
    return None


RULES: tuple[Callable[[Case, Context], str | None], ...] = (
    _one_node,
    _one_device,
    _sync_bn,
    _batch_norm,
    _shared_devices,
    _workers,
    _loader,
    _own_data,
    _images,
    _strong,
    _chunks,
    _length,
    _backend,
)
