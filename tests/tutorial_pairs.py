"""Runs every pair of docs/from-the-tutorial.md: the wrong line and the right one, to the letter.

    python tests/tutorial_pairs.py PAGE FOLDER

Lines that need a process group run in two gloo ranks, the others alone. What came of them goes to FOLDER as
JSON, `alone.json`, `rank0.json` and `rank1.json`: {id: {"wrong": ..., "right": ...}}.
"""

import contextlib
import io
import itertools
import json
import multiprocessing
import os
import re
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from bench import watch_study
from bench.watch import watch
from tests.hosts import cpu_host

FENCE = r"```(python|sh) {side}\n(.*?)^```"
ALONE, TOGETHER = {}, {}
NUMBERS = itertools.count()


def entries(page):
    """id -> text of each entry of the page, in its order."""
    parts = re.split(r"^### `([a-z-]+)`: .+\n", page, flags=re.M)[1:]
    return {
        name: re.split(r"^## ", text, flags=re.M)[0]
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def block(text, side):
    """The wrong or the right lines of an entry."""
    return re.search(FENCE.format(side=side), text, re.S | re.M)[2]


def alone(function):
    ALONE[function.__name__.replace("_", "-")] = function
    return function


def together(function):
    TOGETHER[function.__name__.replace("_", "-")] = function
    return function


def carry_out(lines, **names):
    """Execute lines as a script would have them; returns its names, or the exception as one text."""
    known = globals() | names
    try:
        exec(compile(lines, "lines", "exec"), known)
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"}
    return {name: value for name, value in known.items() if globals().get(name) is not value}


def seen_by_watch(model, train):
    """What bench.watch prints of the loop `train(watched)`, on the rank that prints."""
    said = io.StringIO()
    output = Path(sys.argv[2]) / f"watched-{os.getpid()}-{next(NUMBERS)}"
    with contextlib.redirect_stderr(said), watch(model, output=str(output)) as watched:
        train(watched)
    assert "no study is written" not in said.getvalue(), said.getvalue()
    return [line.removeprefix("scalemark: ") for line in said.getvalue().splitlines() if "watch sees" in line]


def steps(model, loader, optimizer=None):
    """A loop without a mistake of its own."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, _ in loader:
        optimizer.zero_grad()
        model(inputs.float().reshape(-1, 1).expand(-1, 4)).sum().backward()
        optimizer.step()


class Numbers(Dataset):
    """Its items are their own index, and the process that loaded them. It remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.asked.append(index)
        return index, os.getpid()


def net():
    """Equal on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


# Alone


@alone
def device_counts(lines):
    made = carry_out(lines)
    return {"raised": made.get("raised"), "devices": made.get("devices")}


@alone
def local_rank_from_rank(lines):
    """The sixth of eight ranks: the second one of the second node of four devices."""
    os.environ.update(RANK="5", LOCAL_RANK="1", WORLD_SIZE="8", LOCAL_WORLD_SIZE="4")
    index = carry_out(lines)["device"].index
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    return {"device": index}


@alone
def optimizer_in_the_loop(lines):
    """Adam counts its steps: it has forgotten them where it was made anew."""
    model, made = nn.Linear(4, 1), {}

    def train(watched):
        batches = watched.loader([torch.ones(2, 4)] * 5)
        made.update(carry_out(lines, model=model, loader=batches, loss_of=torch.sum))

    said = seen_by_watch(model, train)
    return {"steps": [int(state["step"]) for state in made["optimizer"].state.values()], "said": said}


@alone
def no_zero_grad(lines):
    """The same batch twice, and weights that stay: the second gradient must be the first."""
    model, seen = nn.Linear(4, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_post_hook(lambda *_: seen.append(float(model.weight.grad.sum())))

    def train(watched):
        batches = watched.loader([torch.ones(2, 4)] * 2)
        carry_out(lines, model=model, optimizer=optimizer, loader=batches, loss_of=torch.sum)

    return {"said": seen_by_watch(model, train), "gradients": seen}


@alone
def workers_are_processes(lines):
    """Two workers would be asked for by each of two ranks of a node of two CPUs."""
    dataset = Numbers()
    loader = carry_out(lines, dataset=dataset, os=Two, local_world_size=2)["loader"]
    pids = {int(pid) for batch in loader for pid in batch[1]}
    return {"own process": pids == {os.getpid()}, "processes": len(pids), "remembered": len(dataset.asked)}


NUMBERED = [(torch.arange(2), 0)] * 4  # batches for a loop that is to be watched


class Two:
    """os, as on a node of two CPUs."""

    @staticmethod
    def cpu_count():
        return 2

    @staticmethod
    def sched_getaffinity(_):
        return {0, 1}


@alone
def pinned_without_end(lines):
    made = carry_out(lines, loader=DataLoader(Numbers()), dataset=Numbers())
    return {"raised": made.get("raised"), "pinned": "raised" not in made and pinned(made["loader"])}


@alone
def syncbn_on_cpu(lines):
    """Without a process group SyncBN computes what BatchNorm computes."""
    made = carry_out(lines, model=net())
    inputs = torch.randn(6, 4)
    return {"layers": synced(made["model"]), "equal": torch.equal(made["model"](inputs), net()(inputs))}


def pinned(loader):
    return any(index.is_pinned() for index, _ in loader)


def synced(model):
    return sum(isinstance(layer, nn.SyncBatchNorm) for layer in model.modules())


# In two ranks


@together
def device_id(lines):
    join()
    made = carry_out(lines, model=nn.Linear(4, 1), local_rank=dist.get_rank())
    return {"raised": made.get("raised"), "wrapper": type(made.get("model")).__name__}


@together
def rank_before_init(lines):
    made = carry_out(lines)
    return {"raised": made.get("raised"), "rank": made.get("rank")}


@together
def get_local_rank(lines):
    join()
    made = carry_out(lines)
    return {"raised": made.get("raised"), "local_rank": made.get("local_rank")}


@together
def syncbn_under_dp(lines):
    """No process group, no synchronisation: DataParallel's SyncBN is BatchNorm. The right lines have a group."""
    if "DDP" in lines:
        join()
    made, inputs = carry_out(lines, model=net(), device_ids=None), torch.randn(6, 4)
    if "raised" in made:
        return {"raised": made["raised"]}
    equal = torch.equal(made["model"](inputs), net()(inputs))
    said = seen_by_watch(made["model"], lambda watched: steps(made["model"], watched.loader(NUMBERED)))
    return {"layers": synced(made["model"]), "equal": equal, "said": said}


@together
def world_size_of_one_node(lines):
    """Two nodes of one device each: both have local rank 0. How many ranks does a sum see?"""
    os.environ["LOCAL_RANK"] = "0"
    carry_out(lines, n_gpus=1, local_rank=0)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    model = DDP(nn.Linear(4, 1))
    said = seen_by_watch(model, lambda watched: steps(model, watched.loader(NUMBERED)))
    return {"world": dist.get_world_size(), "rank": dist.get_rank(), "seen": int(ones), "said": said}


@together
def backend_ucci(lines):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = carry_out(lines)
    return {"raised": made.get("raised"), "backend": dist.get_backend() if dist.is_initialized() else None}


@together
def ddp_when_many(lines):
    """Ranks start with equal weights and see other samples: are the weights still equal afterwards?"""
    join()
    torch.manual_seed(0)
    model = carry_out(lines, model=nn.Linear(4, 1), device_ids=None)["model"]
    sampler = DistributedSampler(Numbers())
    loader = DataLoader(Numbers(), sampler=sampler)
    said = seen_by_watch(model, lambda watched: steps(model, watched.loader(loader)))
    return {"wrapper": type(model).__name__, "weight": next(model.parameters()).sum().item(), "said": said}


@together
def shuffle_and_sampler(lines):
    """And the usual repair of it: shuffle stays, the sampler goes."""
    join()
    made = carry_out(lines, dataset=Numbers(), world_size=2, rank=dist.get_rank())
    loader = made.get("loader") or DataLoader(Numbers(), shuffle=True)
    model = DDP(nn.Linear(4, 1))
    seen = [int(index) for batch in loader for index in batch[0]]
    said = seen_by_watch(model, lambda watched: steps(model, watched.loader(loader)))
    return {"raised": made.get("raised"), "seen": sorted(seen), "said": said}


@together
def set_epoch(lines):
    """The order of the samples in each of two epochs."""
    join()
    orders, model = [], DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(loader):
        orders.append([])
        steps(model, (orders[-1].append(int(batch[0])) or batch for batch in loader), optimizer)

    def run(watched):
        sampler = DistributedSampler(Numbers())
        loader = watched.loader(DataLoader(Numbers(), sampler=sampler))
        carry_out(lines, sampler=sampler, loader=loader, train=train)

    return {"said": seen_by_watch(model, run), "orders": orders}


@together
def syncbn_after_wrapping(lines):
    """Where the refusal comes on CPU: when it is wrapped, or not before it runs."""
    join()
    made = carry_out(lines, model=net(), device_ids=None)
    if "raised" in made:
        return {"wrapped": made["raised"]}
    return {
        "wrapped": None,
        "forward": carry_out("model(torch.randn(6, 4))", model=made["model"]).get("raised"),
    }


def join():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))


