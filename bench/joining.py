"""A rank takes its place: its CPUs, threads, device and process group."""

import os
import time
from collections.abc import Callable, MutableSequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from bench import binding, plugins, progress, recipe
from bench.place import Place, backend_for, find_place
from bench.records import Launch


def enter(
    launch: Launch, strategy: plugins.Strategy, beat: MutableSequence[int]
) -> tuple[Place, float | None]:
    """Settle where this rank runs and, for a collective strategy, meet the others; the seconds that took."""
    case = launch.case
    place = find_place(launch, strategy)
    if case.cpu_binding is not None:
        binding.bind(case.cpu_binding, place.local_rank, strategy.processes(case), place.numa)
    _set_threads(case.threads or 1)
    recipe.set_precision(case)
    began = time.perf_counter()
    beat[progress.STATE] = progress.RENDEZVOUS
    if strategy.collective:
        _join(launch, place)
    rendezvous_s = time.perf_counter() - began if strategy.collective else None
    beat[progress.STATE] = progress.BUILDING
    return place, rendezvous_s


def _join(launch: Launch, place: Place) -> None:
    """Form the process group. One node talks over loopback; the time limit is the launch's own.

    gloo would offer the address that the host's name stands for, which may be loopback: it is told the interface.
    Ranks of several nodes meet in the study's store, under the launch's own name: it outlives every launch.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", launch.interface or "lo")
    backend = backend_for(launch, place.device)
    limit = timedelta(seconds=launch.case.timeout_s)
    how: dict[str, Any] = {"device_id": place.device} if backend in ("nccl", "xccl") else {}
    if launch.store is not None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
        how |= {
            "store": PrefixStore(launch.launch, store),
            "rank": place.rank,
            "world_size": place.world_size,
        }
    dist.init_process_group(backend, timeout=limit, **how)


def barrier(place: Place) -> Callable[[], None]:
    """What makes ranks wait for each other; nothing where there is one."""
    if not dist.is_initialized():
        return lambda: None
    token = torch.zeros(1, device=place.device)
    return lambda: dist.all_reduce(token)  # every rank has arrived when the sum is there


def slowest(step_s: np.ndarray, place: Place) -> np.ndarray:
    """The slowest rank's time of every step, the same on every rank, so that they decide alike."""
    if not dist.is_initialized():
        return step_s
    shared = torch.tensor(step_s, dtype=torch.float64, device=place.device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.cpu().numpy()


def _set_threads(threads: int) -> None:
    """Equal threads in every rank and in the base; the variable is for libraries that load later."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
