"""The reference implementations that stand in on CPU do what torch's own do on devices."""

import copy
import socket

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bench.strategies._reference_dp import ReferenceDataParallel  # noqa: E402


def normed():
    """A small network with BatchNorm, in float64."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2), nn.Flatten(),
        nn.Linear(2 * 4 * 4, 3),
    )  # fmt: skip
    return net.double()


def batch(count=8):
    """Inputs and targets, equal in every process."""
    random = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, 8, 8, generator=random, dtype=torch.float64)
    return x, torch.randn(count, 3, generator=random, dtype=torch.float64)


def synced_rank(rank, ranks, port, queue):
    """One rank of DDP with the reference SyncBN on its share of the batch; answers with what it came to."""
    import os

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from bench.strategies._sync_bn import convert

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model = DistributedDataParallel(convert(normed(), accelerated=False))
    x, y = batch()
    share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    ((model(x[share]) - y[share]) ** 2).mean().backward()
    state = {name: tensor.tolist() for name, tensor in model.module.state_dict().items()}
    queue.put((rank, [p.grad.tolist() for p in model.module.parameters()], state))
    dist.barrier()
    queue.close()
    queue.join_thread()
    os._exit(0)


def test_reference_syncbn_is_batchnorm_of_the_global_batch():
    """Two ranks with half the batch each: gradients, running statistics and keys are those of one with all of it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=synced_rank, args=(rank, 2, port, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    answers = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
    whole = normed()
    x, y = batch()
    ((whole(x) - y) ** 2).mean().backward()
    for _, gradients, state in answers:
        for ours, theirs in zip(gradients, whole.parameters(), strict=True):
            torch.testing.assert_close(
                torch.tensor(ours, dtype=torch.float64), theirs.grad, rtol=1e-9, atol=1e-12
            )
        assert list(state) == list(whole.state_dict())
        for name in ("1.running_mean", "1.running_var", "4.running_var"):
            expected = whole.state_dict()[name]
            torch.testing.assert_close(
                torch.tensor(state[name], dtype=torch.float64), expected, rtol=1e-9, atol=1e-12
            )


def test_reference_dataparallel_has_torchs_chunks_and_statistics_of_its_first_replica():
    """Three replicas take 3, 3 and 3 of 9 samples; running statistics come from the first, as in torch."""
    model = normed()
    wrapped = ReferenceDataParallel(copy.deepcopy(model), 3)
    x, _ = batch(9)
    wrapped(x)
    assert wrapped.chunks == (3, 3, 3)
    first = copy.deepcopy(model)
    first(x[:3])
    torch.testing.assert_close(wrapped.module[1].running_mean, first[1].running_mean)
    torch.testing.assert_close(wrapped.module[4].running_var, first[4].running_var)


def test_reference_dataparallel_normalises_a_replica_at_a_time():
    """BatchNorm under DataParallel sees a chunk, not the batch: outputs are those of the chunks."""
    model = normed()
    x, _ = batch(8)
    parts = torch.cat([copy.deepcopy(model)(part) for part in x.chunk(2)])
    torch.testing.assert_close(ReferenceDataParallel(copy.deepcopy(model), 2)(x), parts)


def test_replicas_run_at_the_same_time():
    """Two replicas that each sleep 0.2 s in forward are done well before 0.4 s."""
    import time

    class Sleepy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            time.sleep(0.2)
            return self.layer(x)

    wrapped = ReferenceDataParallel(Sleepy(), 2)
    began = time.perf_counter()
    wrapped(torch.ones(4, 2))
    parallel_s = time.perf_counter() - began
    began = time.perf_counter()
    wrapped.module(torch.ones(2, 2))
    wrapped.module(torch.ones(2, 2))
    assert parallel_s < 0.75 * (time.perf_counter() - began)


def test_an_exception_in_a_replica_reaches_the_caller():
    """What a replica raises is raised in the step, with its own type."""

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            raise ArithmeticError("planted")

    with pytest.raises(ArithmeticError, match="planted"):
        ReferenceDataParallel(Broken(), 2)(torch.ones(4, 2))


def test_outputs_that_cannot_be_gathered_are_refused():
    """A dict for an output is refused in one line that says what to return."""

    class Dicts(nn.Linear):
        def forward(self, x):
            return {"y": super().forward(x)}

    with pytest.raises(TypeError, match="return one tensor from forward"):
        ReferenceDataParallel(Dicts(2, 2), 2)(torch.ones(4, 2))
