"""Where one rank stands: its ranks, its node, its devices. LOCAL_RANK decides the device, never RANK."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from bench.binding import device_numa, pci_address
from bench.environment import device_index
from bench.errors import BenchError, UsageError
from bench.plugins import Strategy
from bench.records import Launch


@dataclass(frozen=True)
class Place:
    """One rank's place. `devices` are the ordinals it drives; empty on CPU."""

    rank: int
    local_rank: int
    world_size: int
    node: int
    device: torch.device
    devices: tuple[int, ...]

    @property
    def accelerated(self) -> bool:
        """Whether this rank drives an accelerator."""
        return self.device.type != "cpu"

    @property
    def module(self) -> Any:
        """torch.cuda, torch.xpu, ...: the device's own module."""
        return torch.get_device_module(self.device)

    @property
    def numa(self) -> int | None:
        """NUMA node of the device, where the system says so."""
        if self.device.type != "cuda":
            return None
        return device_numa(pci_address(torch.cuda.get_device_properties(self.device)))


def find_place(launch: Launch, strategy: Strategy) -> Place:
    """Read the place from the environment that the agent set, and take the device."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device, devices = _devices(launch, strategy, local_rank)
    if devices:
        # before anything allocates: a context on device 0 in every rank is a classic leak
        torch.accelerator.set_device_index(devices[0])
    return Place(
        rank=rank,
        local_rank=local_rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        node=int(os.environ["GROUP_RANK"]),
        device=device,
        devices=devices,
    )


def _devices(launch: Launch, strategy: Strategy, local_rank: int) -> tuple[torch.device, tuple[int, ...]]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    found = accelerator.type if accelerator is not None else "cpu"
    if found != launch.device_kind:
        raise BenchError(
            f"this host has {launch.device_kind} devices and this rank finds {found}: look at driver and"
            " CUDA_VISIBLE_DEVICES of the ranks"
        )
    if accelerator is None:
        return torch.device("cpu"), ()
    visible = torch.accelerator.device_count()
    chosen = launch.devices
    if strategy.single_process and launch.case.ranks > 1:
        devices = tuple(chosen or range(visible))[: launch.case.ranks]
        if len(devices) < launch.case.ranks:
            raise UsageError(f"{launch.case.ranks} devices asked for, {visible} visible: lower ranks")
    else:
        devices = (device_index(local_rank, visible, chosen),)
    return torch.device(accelerator.type, devices[0]), devices


def backend_for(launch: Launch, device: torch.device) -> str:
    """The collective backend: the case's, or the device's default; gloo where ranks share a device."""
    if launch.case.backend:
        return launch.case.backend
    if launch.oversubscribed or device.type == "cpu":
        return "gloo"
    return str(torch.distributed.get_default_backend_for_device(device))
