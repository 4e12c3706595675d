"""A user's model that fails in a chosen way, on a chosen rank, in the middle of training."""

import os
import resource
import signal
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from bench.workload import Workload, classification_loss

AT_STEP = 4


class Digits(Dataset):
    """Small random samples; `item` runs first for every item, `megabytes` makes each one larger."""

    def __init__(self, length=512, item=None, megabytes=0):
        self.length, self.item, self.megabytes = length, item, megabytes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.item:
            self.item()
        width = 8 + int(self.megabytes * 1e6 / 4)
        return torch.zeros(width), index % 4


class First8(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x[:, :8])


def build(case):
    fault, rank = case.model_args.get("fault"), case.model_args.get("rank", 1)
    here = int(os.environ.get("RANK", -1)) == rank
    length = 512
    if fault == "uneven" and here:
        length = 1024
    if fault in FACTORY:
        FACTORY[fault](here)
    item = spend_descriptors if fault == "fds" and here else None
    if fault in IN_WORKER and here:
        item = in_worker(IN_WORKER[fault])
    megabytes = case.model_args.get("megabytes", 0)
    steps = [0]

    def loss(model, batch):
        steps[0] += 1
        if fault == "warmup" and here and steps[0] == 1:
            time.sleep(0.5)
        if fault == "drift":
            time.sleep(0.02 + 0.001 * steps[0])
        if fault == "slow":
            time.sleep(1.2)
        if fault == "patient":  # says when it is in its steps, and gives the test time to do something
            print("patient in step", steps[0])
            time.sleep(0.3)
        if fault == "traced" and here and torch.autograd._profiler_enabled():
            fail()
        if here and steps[0] == AT_STEP and fault in FAULTS:
            FAULTS[fault]()
        return classification_loss(model, batch)

    return Workload(First8(), dataset=Digits(length, item, megabytes), loss=loss)


class in_worker:
    """Do something in the first loader worker when it has made a few samples."""

    def __init__(self, what, after=20):
        self.what, self.left = what, after

    def __call__(self):
        self.left -= 1
        if get_worker_info() is not None and get_worker_info().id == 0 and self.left == 0:
            self.what()


def deaf():
    """A worker that hears no SIGTERM, with a child that does not either."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(3600)


def spend_threads():
    """Up to what a control group allows; without one it ends, and the test fails."""
    for _ in range(5000):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def forked(here):
    """A factory that leaves a child behind, which holds what it has inherited."""
    if os.fork() == 0:
        time.sleep(3600)
        os._exit(0)


def twofold(here):
    """A factory that forks, and both go on."""
    os.fork()


def elsewhere(here):
    os.mkdir(f"away-{os.getpid()}")
    os.chdir(f"away-{os.getpid()}")


def raises(here):
    if here:
        fail()


def leaves(here):
    if here:
        sys.exit("no, thank you")


def spend_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(100))


def eat_memory():
    while True:
        held.append(bytearray(os.urandom(1 << 20)) * 32)


def fail():
    raise ValueError("planted <b>failure</b>")


def port():
    import socket

    taken = socket.create_server(("127.0.0.1", 0))
    socket.create_server(taken.getsockname())


held = []
FACTORY = {
    "factory_raises": raises,
    "factory_exits": leaves,
    "factory_always_exits": lambda here: sys.exit(0),
    "factory_prints": lambda here: print("x" * (1 << 20)),
    "factory_forks": forked,
    "factory_twofold": twofold,
    "factory_moves": elsewhere,
    "factory_binds": lambda here: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
}
IN_WORKER = {
    "worker_kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "worker_hang": lambda: time.sleep(3600),
    "worker_raise": fail,
    "worker_deaf": deaf,
}
FAULTS = {
    "threads": spend_threads,
    "raise": fail,
    "warmup": lambda: None,
    "exit": lambda: sys.exit(3),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "interrupt": lambda: os.kill(os.getpid(), signal.SIGINT),
    "thread": lambda: threading.Thread(target=time.sleep, args=(3600,)).start(),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "name": lambda: torch.cuda.device_counts(),
    "hang": lambda: time.sleep(3600),
    "memory": eat_memory,
    "port": port,
    "device_memory": lambda: (_ for _ in ()).throw(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
    ),
}
