"""Hosts for tests: facts made up for a case, never read from this machine."""

from bench.machine import Device, Host


def cpu_host(cpus=2, backends=("gloo",)):
    """A host without accelerators."""
    return Host(
        hostname="cpu", cpus_counted=cpus, cpus_affinity=cpus, cpus_usable=cpus, backends=list(backends),
        torch="2.13.0", compiler="g++", shm_free_bytes=8 << 30, shm_total_bytes=8 << 30,
    )  # fmt: skip


def gpu_host(devices=4, cpus=16):
    """A host with CUDA devices."""
    found = [
        Device(index=i, name="Card", kind="cuda", uuid=f"GPU-{i}", memory_bytes=80 << 30)
        for i in range(devices)
    ]
    return Host(
        hostname="gpu", cpus_counted=cpus, cpus_affinity=cpus, cpus_usable=cpus, backends=["gloo", "nccl"],
        torch="2.13.0", compiler="g++", accelerator="cuda", devices=found,
    )  # fmt: skip
