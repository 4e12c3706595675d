"""A user's model that does not train alike everywhere, in a chosen way: what `scalemark verify` has to find."""

import os
import signal

import torch
from torch import nn
from torch.utils.data import Dataset, DistributedSampler

from bench.workload import Workload


class Numbers(Dataset):
    """`length` inputs of eight numbers and their targets, the same for the same index, moved by `shift`."""

    def __init__(self, length=64, shift=0.0):
        self.length, self.shift = length, shift

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        inputs = torch.randn(8, generator=torch.Generator().manual_seed(index)) + self.shift
        return inputs, inputs[:2].sin()


class Net(nn.Module):
    """Two layers, with BatchNorm between them where asked for."""

    def __init__(self, norm, twist):
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.last = nn.Linear(6, 2)
        self.twist = twist

    def forward(self, x):
        return self.last(self.norm(self.twist(self.first(x))).tanh())


class Detached(nn.Module):
    """Gives no gradient to what lies before it, on rank 1."""

    def forward(self, x):
        return x.detach() + 0 * x if int(os.environ.get("RANK", 0)) == 1 else x


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Gathering(nn.Module):
    """Has a collective of its own in its forward pass."""

    def forward(self, x):
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(x.detach().clone())
        return x


class Single32(nn.Module):
    """Computes in float32, whatever it is given."""

    def forward(self, x):
        return x.float().sigmoid().to(x.dtype)


class Fixed32(nn.Module):
    """Multiplies by a matrix that stays in float32."""

    def forward(self, x):
        return x @ torch.eye(6, dtype=torch.float32)


TWISTS = {
    "no-double": Fixed32,
    "detached": Detached,
    "noisy": Noisy,
    "gathering": Gathering,
    "float32": Single32,
}


# chosen by the seed: cells that differ in it need one look at the model before the study, not one each
FAULTS = (
    *("none", "weights", "detached", "half", "data", "length"),
    *("sampler", "overlap", "gathering", "plain-bn", "dies"),
)
built = [0]


def mean_square(model, batch):
    inputs, targets = batch
    return ((model(inputs) - targets) ** 2).mean()


def coupled(model, batch):
    """No mean over samples: every sample is held against the mean of the batch."""
    inputs, targets = batch
    outputs = model(inputs)
    return ((outputs - outputs.mean(0)) ** 2).mean() + ((outputs - targets) ** 2).mean()


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def build(case):
    fault = case.model_args.get("fault") or FAULTS[case.seed % len(FAULTS)]
    rank = int(os.environ.get("RANK", 0))
    dataset = Numbers()
    if fault == "weights":
        torch.manual_seed(case.seed + rank)
    if fault == "world" and os.environ.get("WORLD_SIZE") != "1":
        torch.manual_seed(case.seed + 1)
    if fault == "dies" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "twice":  # another model each time it is built
        built[0] += 1
        torch.manual_seed(case.seed + built[0])
    if fault == "data" and rank == 1:
        dataset = Numbers(shift=1.0)
    if fault == "length" and rank == 1:
        dataset = Numbers(length=128)
    if fault == "sampler":
        DistributedSampler.set_epoch = lambda self, epoch: None
    if fault == "overlap":
        DistributedSampler.__iter__ = lambda self: iter(range(self.num_samples))
    if fault == "half":  # half the gradient of one tensor stays on its rank
        from torch.nn.parallel import DistributedDataParallel

        plain = DistributedDataParallel.forward
        DistributedDataParallel.forward = lambda self, *a, **k: _local(self, plain, *a, **k)
    if fault == "plain-bn":
        import bench.strategies._ddp as wrapping

        wrapping.convert = lambda model, accelerated: model
    net = Net(norm=bool(case.model_args.get("norm")), twist=TWISTS.get(fault, nn.Identity)())
    loss = coupled if fault == "coupled" else mean_square
    return Workload(net, dataset=dataset, loss=loss, optimizer=adam)


def _local(self, plain, *args, **kwargs):
    """Gradients are never exchanged: each rank trains on its own."""
    with self.no_sync():
        return plain(self, *args, **kwargs)
