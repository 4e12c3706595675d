"""Which cases can run here, and why not: known before anything starts. First rule that speaks wins."""

from collections.abc import Callable

import msgspec

from bench import link, plugins
from bench.case import DDP_OPTIONS, Case
from bench.errors import UsageError
from bench.machine import Host, device_kind, slots
from bench.options import built_first, check_model, check_options, data_plugin, model_plugin

_DEFAULT = Case()
NO_LINK = "links are shaped between the nodes of one box: --nodes 2 --link 1gbit, as root"
KNOWN_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """What a model brings: said by its plug-in, or found before the study by building it once."""

    dataset_len: int | None = None
    has_dataset: bool = False
    has_sample: bool = False
    batch_norm: bool = False
    image: bool = False
    tokens: bool = False
    products: float | None = None  # of a weight and an activation in a sample's forward pass, roughly


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules need besides the case."""

    host: Host
    oversubscribe: bool = False
    devices: tuple[int, ...] | None = None
    brought: Brought | None = None
    nodes: int = 1  # that take part, this one among them
    box: bool = False  # all of them on this machine
    no_link: str | None = NO_LINK  # why links cannot be shaped
    no_delay: str | None = None  # why a link can have no delay

    @property
    def kind(self) -> str:
        """cpu, cuda, xpu, ..."""
        return device_kind(self.host)

    @property
    def slots(self) -> int:
        """Device slots of this machine that may be used."""
        return len(self.devices) if self.devices is not None else slots(self.host)


def check(case: Case, context: Context) -> None:
    """Raise UsageError for what no host could run: unknown names, wrong options, too many devices."""
    plugins.check_name("strategies", case.strategy)
    data, _ = data_plugin(case.data)
    check_options("data", case.data.partition(":")[0], case.data_args, data.options)
    check_model(case)
    if case.backend is not None and case.backend not in {*KNOWN_BACKENDS, *context.host.backends}:
        raise UsageError(
            plugins.unknown("backend", case.backend, sorted({*KNOWN_BACKENDS, *context.host.backends}))
        )
    if case.link is not None:
        link.parse(case.link)
    if context.kind != "cpu" and case.ranks > context.slots and not context.oversubscribe:
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


def _nodes(case: Case, context: Context) -> str | None:
    if case.nodes > 1 and not _strategy(case).collective:
        return f"{case.strategy} runs on one node: only strategies with a process group go over several"
    if case.nodes > context.nodes:
        return f"{case.nodes} nodes asked for, {context.nodes} to be had: run it with --nodes {case.nodes}"
    if case.cpu_binding is not None and case.nodes > 1 and context.box:
        return "cpu_binding: nodes on one box would bind their ranks to the same CPUs"
    if context.box and context.kind != "cpu" and case.devices > context.slots and not context.oversubscribe:
        return f"{case.nodes} nodes of {case.ranks} on one box: {case.devices} devices asked for, {context.slots} to be had"
    return None


def _link(case: Case, context: Context) -> str | None:
    if case.link is None:
        return None
    if case.nodes == 1:
        return f"link {case.link}: one node has no link to others"
    if context.no_link is not None:
        return f"link {case.link}: {context.no_link}"
    delay = link.parse(case.link).delay_s
    return f"link {case.link}: {context.no_delay}" if delay is not None and context.no_delay else None


def _sync_bn(case: Case, context: Context) -> str | None:
    if not case.sync_bn:
        return None
    if not _strategy(case).collective:
        return f"sync_bn needs ddp: {case.strategy} has no process group to synchronise over"
    return None


def _ddp_options(case: Case, _: Context) -> str | None:
    if _strategy(case).ddp_options:
        both = case.static_graph and case.grad_accumulation > 1
        return (
            "static_graph does not go with grad_accumulation: torch's reducer fails in no_sync"
            if both
            else None
        )
    asked = [name for name in DDP_OPTIONS if getattr(case, name) != getattr(_DEFAULT, name)]
    return f"{asked[0]} is DistributedDataParallel's: {case.strategy} has none" if asked else None


def _comm_hook(case: Case, context: Context) -> str | None:
    if case.comm_hook != "bf16" or (case.backend or _default_backend(context)) in ("nccl", "xccl"):
        return None
    return "comm_hook bf16 needs nccl or xccl: torch has it for no other backend"


def _default_backend(context: Context) -> str:
    return {"cuda": "nccl", "xpu": "xccl"}.get(context.kind, "gloo")


def _precision(case: Case, context: Context) -> str | None:
    if case.precision == "tf32" and (context.kind != "cuda" or context.host.rocm):
        found = "ROCm" if context.host.rocm else context.kind
        return f"precision tf32 needs CUDA devices (Ampere or later), this host has {found}"
    old = [d.name for d in context.host.devices if d.capability is not None and d.capability < 8.0]
    if case.precision == "tf32" and old:
        return f"precision tf32 needs Ampere or later: {old[0]} has none"
    if (
        case.precision in ("bf16", "fp16")
        and context.kind != "cpu"
        and _strategy(case).single_process
        and case.ranks > 1
    ):
        return f"precision {case.precision}: torch's DataParallel does not hand the type of autocast to its replicas"
    if case.precision == "fp16" and context.kind == "mps":
        return "precision fp16 has no gradient scaler on mps: use bf16"
    return None


def _channels_last(case: Case, context: Context) -> str | None:
    if not case.channels_last:
        return None
    if _strategy(case).sharded:
        return f"channels_last does not go with {case.strategy}: torch splits contiguous parameters only"
    model = brought(case, context)
    if model is None or model.image or case.data == "own":
        return None
    return f"channels_last is a layout of images: {case.model} takes none"


def _compile(case: Case, context: Context) -> str | None:
    if case.compile is False:
        return None
    if case.compile == "reduce-overhead" and context.kind != "cuda":
        return f"compile reduce-overhead means CUDA graphs: on {context.kind} it is compile = true"
    if case.compile is not True and case.grad_accumulation > 1 and context.kind == "cuda":
        return f"compile {case.compile} does not go with grad_accumulation: CUDA graphs overwrite the micro-batch before"
    if case.bucket_cap_mb is not None and case.bucket_cap_mb < 1:
        return "torch.compile needs bucket_cap_mb of at least 1: it splits its graphs by DDP's buckets"
    if _strategy(case).single_process:
        return f"torch.compile does not go with {case.strategy}: its replicas share one compiled module"
    if context.host.compiler is None:
        return "torch.compile needs a C++ compiler and this host has none (looked for: c++, g++, clang++)"
    return None


def _fused(case: Case, _: Context) -> str | None:
    if not case.fused:
        return None
    if case.optimizer is None:
        return "fused needs optimizer = sgd or adamw"
    if case.optimizer == "sgd" and _strategy(case).sharded:
        return f"fused sgd does not go with {case.strategy}: torch has it for whole parameters only; adamw has it"
    return None


def _page_cache(case: Case, _: Context) -> str | None:
    if case.page_cache is None or data_plugin(case.data)[0].reads_files:
        return None
    return f"page_cache: data {case.data!r} reads no files that this suite knows"


def _binding(case: Case, context: Context) -> str | None:
    ranks = _strategy(case).processes(case)
    if case.cpu_binding == "cores" and ranks > context.host.cpus_affinity:
        return f"cpu_binding cores: {ranks} ranks on {context.host.cpus_affinity} CPUs, a rank needs one of its own"
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


def brought(case: Case, context: Context) -> Brought | None:
    """What the model of a case brings, where that is known."""
    if built_first(case):
        return context.brought
    plugin: plugins.Model = plugins.load("models", case.model)
    return Brought(has_sample=True, batch_norm=plugin.batch_norm, image=plugin.image, tokens=plugin.tokens)


def _samples(case: Case, context: Context) -> str | None:
    """Images for models of images, token ids for models of token ids."""
    data, model = data_plugin(case.data)[0], brought(case, context)
    if model is None or not (data.image or data.tokens):
        return None
    takes = "images" if model.image else "token ids" if model.tokens else "neither images nor token ids"
    gives = "images" if data.image else "token ids"
    return None if takes == gives else f"data {case.data!r} gives {gives}, {case.model} takes {takes}"


def _own_data(case: Case, context: Context) -> str | None:
    if case.data == "own" and model_plugin(case.model) is not None:
        return "data 'own' needs a model of your own that brings a data set"
    model = brought(case, context)
    if model is None:
        return None
    if case.data == "own" and not model.has_dataset:
        return f"{case.model} brings no data set: return Workload(dataset=...) or set data=synthetic"
    needs_sample = case.data != "own" and not (model.has_dataset and case.data == "device")
    if needs_sample and not model.has_sample:
        return f"{case.model} gives no Sample, so data {case.data!r} cannot be made for it: use data=own"
    return None


def _strong(case: Case, _: Context) -> str | None:
    if case.scaling == "weak":
        return None
    if case.batch % case.grad_accumulation:
        return f"strong scaling: a batch of {case.batch} does not divide into {case.grad_accumulation} micro-batches"
    if case.micro_batch % case.devices and not _strategy(case).single_process:
        return (
            f"strong scaling: a global batch of {case.micro_batch} does not divide over {case.devices} ranks"
        )
    return None


def _batch_norm(case: Case, context: Context) -> str | None:
    if not case.sync_bn:
        return None
    model = brought(case, context)
    return None if model is None or model.batch_norm else f"sync_bn: {case.model} has no BatchNorm layer"


def _shared_devices(case: Case, context: Context) -> str | None:
    if _strategy(case).single_process and context.kind != "cpu" and case.ranks > context.slots:
        return f"{case.strategy} cannot share devices: {case.ranks} asked for, {context.slots} to be had"
    return None


def _chunks(case: Case, _: Context) -> str | None:
    if not _strategy(case).single_process:
        return None
    sizes = chunks(case.micro_batch, case.ranks)
    if len(sizes) < case.ranks:
        shown = ",".join(map(str, sizes))
        return f"DataParallel: a batch of {case.micro_batch} makes chunks {shown}: {len(sizes)} of {case.ranks} devices used"
    return None


def _length(case: Case, context: Context) -> str | None:
    plugin, _ = data_plugin(case.data)
    length = plugin.length(case)
    if case.data == "own" and context.brought is not None:
        length = context.brought.dataset_len
    if length is None or not plugin.loader:
        return None
    single = _strategy(case).single_process
    ranks, batch = (1, case.micro_batch) if single else (case.devices, case.device_batch)
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
    if case.backend == "nccl" and case.ranks > context.slots:
        return "backend nccl refuses ranks that share a device: use gloo"
    return None


RULES: tuple[Callable[[Case, Context], str | None], ...] = (
    _nodes,
    _link,
    _one_device,
    _sync_bn,
    _ddp_options,
    _comm_hook,
    _precision,
    _channels_last,
    _compile,
    _fused,
    _binding,
    _page_cache,
    _batch_norm,
    _shared_devices,
    _workers,
    _loader,
    _own_data,
    _samples,
    _strong,
    _chunks,
    _length,
    _backend,
)