def rank(number, ports, gate, page, folder):
    """One of two ranks, with the environment that torchrun gives. Groups are formed anew for every run."""
    found = {}
    for name, text in entries(page).items():
        for side in ("wrong", "right"):
            if name in TOGETHER:
                os.environ.update(
                    RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[name, side]), GLOO_SOCKET_IFNAME="lo",
                    TORCHELASTIC_USE_AGENT_STORE="True",
                )  # fmt: skip
                found.setdefault(name, {})[side] = TOGETHER[name](block(text, side))
                gate.wait(60)  # who leaves a group while the other still enters it leaves that one waiting
                if dist.is_initialized():
                    dist.destroy_process_group()
    (folder / f"rank{number}.json").write_text(json.dumps(found))


def main():
    page, folder = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
    watch_study.probe_host = cpu_host  # a look at the real one takes seconds a process
    keys = [(name, side) for name in TOGETHER for side in ("wrong", "right")]
    stores = {key: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for key in keys}
    ports = {key: store.port for key, store in stores.items()}
    fork = multiprocessing.get_context("fork")
    gate = fork.Barrier(2)
    ranks = [fork.Process(target=rank, args=(n, ports, gate, page, folder)) for n in range(2)]
    for process in ranks:
        process.start()
    found = {
        name: {side: ALONE[name](block(text, side)) for side in ("wrong", "right")}
        for name, text in entries(page).items()
        if name in ALONE
    }
    (folder / "alone.json").write_text(json.dumps(found))
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
