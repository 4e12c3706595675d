"""`scalemark verify` over real ranks: what trains alike passes, each planted fault is found and named."""

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e import unequal
from tests.e2e.command import records, scalemark, suite

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent

CASE = """
[case]
model = "unequal:build"
data = "own"
strategy = "ddp"
ranks = 2
batch = 4
"""


def seeds(*faults):
    """The axis that plants these faults."""
    return f"seed = {[unequal.FAULTS.index(fault) for fault in faults]}\n"


def planted(way):
    """The fault that a way has."""
    return unequal.FAULTS[way["case"]["seed"]]


def verify(folder, text, *words):
    """Exit code and every way, by its name."""
    shutil.copy(HERE / "unequal.py", folder)
    code, out = scalemark(folder, "verify", suite(folder, CASE + text), "--json", *words)
    found = json.loads(out[out.index("{\n") :])
    return code, {way["name"]: way for way in found["ways"]}


def by_name(way):
    """A way's checks by their names."""
    return {check["name"]: check for check in way["checks"]}


def failed(way):
    """Names of a way's checks that failed."""
    return {check["name"] for check in way["checks"] if check["outcome"] == "fail"}


FAULTS = {
    "weights": ("weights", "first.weight", "between rank 0 and rank 1; DDP sends rank 0's to all"),
    "detached": ("gradients", "first.weight", "in step 1"),
    "half": ("gradients", "first.weight", "in step 1"),
    "data": ("data", None, "sample 0 of rank 1 is not that of rank 0"),
    "length": ("data", None, "64 samples on rank 0, 128 on rank 1"),
    "sampler": ("epochs", None, "set_epoch has no effect"),
    "overlap": ("samples", None, "sample 0 is seen 2 times (rank 0, 1); 32 of 64 never"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """Every planted fault over two ranks, one command for all."""
    text = f"[matrix]\n{seeds('gathering', *FAULTS)}"
    code, ways = verify(tmp_path_factory.mktemp("faulty"), text)
    return code, {planted(way): way for way in ways.values()}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_is_and_named(faulty, fault):
    """The check that looks there fails, with the tensor and the difference; those that have nothing to do with it pass."""
    name, tensor, told = FAULTS[fault]
    way = faulty[1][fault]
    check = by_name(way)[name]
    assert (way["outcome"], check["outcome"], check["tensor"]) == ("fail", "fail", tensor)
    assert told in check["detail"]
    if tensor:
        assert check["largest"] > 1e-3
    innocent = {"weights", "data", "samples", "epochs", "gradients"} - {name}
    assert not innocent & failed(way) - ({"epochs"} if fault == "overlap" else set())
    assert faulty[0] == 1


def test_ranks_that_never_exchange_gradients_end_apart(faulty):
    """Without averaging rank 1 holds other parameters than rank 0 after three steps: that is said too."""
    check = by_name(faulty[1]["half"])["parameters"]
    assert check["tensor"] == "first.weight"
    assert "ranks hold different parameters" in check["detail"]


def test_a_model_with_collectives_of_its_own_cannot_be_told(faulty):
    """One process cannot run it: no hang, no pass, the operation named."""
    way = faulty[1]["gathering"]
    assert way["outcome"] == "cannot tell"
    assert "collectives of its own (c10d::allreduce_)" in by_name(way)["gradients"]["detail"]


def test_syncbn_is_batchnorm_of_the_global_batch_and_its_absence_is_seen(tmp_path):
    """SyncBN passes where plain BatchNorm is a known difference; plain BatchNorm in its place fails in all that counts."""
    text = f"[matrix]\nmodel_args.norm = [true]\nsync_bn = [false, true]\n{seeds('none', 'plain-bn')}"
    code, ways = verify(tmp_path, text)
    assert code == 1
    found = {("sync_bn" in name, planted(way)): by_name(way) for name, way in ways.items()}
    good = found[True, "none"]
    assert {check["outcome"] for check in good.values()} == {"pass"}
    assert (
        "ReferenceSyncBatchNorm, a reference implementation, equal to the global"
        in good["batch norm"]["detail"]
    )
    assert found[False, "none"]["global batch"]["outcome"] == "known"
    assert "BatchNorm has the statistics of each replica" in found[False, "none"]["global batch"]["detail"]
    bad = found[True, "plain-bn"]
    for name in ("gradients", "global batch", "loss", "batch norm", "parameters"):
        assert bad[name]["outcome"] == "fail", name
    assert bad["batch norm"]["tensor"].startswith("output")


@pytest.mark.long
def test_every_strategy_trains_as_one_process_does(tmp_path):
    """DDP and its options, DataParallel, ZeRO and fully_shard, with and without accumulation: none fails, all are told."""
    text = """
    [matrix]
    strategy = ["single", "ddp", "dp", "zero1", "fsdp"]
    grad_accumulation = [1, 2]
    model_args.norm = [false, true]
    """
    code, ways = verify(tmp_path, text.replace("    ", "").replace("ranks = 2", "ranks = 1"), "--nproc", "2")
    assert code == 0
    assert {way["outcome"] for way in ways.values()} == {"pass", "known"}
    assert len(ways) == 16  # single does not run on two devices
    options = "[matrix]\nbroadcast_buffers = [true, false]\nmodel_args.norm = [true]\ngradient_as_bucket_view = [false, true]\n"
    code, ways = verify(tmp_path, options)
    assert code == 0
    assert {failed_ for way in ways.values() for failed_ in failed(way)} == set()


@pytest.mark.long
def test_lossy_hooks_differ_as_asked_within_a_stated_tolerance(tmp_path):
    """fp16 rounds gradients, PowerSGD compresses them from its third step on: known, and the ranks stay together."""
    code, ways = verify(tmp_path, '[matrix]\ncomm_hook = ["fp16", "powersgd"]\n')
    assert code == 0
    for name, way in ways.items():
        checks = by_name(way)
        assert checks["gradients"]["outcome"] == checks["parameters"]["outcome"] == "known"
        assert checks["gradients"]["tolerance"] == (5e-3 if "fp16" in name else 1e-10)
        assert "equal on all ranks" in checks["parameters"]["detail"]
        why = "comm_hook fp16 rounds" if "fp16" in name else "until PowerSGD compresses, in 2 steps"
        assert checks["global batch"]["outcome"] == "known" and why in checks["global batch"]["detail"]


@pytest.mark.long
def test_two_nodes_train_as_one_process_does_and_a_fault_is_named(tmp_path):
    """Ranks of two nodes of one box pass; a layer without gradient on the other node's rank is named."""
    text = f"nodes = 2\n[matrix]\n{seeds('none', 'detached')}"
    code, ways = verify(tmp_path, text.replace("ranks = 2", "ranks = 1"), "--nodes", "2", "--set", "ranks=1")
    assert code == 1
    found = {planted(way): way for way in ways.values()}
    good, bad = found["none"], found["detached"]
    assert good["outcome"] == "pass"
    assert "ddp on 2 nodes of 1 rank" in good["name"]
    assert by_name(bad)["gradients"]["tensor"] == "first.weight"


@pytest.mark.long
def test_a_launch_that_hangs_or_dies_is_not_told_and_the_others_are(tmp_path):
    """A rank that is killed takes its own way only: its reason stands there, the next way passes."""
    code, ways = verify(tmp_path, f"[matrix]\n{seeds('dies', 'none')}")
    assert code == 5
    found = {planted(way): way for way in ways.values()}
    bad, good = found["dies"], found["none"]
    assert (bad["outcome"], good["outcome"]) == ("cannot tell", "pass")
    assert "killed" in bad["reason"] or "SIGKILL" in bad["reason"]


@pytest.mark.long
def test_a_study_is_verified_first_and_goes_on_without_what_failed(tmp_path):
    """verify.json is there before the first launch counts, the cell is measured and not compared, the report has it."""
    shutil.copy(HERE / "unequal.py", tmp_path)
    text = CASE.replace("ranks = 2\n", "") + "steps = 60\n[matrix]\nranks = [1, 2]\n"
    words = ("--set", "seed=2", "--budget", "20s", "-o", "results/s")
    code, out = scalemark(tmp_path, "run", suite(tmp_path, text), *words)
    assert code == 0, out
    assert "NOT THE SAME: ddp on 2 ranks, unequal:build, seed 2: gradients: first.weight differs" in out
    assert "does not train as one process does" in out  # the finding
    study = tmp_path / "results/s"
    assert len(records(study)) >= 2
    assert {record.status for record in records(study)} == {"ok"}
    assert (study / "verify.json").is_file()
    code, out = scalemark(tmp_path, "scaling", "results/s", "--json")
    assert "ddp-n2" not in json.dumps(json.loads(out)["curves"])
    code, out = scalemark(tmp_path, "run", "mine.toml", *words[:4], "-o", "results/t", "--no-verify")
    assert code == 0, out
    assert "verif" not in out
    assert not (tmp_path / "results/t/verify.json").exists()


def test_nothing_to_verify_and_wrong_words_are_one_line(tmp_path):
    """A suite that cannot run here, and one that is not there: exit 2, no traceback."""
    code, out = scalemark(tmp_path, "verify", "dpp")
    assert (code, "Traceback" in out) == (2, False)
    assert "unknown name 'dpp'" in out
