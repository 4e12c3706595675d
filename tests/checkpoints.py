"""Rows of checkpoints as a run on a two-core host gave them, for tests of what judges and shows them."""

from typing import Any

from bench.checkpoint_records import AS_IT_IS, BY_DEFAULT, CUT, MAPS, CheckpointRow

ABSENT = (
    "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you"
    " are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')"
)
UNSAFE = (
    "UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options"
)
NO_GROUP = (
    "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
)
CORRUPT = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory. This is an internal"


def save(saver: str = "single", ranks: int = 1, form: str = "state_dict", **fields: Any) -> CheckpointRow:
    """A save that went well."""
    plain: dict[str, Any] = {
        "kind": "save",
        "saver": saver,
        "saver_ranks": ranks,
        "saver_nodes": 1,
        "format": form,
        "writer": "rank 0",
        "saved_on": "cpu",
        "seconds": 0.02,
        "low_s": 0.019,
        "high_s": 0.03,
        "repeats": 5,
        "rank0_s": 0.018,
        "durable_s": 0.05,
        "bytes": 4_200_000,
        "files": 1,
        "extra_rss_bytes": 1_500_000,
        "tensors": 220,
    }
    return CheckpointRow(**plain | fields)


def load(way: str = "device", into: str = "single", into_ranks: int = 1, **fields: Any) -> CheckpointRow:
    """A load that went well, of a state dict of `single`."""
    plain: dict[str, Any] = {
        "kind": "load",
        "saver": "single",
        "saver_ranks": 1,
        "saver_nodes": 1,
        "format": "state_dict",
        "writer": "rank 0",
        "loader": into,
        "loader_ranks": into_ranks,
        "loader_nodes": 1,
        "way": way,
        "map_location": way if way in MAPS or way == "in place" else "cpu",
        "map_says": "'cpu'",
        "saved_on": "cpu",
        "seconds": 0.01,
        "low_s": 0.009,
        "high_s": 0.02,
        "repeats": 5,
        "rank0_s": 0.01,
        "cold_s": 0.04,
        "bytes": 4_200_000,
        "files": 1,
        "tensors": 220,
        "equal": True,
        "prefix": "as it is",
    }
    return CheckpointRow(**plain | fields)


def bad(
    outcome: str, message: str, way: str = "cpu", into: str = "single", ranks: int = 1, **fields: Any
) -> CheckpointRow:
    """A load that did not go well."""
    none = dict.fromkeys(("seconds", "low_s", "high_s", "rank0_s", "cold_s", "tensors", "equal", "prefix"))
    return load(way, into, ranks, outcome=outcome, message=message, repeats=0, **none | fields)


def some() -> tuple[CheckpointRow, ...]:
    """What single and DDP on two ranks saved, and what came of it in single."""
    ddp: dict[str, Any] = {"saver": "ddp", "saver_ranks": 2}
    elsewhere: dict[str, Any] = {"made": "location tag", "saved_on": "cuda:2"}
    return (
        save(),
        save(form="model"),
        save(form="dcp", seconds=0.12, durable_s=0.13),
        save("ddp", 2),
        save("ddp", 2, writer="every rank", files=2, bytes=8_400_000),
        save("ddp", 2, "dcp", outcome="failed", message="No space left on device", seconds=None, durable_s=None, bytes=None),
        *(load(way) for way in MAPS),
        load(AS_IT_IS),
        load("device", format="model"),
        bad("refused", UNSAFE, BY_DEFAULT, format="model"),
        load("in place", format="dcp", prefix=None, seconds=0.08),
        *(load(way, prefix="stripped", **ddp) for way in MAPS),
        bad("mismatch", "1 missing key, first 'a'; 1 unexpected key, first 'module.a'", AS_IT_IS, **ddp),
        bad("refused", NO_GROUP, "device", format="model", **ddp),
        load("device", "ddp", 2, **ddp),
        bad("refused", ABSENT, "none", **elsewhere),
        load("cpu", **elsewhere),
        bad("refused", CORRUPT, CUT, made="cut short"),
    )  # fmt: skip


def many(count: int = 40) -> tuple[CheckpointRow, ...]:
    """Saves under so many numbers of ranks."""
    return tuple(save("ddp", ranks, seconds=0.01 * ranks) for ranks in range(2, count + 2))
