"""What environment variables say: which devices are visible, which one a rank takes, what changes speed, the cache."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import UsageError

# What starts like one of these, and a few single names.
SPEED_PREFIXES = (
    "NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "OMPI_", "RCCL_", "CCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "OMP_",
    "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "ONEDNN_", "DNNL_", "CUDNN_", "CUBLAS_",
    "MIOPEN_", "HSA_", "HIP_", "ROCR_", "MALLOC_", "TCMALLOC_",
)  # fmt: skip
SPEED_NAMES = (
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES",
    "CUDA_MODULE_LOADING", "CUDA_CACHE_DISABLE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_TF32_OVERRIDE",
    "ZE_AFFINITY_MASK", "LD_PRELOAD", "GLIBC_TUNABLES", "PYTHONMALLOC", "TP_SOCKET_IFNAME",
)  # fmt: skip
NOT_SPEED = ("TORCH_CPP_LOG_LEVEL", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST")
ON, OFF = "1|y|yes|t|true", "0|n|no|f|false"  # as torch reads a switch

# Variables with one meaning: name, the values that bite (a pattern; None: any), what happens, what to do.
BITING: tuple[tuple[str, str | None, str, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", "1", "every kernel launch waits for the device: nothing overlaps", "unset it"),
    ("OMP_NUM_THREADS", None, "ranks that set no threads of their own take this many",
     "unset it, or set threads in the case; base and scaled runs must have the same"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "every collective is checked by a second one", "unset it for timing"),
    ("NCCL_DEBUG", "TRACE", "NCCL prints inside the timed steps", "set NCCL_DEBUG=WARN"),
    ("NCCL_P2P_DISABLE", "1", "devices of one node talk through host memory, not NVLink or PCIe", "unset it"),
    ("NCCL_SHM_DISABLE", "1", "devices of one node may talk through the network", "unset it"),
    ("NCCL_IB_DISABLE", "1", "nodes talk over TCP, not InfiniBand or RoCE", "unset it where there is such a network"),
    ("NCCL_SOCKET_IFNAME", "=?lo", "NCCL offers other nodes the loopback interface, over which none can reach it",
     "name the interface that leads to them, or unset it"),
    ("NCCL_ALGO", None, "NCCL no longer picks an algorithm for each size and network", "unset it"),
    ("NCCL_PROTO", None, "NCCL no longer picks a protocol for each size and network", "unset it"),
    *((name, None, "NCCL takes no more channels than that: it may not fill the link", "unset it")
      for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")),
    *((name, None, "how many sockets and threads carry NCCL's TCP is fixed by hand", "compare only with it equal")
      for name in ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS")),
    ("NCCL_NET_GDR_LEVEL", "0|LOC", "network cards reach devices through host memory", "unset it"),
    *((name, ON, "the host waits in every collective: nothing overlaps", "unset it")
      for name in ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT")),
    *((name, OFF, "ranks whose peer has died wait for it for ever", "unset it")
      for name in ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")),
    ("TORCH_NCCL_DESYNC_DEBUG", ON, "every collective is noted in the store", "unset it for timing"),
    ("TP_SOCKET_IFNAME", None, "only torch.distributed.rpc reads it", "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "every tensor is a cudaMalloc", "unset it"),
    ("LD_PRELOAD", None, "a preloaded library may replace the allocator or the maths", "compare only with it equal"),
)  # fmt: skip
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|PRIVATE|_KEY$|AUTH", re.IGNORECASE
)
SECRET_VALUE = re.compile(
    r"://[^/\s]*:[^/\s]*@|\b(hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_\-.]{8,}"
    r"|(token|secret|passw(or)?d|api_?key)\s*[=:]|BEGIN [A-Z ]*PRIVATE KEY",
    re.IGNORECASE,
)
WITHHELD = "(withheld)"


class Visible(NamedTuple):
    """What CUDA_VISIBLE_DEVICES says: entries in order (None: unset, all devices), and what of it is ignored."""

    entries: list[str] | None
    ignored: str | None = None  # in words: which entry ends the list, and why


def parse_visible(value: str | None) -> list[str] | None:
    """Entries of CUDA_VISIBLE_DEVICES in order, as text; None where the variable is unset: all devices."""
    return read_visible(value).entries


def read_visible(value: str | None) -> Visible:
    """CUDA_VISIBLE_DEVICES as the driver reads it. Never raises.

    The first entry that is no index, GPU- or MIG- name, or is of another form than the first one, ends
    the list ("0,-1,2" is ["0"]); an entry given twice leaves nothing visible.
    """
    if value is None:
        return Visible(None)
    entries: list[str] = []
    parts = [part.strip() for part in value.split(",")]
    for at, entry in enumerate(parts):
        if entry in entries:
            return Visible([], f"{entry} stands there twice")
        fault = _fault(entry, entries)
        if fault:
            rest = ", ".join(part for part in parts[at + 1 :] if part)
            dropped = rest or entry not in ("", "-1")  # a list may be ended on purpose
            behind = f", and what follows it is ignored: {rest}" if rest else ""
            return Visible(entries, f"{fault} ends the list{behind}" if dropped else None)
        entries.append(entry)
    return Visible(entries)


def _fault(entry: str, before: Sequence[str]) -> str | None:
    """Why an entry ends the list, or None."""
    if _form(entry) is None:
        named = "an empty entry" if not entry else entry if entry == "-1" else None
        return named or f"{entry!r}, which is neither an index nor a GPU- or MIG- name,"
    if before and _form(entry) != _form(before[0]):
        return f"{entry}, which is of another form than {before[0]},"
    return None


def _form(entry: str) -> str | None:
    """The form of one entry: index, GPU, MIG, or None for what ends the list."""
    if entry.isascii() and entry.isdigit():
        return "index"
    return entry[:3] if entry.startswith(("GPU-", "MIG-")) and len(entry) > 4 else None


def device_index(local_rank: int, visible_count: int, chosen: Sequence[int] | None = None) -> int:
    """The visible device ordinal of a rank on its node, by LOCAL_RANK and never by global rank.

    One visible device is index 0 for every rank (CUDA_VISIBLE_DEVICES set per task). Where ranks
    outnumber devices they share them in turn; whether that is allowed is decided beforehand.
    Raises ValueError where no device is visible.
    """
    if visible_count < 1:
        raise ValueError("device_index: no device is visible")
    if visible_count == 1:
        return 0
    ordinals = chosen or range(visible_count)
    return ordinals[local_rank % len(ordinals)]


def device_uuid(kind: str, uuid: Any) -> str | None:
    """The UUID as NVML writes a card's, from any form that torch gives: without prefix, 32 digits, 16 bytes.

    A MIG slice gets the card's prefix as well: torch does not tell them apart (see `bare_uuid`).
    """
    text = uuid.hex() if isinstance(uuid, bytes) else str(uuid) if uuid else ""
    if re.fullmatch(r"[0-9a-fA-F]{32}", text):
        text = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return f"GPU-{text}" if kind == "cuda" and re.fullmatch(r"[0-9a-fA-F-]{36}", text) else text or None


def bare_uuid(uuid: str) -> str:
    """A UUID without its prefix (GPU-, MIG-, MIG-GPU-), in small letters: what two spellings have in common."""
    return re.sub(r"^((GPU|MIG)-)+", "", uuid.strip(), flags=re.IGNORECASE).lower()


def no_nvml(kind: str, rocm: str | None) -> str | None:
    """Why devices of torch's type `kind` cannot be watched over NVML, in one line; None for CUDA and for CPUs."""
    if kind == "cpu" or (kind == "cuda" and not rocm):
        return None
    name = "ROCm" if rocm else kind.upper()
    tool = {"ROCm": "amd-smi", "XPU": "xpu-smi"}.get(name)
    instead = f"; {tool} is not read by this version" if tool else ""
    what = (
        "use, memory, power, energy, temperature, clocks, PCIe, ECC and processes of devices are not measured"
    )
    return f"{name}: no NVML{instead}: {what}"


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set and change speed, by name. A value that looks like a secret is withheld."""
    return {name: _public(name, environ[name]) for name in sorted(environ) if _changes_speed(name)}


def biting(variables: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Of some variables those with a value that bites: name, value, what happens, what to do."""
    for name, bad, message, remedy in BITING:
        value = variables.get(name, "")
        if value and (bad is None or re.fullmatch(bad, value, re.IGNORECASE)):
            yield name, value, message, remedy


def _changes_speed(name: str) -> bool:
    return name not in NOT_SPEED and (name in SPEED_NAMES or name.startswith(SPEED_PREFIXES))


def _public(name: str, value: str) -> str:
    return WITHHELD if SECRET_NAME.search(name) or SECRET_VALUE.search(value) else value


def cache_folder() -> Path:
    """Where files are kept between runs. Raises UsageError for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "scalemark")
    except RuntimeError as error:
        raise UsageError(f"no cache: {error}; set XDG_CACHE_HOME to a folder that can be written") from None
