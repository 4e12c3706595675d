"""Findings about checkpoints: each mistake is named where its rows are, absent where they are not, and says what to do."""

import re

import msgspec
import pytest

from bench.checkpoint_records import AS_IT_IS, BY_DEFAULT, CUT
from bench.checks.checkpoints import TABLE, told
from tests.checkpoints import ABSENT, CORRUPT, NO_GROUP, UNSAFE, bad, load, save, some

DDP = {"saver": "ddp", "saver_ranks": 2}
MIB = 2**20
GOOD = (save(elsewhere={}), load(elsewhere={}), load("cpu", elsewhere={}))
KEYS = "2 missing keys, first 'a'; 2 unexpected keys, first 'module.a'"

SEEN = {
    "checkpoint-not-saved": (
        [save(outcome="failed", message="OSError: [Errno 28] No space left on device")],
        r"the state dict of single was not saved: OSError: \[Errno 28\] No space left on device",
    ),
    "checkpoint-not-loaded": (
        [bad("refused", "RuntimeError: something new", **DDP)],
        "the state dict of ddp on 2 was not loaded into single: RuntimeError: something new",
    ),
    "checkpoint-differs": (
        [load(equal=False, differing="model.bn.running_mean")],
        "loaded into single is not what was saved: the first tensor that differs is model.bn.running_mean",
    ),
    "checkpoint-other-device": (
        [load("none", "ddp", 4, elsewhere={f"rank {rank} on cuda:0": 725 * MIB for rank in (1, 2, 3)})],
        r"rank 1 on cuda:0 holds 725 MiB .* with map_location 'cpu': 3 ranks not on a device of their own",
    ),
    "checkpoint-absent-device": (
        [bad("refused", ABSENT, "none", saved_on="cuda:2"), load("cpu", saved_on="cuda:2")],
        "a file saved on cuda:2 does not open here with map_location none: .* it opens with cpu",
    ),
    "checkpoint-prefix": (
        [bad("mismatch", KEYS, AS_IT_IS, **DDP), load("cpu", prefix="stripped", **DDP)],
        "the state dict of ddp on 2 does not fit single as it is: 2 missing keys, first 'a'",
    ),
    "checkpoint-weights-only": (
        [bad("refused", UNSAFE, BY_DEFAULT, format="model")],
        "torch.load refuses a whole model unless told weights_only=False: since torch 2.6",
    ),
    "checkpoint-needs-group": (
        [bad("refused", NO_GROUP, "device", format="model", **DDP)],
        "a whole model saved inside DDP does not open under single",
    ),
    "checkpoint-cut-short": (
        [bad("refused", CORRUPT, CUT, made="cut short")],
        "a file that was cut short is refused: RuntimeError: PytorchStreamReader failed",
    ),
    "checkpoint-map-ignored": (
        [load("other dict", map_says="{'cuda:7': 'cuda:1'}", saved_on="cuda:0", elsewhere={})],
        r"map_location \{'cuda:7': 'cuda:1'\} for a file saved on cuda:0 was ignored without a word",
    ),
    "checkpoint-stand-ins": (
        [load(stand_in="reference DataParallel", elsewhere={})],
        "reference DataParallel",
    ),
    "checkpoint-no-accelerator": ([load()], "no accelerator here"),
}


def codes(rows):
    """Code -> the first finding."""
    found = {}
    for finding in told(rows):
        found.setdefault(finding.code, finding)
    return found


def test_every_finding_has_a_scenario():
    """The table of this file and that of the code name the same findings."""
    assert [code for code, *_ in TABLE] == list(SEEN)


@pytest.mark.parametrize("code", SEEN)
def test_a_mistake_is_named_with_its_remedy(code):
    """The finding stands in its level and says what was seen; without the rows of the mistake it is not there."""
    rows, message = SEEN[code]
    finding = codes(rows)[code]
    assert re.search(message, finding.message)
    assert len(finding.remedy) > 10
    assert code not in codes(GOOD)


def test_what_a_mistake_explains_is_no_problem_of_its_own():
    """Refusals that torch is known for are told once, under their own name, and not as loads that failed."""
    found = codes(some())
    assert "checkpoint-not-loaded" not in found
    assert [code for code, finding in found.items() if finding.level == "problem"] == ["checkpoint-not-saved"]


def test_a_mismatch_that_no_prefix_explains_is_a_problem():
    """Keys that differ in something else than one `module.` are not put down to it."""
    rows = [bad("mismatch", KEYS, AS_IT_IS, **DDP), bad("mismatch", KEYS, "cpu", **DDP)]
    assert "checkpoint-prefix" not in codes(rows)
    assert "(and 1 more like it)" in codes(rows)["checkpoint-not-loaded"].message


def test_the_remedy_of_a_prefix_depends_on_which_side_has_it():
    """A wrapped state into a bare model is stripped; a bare one into a wrapped model is loaded before wrapping."""
    into = {"into": "ddp", "ranks": 2}
    bare = [bad("mismatch", KEYS, AS_IT_IS, **into), load("cpu", "ddp", 2, prefix="added")]
    assert "before wrapping" in codes(bare)["checkpoint-prefix"].remedy
    assert "take off exactly one" in codes(SEEN["checkpoint-prefix"][0])["checkpoint-prefix"].remedy


def test_a_model_that_cannot_be_pickled_has_a_remedy_of_its_own():
    """No disk is blamed for a class inside a function."""
    rows = [
        save(
            form="model",
            outcome="failed",
            message="AttributeError: Can't pickle local object 'f.<locals>.Net'",
        )
    ]
    assert "top level of a module" in codes(rows)["checkpoint-not-saved"].remedy


def test_one_rank_beyond_its_own_device_is_one():
    """The sentence counts ranks, not rows."""
    row = msgspec.structs.replace(load("none", "ddp", 2), elsewhere={"rank 1 on cuda:0": MIB})
    assert "1 rank not on a device of its own" in codes([row, row])["checkpoint-other-device"].message


def test_lines_that_cannot_be_read_are_told():
    """Their number is said; where there are none, nothing is."""
    assert "2 lines of checkpoints.jsonl" in told((), broken=2)[0].message
    assert told(()) == ()
