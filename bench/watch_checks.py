"""Mistakes of training loops that `bench.watch` can see: one table of texts, and what each is seen by."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

SUITE = "watch"  # what a watched study says instead of a suite's name
MODEL = "watch:"  # before the class, as the name of a watched model
PREFIX = "watch sees: "  # begins such a text among the warnings of a rank
LARGE = 0.10  # of a step: from here on waiting for input is worth a word
UNUSED = (
    "no batch of watched.loader(...) was asked for; write the loop as: for batch in watched.loader(loader):"
)
_WAITING = "num_workers=0: {waited:.0%} of a step is waiting while the training process makes the batch"
_CPUS = "(CPUs here: {cpus}, ranks: {local_ranks})"


class Mistake(NamedTuple):
    """What is said, and what to do about it: both in one short sentence."""

    message: str
    remedy: str

    def text(self, **facts: object) -> str:
        """One line for a rank's warnings, its facts filled in."""
        return f"{PREFIX}{self.message}; {self.remedy}".format(**facts)


MISTAKES = {
    "no-group": Mistake(
        "WORLD_SIZE is {world_asked}, but this process is in no group with others: it trains a model of its own",
        "call init_process_group() without world_size and rank, and wrap the model in DistributedDataParallel",
    ),
    "not-wrapped": Mistake(
        "{world} ranks train a plain {model}, and their parameters differ: every rank trains a model of its own",
        "wrap the model in DistributedDataParallel, also where there is one device",
    ),
    "wrong-device": Mistake(
        "the model is on {device}, but LOCAL_RANK is {local_rank}: ranks share a device and leave another idle",
        "call torch.cuda.set_device(LOCAL_RANK), move the model there, and wrap it with device_ids=[LOCAL_RANK]",
    ),
    "same-data": Mistake(
        "{world} ranks, and the loader's {sampler} does not share the data set: every rank reads all of it",
        "give the loader sampler=DistributedSampler(dataset), or every rank a data set of its own",
    ),
    "set-epoch": Mistake(
        "the sampler's epoch stayed {epoch} over {passes} passes: every epoch has the same order",
        "call sampler.set_epoch(epoch) before each epoch",
    ),
    "zero-grad": Mistake(
        "gradients of the last optimizer step were still there in the next backward: they add up",
        "call optimizer.zero_grad() once for every optimizer.step()",
    ),
    "rebuilt-optimizer": Mistake(
        "the optimizer was built anew {rebuilt} times inside the loop: its momentum is lost each time",
        "build it once, before the loop",
    ),
    "no-step": Mistake(
        "no optimizer stepped in {steps} steps: nothing is learnt",
        "call optimizer.step() after backward, on a torch optimizer",
    ),
    "sync-bn-partly": Mistake(
        "{synced} of {norms} BatchNorm layers are SyncBatchNorm",
        "convert the whole model by convert_sync_batchnorm(model), before it is wrapped",
    ),
    "sync-bn-alone": Mistake(
        "SyncBatchNorm under {wrapper} has no process group: it acts as plain BatchNorm",
        "train under DistributedDataParallel, or leave the layers as they are",
    ),
    "no-workers": Mistake(_WAITING, f"raise num_workers, to {{free}} at most {_CPUS}"),
    "threads-everywhere": Mistake(
        _WAITING, f"try num_workers=1 with OMP_NUM_THREADS={{fewer}}, and watch again {_CPUS}"
    ),
    "no-free-cpu": Mistake(
        _WAITING, f"make the batches cheaper, or use fewer ranks: workers would find no CPU free {_CPUS}"
    ),
}


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank saw of its loop."""

    steps: int
    world: int  # ranks of the process group
    world_asked: int  # WORLD_SIZE of the environment
    local_rank: int
    model: str  # class of the model, without what wraps it
    wrapped: bool  # in something that exchanges gradients
    agreed: bool | None = None  # parameters equal on all ranks after the steps; None: not known
    wrapper: str
    device: str
    device_index: int | None  # None on CPU
    device_count: int
    sampler: str | None  # class of a sampler that shares nothing between ranks
    epochs: tuple[
        int, ...
    ]  # the sampler's epoch as each pass began; empty where it has none, or does not shuffle
    gradients_kept: bool
    optimizer_steps: int
    rebuilt: int
    norms: int
    synced: int
    num_workers: int | None
    cpus: int  # usable on this node, by all its ranks
    local_ranks: int
    threads: int  # of the rank, for its own work
    waited: float  # share of data_wait in a step


def mistakes(seen: Seen) -> dict[str, str]:
    """The mistakes of a loop by code, as lines for its record, the gravest first."""
    passes = {"passes": len(seen.epochs), "epoch": next(iter(seen.epochs), None)}
    cpus = {"free": _free(seen), "fewer": _share(seen) - 1}
    facts = msgspec.structs.asdict(seen) | passes | cpus
    return {code: MISTAKES[code].text(**facts) for code in _codes(seen)}


def remedy_of(text: str) -> tuple[str, str]:
    """A line of a record as its message, without the prefix, and its remedy."""
    message, _, remedy = text.removeprefix(PREFIX).rpartition("; ")
    return message, remedy


def waits_without_workers(text: str) -> bool:
    """Whether a line of a record is of waiting for input: what the finding `input-bound` is of, too."""
    return text.startswith(f"{PREFIX}{_WAITING.partition(' ')[0]} ")


def same_epoch(epochs: tuple[int, ...]) -> bool:
    """Whether a sampler's epoch stood still over two passes or more."""
    return len(epochs) > 1 and len(set(epochs)) == 1


def _codes(seen: Seen) -> Iterator[str]:
    alone = seen.world_asked > 1 and seen.world == 1
    if alone:
        yield "no-group"
    if seen.world > 1 and not seen.wrapped and seen.agreed is False:
        yield "not-wrapped"
    if _elsewhere(seen):
        yield "wrong-device"
    if seen.world > 1 and seen.sampler:
        yield "same-data"
    if same_epoch(seen.epochs):
        yield "set-epoch"
    if seen.gradients_kept:
        yield "zero-grad"
    if seen.rebuilt:
        yield "rebuilt-optimizer"
    if not seen.optimizer_steps:
        yield "no-step"
    if 0 < seen.synced < seen.norms:
        yield "sync-bn-partly"
    if seen.synced and seen.world == 1 and (alone or seen.wrapper == "DataParallel"):
        yield "sync-bn-alone"
    if seen.num_workers == 0 and seen.waited > LARGE:
        yield "no-workers" if _free(seen) > 0 else "threads-everywhere" if _share(seen) > 1 else "no-free-cpu"


def _share(seen: Seen) -> int:
    """CPUs to a rank."""
    return seen.cpus // seen.local_ranks


def _free(seen: Seen) -> int:
    """CPUs to a rank beside its own work, which is all its threads' where it computes on the CPU."""
    return _share(seen) - (seen.threads if seen.device == "cpu" else 1)


def _elsewhere(seen: Seen) -> bool:
    """Whether this rank's model is on the device of another rank."""
    if seen.device_index is None or seen.world_asked == 1 or seen.device_count < 2:
        return False
    return seen.device_index != seen.local_rank % seen.device_count
