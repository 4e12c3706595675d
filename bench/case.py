"""What to run: a Case is one cell of the matrix, frozen, with an id that survives renames of files."""

import hashlib
import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# what a cell's name says of its settings, where they are not the usual ones
SHORT = {
    "num_workers": "w{}",
    "pin_memory": "pin",
    "prefetch_factor": "pf{}",
    "persistent_workers": "persistent",
    "non_blocking": "nonblocking",
    "sync_bn": "syncbn",
    "backend": "{}",
    "threads": "t{}",
    "cpu_binding": "bound-{}",
    "page_cache": "{}-cache",
    "precision": "{}",
    "grad_accumulation": "acc{}",
    "channels_last": "nhwc",
    "compile": "compile-{}",
    "optimizer": "{}",
    "fused": "fused",
    "bucket_cap_mb": "bucket{}",
    "gradient_as_bucket_view": "view",
    "static_graph": "static",
    "find_unused_parameters": "unused",
    "broadcast_buffers": "nobroadcast",
    "comm_hook": "hook-{}",
    "link": "link-{}",
}

# what DistributedDataParallel is told, and what no device on its own has
DDP_OPTIONS = (
    "bucket_cap_mb",
    "gradient_as_bucket_view",
    "static_graph",
    "find_unused_parameters",
    "broadcast_buffers",
    "comm_hook",
)
OF_STRATEGY = ("strategy", "ranks", "nodes", "link", "sync_bn", "backend", *DDP_OPTIONS)

Scalar = str | int | float | bool
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cell: everything that decides what is computed and how.

    `ranks` counts device slots on each node. `batch` is per device under weak scaling and global under
    strong scaling; with `grad_accumulation` it is that of one micro-batch under weak scaling. None leaves a
    setting to torch or to the host, and what ran is read back.
    """

    strategy: str = "single"
    ranks: Count = 1
    nodes: Count = 1
    scaling: Literal["weak", "strong"] = "weak"
    batch: Count = 16
    model: str = "resnet-small"
    model_args: dict[str, Scalar] = {}
    data: str = "device"
    data_args: dict[str, Scalar] = {}
    num_workers: Natural = 0
    pin_memory: bool = False
    prefetch_factor: Count | None = None
    persistent_workers: bool | None = None
    non_blocking: bool = False
    sync_bn: bool = False
    backend: str | None = None
    threads: Count | None = None
    cpu_binding: Literal["cores", "numa"] | None = None
    page_cache: Literal["warm", "cold"] | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = None
    grad_accumulation: Count = 1
    channels_last: bool = False
    compile: bool | Literal["reduce-overhead", "max-autotune"] = False
    optimizer: Literal["sgd", "adamw"] | None = None
    fused: bool = False
    bucket_cap_mb: Annotated[float, Meta(gt=0)] | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    comm_hook: Literal["fp16", "bf16", "powersgd"] | None = None
    link: str | None = None  # between nodes on one box: "1gbit", "100mbit,0.2ms"; None: the network as it is
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 60
    seed: Natural = 0
    timeout_s: Annotated[float, Meta(gt=0)] = 180.0

    @property
    def devices(self) -> int:
        """Device slots over all nodes."""
        return self.ranks * self.nodes

    @property
    def global_batch(self) -> int:
        """Samples a step over all devices and micro-batches."""
        return self.batch if self.scaling == "strong" else self.batch * self.devices * self.grad_accumulation

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-batch over all devices: what lies between two backward passes."""
        return -(-self.global_batch // self.grad_accumulation)

    @property
    def device_batch(self) -> int:
        """Samples of one micro-batch on one device (the largest chunk, where they differ)."""
        return -(-self.micro_batch // self.devices)

    @property
    def id(self) -> str:
        """A readable slug and a hash of the canonical JSON: the resume key.

        Fields at their defaults are left out of the hash, so a field added later changes no id.
        """
        digest = hashlib.sha256(canonical(self)).hexdigest()[:10]
        return f"{slug(self)}-{digest}"


def canonical(case: Case) -> bytes:
    """The case as JSON with sorted keys and without the fields that are at their defaults."""
    given = {name: value for name in FIELDS if (value := getattr(case, name)) != getattr(_DEFAULT, name)}
    return msgspec.json.encode(given, order="sorted")


FIELDS = Case.__struct_fields__
_DEFAULT = Case()


def slug(case: Case) -> str:
    """A short name for people: strategy, devices, batch, model, data and what else was set."""
    parts = [case.strategy, f"n{case.devices}", f"b{case.batch}", case.model, case.data]
    parts += ["strong"] * (case.scaling == "strong")
    parts += [
        short.format(value)
        for field, short in SHORT.items()
        if (value := getattr(case, field)) != (default := getattr(_DEFAULT, field)) and (value or default)
    ]
    parts += [
        f"{name}-{value}"
        for args in (case.model_args, case.data_args)
        for name, value in sorted(args.items())
    ]
    text = re.sub(r"[^A-Za-z0-9.]+|\.\.+", "-", "-".join(parts)).strip("-").lower()
    return text[:70].rstrip("-.")
