"""Rank traces made by hand, for tests of what is computed from them."""

from bench.records import PHASES, Cut, Effective, RankMemory, RankTrace, Samples


def effective(**changes):
    """A DDP rank of two on CPU, as asked for."""
    facts = dict(  # noqa: C408
        wrapper="DistributedDataParallel", implementation="torch", world_size=2, backend="gloo", device="cpu",
        device_name=None, devices_used=1, threads=1, interop_threads=1, omp_num_threads="1", affinity=(0, 1),
        batch_norm_layers=0, sync_bn_layers=0, sync_bn=None, num_workers=0, pinned=False, prefetch_factor=None,
        persistent_workers=False, batch=4, parameters=10, gradient_bytes=40, optimizer="SGD", precision="float32",
        weights_hash="00",
    )  # fmt: skip
    return Effective(**facts | changes)


def trace(rank=0, step_s=(0.1,) * 10, first=2, samples=4, phases=None, **changes):
    """A rank with `samples` a step; all of a step is forward unless phases say otherwise."""
    n = len(step_s)
    columns = dict.fromkeys(PHASES, (0.0,) * n) | {"forward": tuple(step_s), "h2d": None} | (phases or {})
    counts = Samples(
        dataset_len=100,
        per_epoch=48,
        padded=0,
        dropped=4,
        seen=samples * n,
        in_window=samples * (n - first),
        epochs=1,
    )
    known = dict(  # noqa: C408
        launch="x", rank=rank, local_rank=rank, node=0, host="h", pid=1, status="ok", step_s=tuple(step_s),
        phases_s=columns, samples=(samples,) * n, cut=Cut(first=first, state="steady"), window_s=sum(step_s[first:]),
        effective=effective(), counts=counts, memory=RankMemory(),
    )  # fmt: skip
    return RankTrace(**known | changes)
