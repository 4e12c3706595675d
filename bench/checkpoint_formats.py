"""Three ways to write a training's state to a disk, and to get it back: state dict, whole model, torch's dcp."""

import contextlib
import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

from bench.checkpoint_prefix import aligned
from bench.checkpoint_records import File, Format, Load, Prefix, location
from bench.checkpoint_state import bare
from bench.errors import BenchError

ABSENT = 2  # ordinal of the device that a file "from elsewhere" was saved on

_tag: str | None = None


def _pretend(storage: Any) -> str | None:
    """The location tag of a storage while a file from elsewhere is written; else torch's own taggers speak."""
    return _tag


# torch asks taggers in the order of the first argument; its own begin with 10. Reading is left to torch.
torch.serialization.register_package(5, _pretend, lambda storage, tag: None)


@contextlib.contextmanager
def tagged(tag: str | None) -> Iterator[None]:
    """What torch.save writes inside has this location, as if its tensors had been there; None: where they are."""
    global _tag
    _tag = tag
    try:
        yield
    finally:
        _tag = None


def absent_device() -> str:
    """A device that this host does not have."""
    return f"cuda:{max(ABSENT, torch.cuda.device_count())}"


def write(form: Format, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write model and optimizer as users do; with `dcp` a collective of all ranks.

    The state dict of the wrapped model keeps its `module.`, and a whole model its wrapper. torch's get_state_dict
    takes off DDP's prefix, and knows nothing of DataParallel: dcp gets the module inside.
    """
    if form == "dcp":
        # fsync is timed apart, as for the others; dcp.save does it by default
        writer = FileSystemWriter(path, sync_files=False)
        with _alone() as no_dist:
            save_dcp(_dcp_state(model, optimizer), storage_writer=writer, no_dist=no_dist)
        return
    held = model if form == "model" else model.state_dict()
    torch.save({"model": held, "optimizer": optimizer.state_dict()}, path)


def cut_short(path: Path) -> None:
    """Leave the first half of a file, as a save does that was killed."""
    os.truncate(path, path.stat().st_size // 2)


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Return when the disk has the file, or all files of the folder, and their names."""
    inside = sorted(path.iterdir()) if path.is_dir() else []
    for one in [*inside, path, path.parent]:
        handle = os.open(one, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def on_disk(path: Path) -> list[Path]:
    """The files of a checkpoint."""
    return sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]


def sha256(path: Path) -> str:
    """Of a file's contents, or of the names and contents of a folder's files."""
    if path.is_dir():
        inside = "".join(f"{sha256(one)} {one.name}\n" for one in on_disk(path))
        return hashlib.sha256(inside.encode(errors="surrogateescape")).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def vouch(folder: Path, file: File) -> None:
    """Raise BenchError unless this run wrote the file: it lies in the run's own folder, and nobody has changed it.

    Unpickling a whole model, or dcp's `.metadata`, runs whatever code the file names.
    """
    path = folder / file.name
    linked = any(one.is_symlink() for one in (path, *on_disk(path)))
    inside = path.resolve().is_relative_to(folder.resolve()) and not linked
    if file.sha256 is None or not inside or sha256(path) != file.sha256:
        raise BenchError(f"{file.name}: not what this run wrote: it is not unpickled")


def read(load: Load, path: Path, file: File, here: torch.device) -> Any:
    """What torch.load gives, under the load's map_location. What it may unpickle has been vouched for.

    The environment's TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD changes the default, and nothing that is said.
    """
    where: Any = location(load.map_location, file.saved_on, str(here))
    if load.format == "state_dict":
        return torch.load(path, map_location=where, weights_only=True)
    if load.default_weights_only:
        return torch.load(path, map_location=where)
    return torch.load(path, map_location=where, weights_only=False)


def fill(
    model: nn.Module, optimizer: torch.optim.Optimizer, found: dict[str, Any], fix: bool
) -> tuple[Prefix, str | None]:
    """Bring what was read into model and optimizer; says what became of the prefix, and what wrapper came.

    Raises RuntimeError, as torch does, where keys or shapes differ.
    """
    state, came_as = found["model"], None
    if isinstance(state, nn.Module):
        came_as = type(state).__name__ if bare(state) is not state else None
        state = state.state_dict()
    prefix: Prefix = "as it is"
    if fix:
        state, prefix = aligned(state, model.state_dict().keys())
    model.load_state_dict(state)
    optimizer.load_state_dict(found["optimizer"])
    return prefix, came_as


def fill_from_dcp(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """torch.distributed.checkpoint reads into tensors that are there, and splits them anew: a collective."""
    state = _dcp_state(model, optimizer)
    with _alone() as no_dist:
        load_dcp(state, storage_reader=FileSystemReader(path), no_dist=no_dist)
    set_state_dict(
        _for_dcp(model),
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """Whether there is no process group; torch warns of that even where it is told."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield not dist.is_initialized()


def _dcp_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    parameters, state = get_state_dict(_for_dcp(model), optimizer)
    return {"model": parameters, "optimizer": state}


def _for_dcp(model: nn.Module) -> nn.Module:
    return model if type(model).__name__ == "DistributedDataParallel" else bare(model)
