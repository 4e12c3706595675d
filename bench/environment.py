"""What environment variables say: which devices are visible, which one a rank takes, what changes speed."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# What starts like one of these, and a few single names.
SPEED_PREFIXES = (
    "NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "OMPI_", "RCCL_", "CCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "OMP_",
    "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "VECLIB_", "NUMEXPR_", "ONEDNN_", "DNNL_", "CUDNN_", "CUBLAS_",
    "MIOPEN_", "HSA_", "HIP_", "ROCR_", "MALLOC_", "TCMALLOC_",
)  # fmt: skip
SPEED_NAMES = (
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES",
    "CUDA_MODULE_LOADING", "CUDA_CACHE_DISABLE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "NVIDIA_TF32_OVERRIDE",
    "ZE_AFFINITY_MASK", "LD_PRELOAD", "GLIBC_TUNABLES", "PYTHONMALLOC",
)  # fmt: skip
NOT_SPEED = ("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TORCH_CUDA_ARCH_LIST")
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|PRIVATE|_KEY$|AUTH", re.IGNORECASE
)
SECRET_VALUE = re.compile(
    r"://[^/\s]*:[^/\s]*@|\b(hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_\-.]{8,}"
    r"|(token|secret|passw(or)?d|api_?key)\s*[=:]|BEGIN [A-Z ]*PRIVATE KEY",
    re.IGNORECASE,
)
WITHHELD = "(withheld)"


def parse_visible(value: str | None) -> list[str] | None:
    """Entries of CUDA_VISIBLE_DEVICES in order, as text; None where the variable is unset: all devices.

    As the driver reads it: the first entry that is no index, GPU- or MIG- name, or is of another form
    than the first one, ends the list ("0,-1,2" is ["0"]); an entry given twice leaves nothing visible.
    Never raises.
    """
    if value is None:
        return None
    entries: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if _form(entry) is None or (entries and _form(entry) != _form(entries[0])):
            break
        if entry in entries:
            return []
        entries.append(entry)
    return entries


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
    """The UUID as NVML writes it; torch leaves out the prefix."""
    text = str(uuid) if uuid else ""
    return f"GPU-{text}" if kind == "cuda" and re.fullmatch(r"[0-9a-fA-F-]{36}", text) else text or None


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set and change speed, by name. A value that looks like a secret is withheld."""
    return {name: _public(name, environ[name]) for name in sorted(environ) if _changes_speed(name)}


def _changes_speed(name: str) -> bool:
    return name not in NOT_SPEED and (name in SPEED_NAMES or name.startswith(SPEED_PREFIXES))


def _public(name: str, value: str) -> str:
    return WITHHELD if SECRET_NAME.search(name) or SECRET_VALUE.search(value) else value
