"""docs/from-the-tutorial.md: every wrong line does what the page says, and the suite says what the page shows."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bench import allocation, legal, summary
from bench.analysis import analyse
from bench.case import Case
from bench.environment import device_index
from bench.errors import UsageError
from bench.failures import RankEnd, first_failure
from bench.user import workload
from bench.verbs import doctor
from bench.watch_checks import Seen, mistakes
from tests.hosts import cpu_host
from tests.simulate import CPU_HOST, failed, simulate
from tests.traces import effective, trace
from tests.tutorial_pairs import block, entries

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/from-the-tutorial.md").read_text()
ENTRIES = entries(PAGE)
DDP2 = Case(strategy="ddp", ranks=2)

# What stands above the wrong lines in the module of a user who has them in a factory.
MINE = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

local_rank, rank, n_gpus, world_size = 0, 0, 1, 2
device, device_ids = "cpu", None
dataset = [(torch.zeros(4), 0)] * 8
loader = dataset

def build(case):
    model = nn.Linear(4, 1)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What came of every pair: id -> side -> facts, those of two ranks as a list; and the old launcher's and the new."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "train.py").write_text(TRAIN)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "WORLD_", "LOCAL_"))}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def start(*words):
        return subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    pairs = start(ROOT / "tests/tutorial_pairs.py", ROOT / "docs/from-the-tutorial.md", folder)
    launched = {side: start("-m", *launcher(side)) for side in ("wrong", "right")}
    said = {
        side: (process.communicate(timeout=200)[0], process.returncode) for side, process in launched.items()
    }
    told = pairs.communicate(timeout=200)[0]
    assert pairs.returncode == 0, told
    alone, *ranks = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("alone", "rank0", "rank1")
    )
    together = {
        name: {side: [rank[name][side] for rank in ranks] for side in ranks[0][name]} for name in ranks[0]
    }
    return alone | together | {"distributed-launch": said}


TRAIN = """\
import argparse, os
argparse.ArgumentParser().parse_args()
print("local rank", os.environ["LOCAL_RANK"])
"""


def launcher(side):
    """The page's command as arguments of `python -m`."""
    words = block(ENTRIES["distributed-launch"], side).split()
    return words[2:] if words[0] == "python" else ["torch.distributed.run", *words[1:]]


@pytest.fixture
def factory(tmp_path, monkeypatch):
    """Returns a function: what the suite says of the wrong lines of an entry, in the factory of a user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the lines do to it
        monkeypatch.delenv(name)

    def said(name, side="wrong"):
        lines = textwrap.indent(block(ENTRIES[name], side), "    ")
        Path("mine.py").write_text(f"{MINE}{lines}    return model\n")
        sys.modules.pop("mine", None)
        try:
            workload(Case(model="mine:build"))
        except UsageError as error:
            return [str(error)]
        finally:
            sys.modules.pop("mine", None)
        return []

    return said


@pytest.fixture
def findings(tmp_path):
    """Returns a function: the findings of a simulated study of one case, as `scalemark run` prints them."""

    def said(case, host=CPU_HOST, **fields):
        return [
            found.message
            for found in analyse([simulate(tmp_path / "s", [case], host=host, **fields)]).findings
        ]

    return said


def failure(findings, rank, error_type, error):
    """The finding of a launch in which a rank failed so."""
    verdict = first_failure([RankEnd(rank=rank, exitcode=1, error_type=error_type, error=error)])
    fail = {"change": lambda record: failed(record, verdict.reason, verdict.detail), "quick": True}
    return findings(DDP2, **fail)


def shown(name):
    """Lines of the texts that an entry shows as the suite's."""
    return "".join(re.findall(r"```text\n(.*?)```", ENTRIES[name], re.S)).splitlines()


def check_said(name, said):
    """Each line shown is one that was said, to the letter but for `...`, and something is shown."""
    assert shown(name)
    for line in shown(name):
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert any(re.fullmatch(pattern, text) for text in said), f"{line}\n is not among\n" + "\n".join(said)


def test_every_entry_has_its_parts():
    """A wrong block, a right one, what comes of it and what the suite reports, in this order, in a few lines."""
    order = r"```(python|sh) wrong\n.*```(python|sh) right\n.*\n\nWhat the suite reports.*```text\n.*```\s*$"
    for name, text in ENTRIES.items():
        assert re.match(rf"\n{order}", text, re.S), name
        assert len(re.findall(r"^```\w", text, re.M)) == 3, name
        assert sum(bool(line.strip()) for line in text.splitlines()) <= 20, name


def test_every_entry_has_a_test_and_every_test_an_entry():
    """A test is named after its entry."""
    tested = {name.removeprefix("test_pair_") for name in globals() if name.startswith("test_pair_")}
    assert {name.replace("-", "_") for name in ENTRIES} == tested


def test_contents_name_every_entry_in_order():
    """The table at the top has the ids as they come, section by section."""
    table = re.search(r"\| where \| mistakes \|(.*?)\n\n", PAGE, re.S)[1]
    assert re.findall(r"`([a-z-]+)`", table) == list(ENTRIES)
    assert re.findall(r"\[([A-Z].+?)\]", table) == re.findall(r"^## (.+)$", PAGE, re.M)


def test_words_are_explained():
    """The glossary has the words that the page takes for granted."""
    words = set(re.findall(r"^\| ([a-z ]+) \|", PAGE.split("## Glossary")[1], re.M))
    assert {"node", "node rank", "rank", "local rank", "world size"} <= words
    assert {"group", "process group", "backend", "device slot"} <= words


def test_pair_device_counts(ran, factory):
    """The name does not exist; the suite names the nearest one."""
    found = ran["device-counts"]
    assert found["wrong"]["raised"].startswith("AttributeError")
    assert found["right"]["devices"] >= 0
    check_said("device-counts", factory("device-counts"))


def test_pair_visible_devices_late(factory, monkeypatch):
    """Set in code it is refused, on any host; set outside it is there from the first line. That CUDA heeds no change
    needs a GPU."""
    check_said("visible-devices-late", factory("visible-devices-late"))
    Path("train.py").write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    command = block(ENTRIES["visible-devices-late"], "right").replace("python", sys.executable)
    assert subprocess.check_output(["sh", "-c", command], text=True) == "1\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert factory("visible-devices-late") == []  # it is what it was


def test_pair_device_id(ran, factory):
    """The argument does not exist; the right one wraps."""
    found = ran["device-id"]
    assert all("unexpected keyword argument 'device_id'" in rank["raised"] for rank in found["wrong"])
    assert [rank["wrapper"] for rank in found["right"]] == ["DistributedDataParallel"] * 2
    check_said("device-id", factory("device-id"))


def test_pair_rank_before_init(ran, factory):
    """No group, no rank; after it each has its own."""
    found = ran["rank-before-init"]
    assert all(rank["raised"].startswith("ValueError: Default process group") for rank in found["wrong"])
    assert [rank["rank"] for rank in found["right"]] == [0, 1]
    check_said("rank-before-init", factory("rank-before-init"))


def test_pair_get_local_rank(ran, factory):
    """The function does not exist; the launcher's variable does."""
    found = ran["get-local-rank"]
    assert all(rank["raised"].startswith("AttributeError") for rank in found["wrong"])
    assert [rank["local_rank"] for rank in found["right"]] == [0, 1]
    check_said("get-local-rank", factory("get-local-rank"))


def test_pair_local_rank_from_rank(ran, findings):
    """Rank 5 of 8 on the second node of four: device 5 is not there, the suite takes device 1. The error needs a GPU."""
    found = ran["local-rank-from-rank"]
    assert found["wrong"]["device"] not in range(4)
    assert found["right"]["device"] == device_index(1, 4) == 1
    error = "CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported"
    said = failure(findings, 5, "AcceleratorError", error)
    on_cuda = seen(device="cuda:3", device_index=3, device_count=4, local_rank=0)
    check_said("local-rank-from-rank", [*said, *watched(on_cuda)])


def test_pair_world_size_of_one_node(ran, factory):
    """Two nodes of one device: each is alone in its world and a sum sees one rank, without any error."""
    found = ran["world-size-of-one-node"]
    assert [(rank["world"], rank["rank"], rank["seen"]) for rank in found["wrong"]] == [(1, 0, 1), (1, 0, 1)]
    assert [(rank["world"], rank["rank"], rank["seen"]) for rank in found["right"]] == [(2, 0, 2), (2, 1, 2)]
    assert not any("WORLD_SIZE" in line for rank in found["right"] for line in rank["said"])
    check_said("world-size-of-one-node", [*factory("world-size-of-one-node"), *found["wrong"][0]["said"]])


def test_pair_backend_ucci(ran):
    """Nobody has it; ucc is taken where this torch has it, and else skipped with its reason."""
    found = ran["backend-ucci"]
    assert all(rank["raised"] == "AssertionError: Unknown backend type ucci" for rank in found["wrong"])
    assert {rank["backend"] for rank in found["right"]} <= {"ucc", "gloo"}
    context = legal.Context(host=cpu_host())
    with pytest.raises(UsageError) as refused:
        legal.check(Case(strategy="ddp", backend="ucci"), context)
    skipped = legal.why_not(Case(strategy="ddp", backend="ucc"), context)
    check_said("backend-ucci", [str(refused.value), skipped])


def test_pair_distributed_launch(ran, tmp_path):
    """The old launcher warns, and its argument breaks the script; the suite refuses to be a rank of either."""
    (wrong, wrong_code), (right, right_code) = (
        ran["distributed-launch"]["wrong"],
        ran["distributed-launch"]["right"],
    )
    assert wrong_code != 0 and "unrecognized arguments: --local-rank=0" in wrong
    assert "torch.distributed.launch is deprecated" in wrong
    assert right_code == 0 and "local rank 0" in right
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    said = []
    for words, extra in ((["--local-rank=0"], {}), ([], ranks)):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "bench", *words, "run", "ddp"],
            cwd=tmp_path, env=os.environ | extra, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 2 and not (tmp_path / "results").exists()
        said += [line.removeprefix("scalemark: ") for line in done.stderr.splitlines()]
    check_said("distributed-launch", said)
    # of a node, as some schedulers set them: no rank of a launcher
    assert allocation.found({"RANK": "0", "WORLD_SIZE": "2"}) is None


def test_pair_ddp_when_many(ran):
    """With one device a process nothing is wrapped, and the ranks' weights part without any error."""
    found = ran["ddp-when-many"]
    assert {rank["wrapper"] for rank in found["wrong"]} == {"Linear"}
    assert found["wrong"][0]["weight"] != found["wrong"][1]["weight"]
    assert {rank["wrapper"] for rank in found["right"]} == {"DistributedDataParallel"}
    assert found["right"][0]["weight"] == found["right"][1]["weight"]
    check_said("ddp-when-many", found["wrong"][0]["said"])
    assert not any("plain Linear" in line for line in found["right"][0]["said"])


def test_pair_optimizer_in_the_loop(ran):
    """After five batches Adam has counted one step instead of five."""
    found = ran["optimizer-in-the-loop"]
    assert (set(found["wrong"]["steps"]), set(found["right"]["steps"])) == ({1}, {5})
    check_said("optimizer-in-the-loop", found["wrong"]["said"])
    assert not any("optimizer" in line for line in found["right"]["said"])


def test_pair_no_zero_grad(ran):
    """The second gradient of the same batch is twice the first."""
    first, second = ran["no-zero-grad"]["wrong"]["gradients"]
    assert second == pytest.approx(2 * first)
    assert len(set(ran["no-zero-grad"]["right"]["gradients"])) == 1
    check_said("no-zero-grad", ran["no-zero-grad"]["wrong"]["said"])
    assert not any("gradients" in line for line in ran["no-zero-grad"]["right"]["said"])


def test_pair_workers_are_processes(ran, findings):
    """Each worker is a process with a data set of its own; a share of the CPUs is zero workers on two."""
    found = ran["workers-are-processes"]
    assert (found["wrong"]["processes"], found["wrong"]["remembered"]) == (2, 0)
    assert not found["wrong"]["own process"] and found["right"]["own process"]
    case = Case(strategy="ddp", ranks=4, data="photos", num_workers=8)
    said = findings(case, host=CPU_HOST | {"cpus_usable": 8})
    facts = [fact for section in doctor.sections(cpu_host(8)) for fact in section]
    check_said("workers-are-processes", [*said, *facts])


def test_pair_shuffle_and_sampler(ran, factory):
    """Both are refused; with the sampler alone two ranks share the data, with shuffle alone each reads all."""
    wrong, right = ran["shuffle-and-sampler"]["wrong"], ran["shuffle-and-sampler"]["right"]
    assert all("mutually exclusive with shuffle" in rank["raised"] for rank in wrong)
    assert (
        sorted(right[0]["seen"] + right[1]["seen"]) == wrong[0]["seen"] == wrong[1]["seen"] == list(range(8))
    )
    check_said("shuffle-and-sampler", [*factory("shuffle-and-sampler"), *wrong[0]["said"]])
    assert not any("share the data" in line for line in right[0]["said"])


def test_pair_set_epoch(ran):
    """Both epochs have the same order, on every rank."""
    found = ran["set-epoch"]
    assert all(rank["orders"][0] == rank["orders"][1] for rank in found["wrong"])
    assert all(rank["orders"][0] != rank["orders"][1] for rank in found["right"])
    check_said("set-epoch", found["wrong"][0]["said"])
    assert not any("epoch" in line for line in found["right"][0]["said"])


def test_pair_pinned_without_end(ran, factory):
    """Without an accelerator pinning by hand raises, and the loader's stays off. That it stays pinned needs a GPU."""
    import torch

    if torch.accelerator.is_available():
        pytest.skip("says what happens without an accelerator")
    found = ran["pinned-without-end"]
    assert found["wrong"]["raised"].startswith("RuntimeError: Cannot access accelerator device")
    assert found["right"] == {"raised": None, "pinned": False}
    check_said("pinned-without-end", factory("pinned-without-end"))


def test_pair_syncbn_after_wrapping(ran, factory):
    """On CPU: the right order is refused as it is wrapped, the wrong one when it runs. On GPUs it is not tried."""
    found = ran["syncbn-after-wrapping"]
    assert all(rank["wrapped"] is None for rank in found["wrong"])
    assert all("expected input tensor to be on GPU" in rank["forward"] for rank in found["wrong"])
    assert all("only work with GPU modules" in rank["wrapped"] for rank in found["right"])
    check_said("syncbn-after-wrapping", factory("syncbn-after-wrapping"))


def test_pair_syncbn_on_cpu(ran, findings, tmp_path):
    """Without a group the layers compute BatchNorm to the bit; the suite's own stand in under ddp."""
    found = ran["syncbn-on-cpu"]
    assert (found["wrong"]["layers"], found["right"]["layers"]) == (1, 0)
    assert found["wrong"]["equal"] and found["right"]["equal"]
    refused = ran["syncbn-after-wrapping"]["right"][0]["wrapped"]
    said = failure(findings, 0, *refused.split(": ", 1))
    own = effective(batch_norm_layers=1, sync_bn_layers=1, backend=None)
    reference = analyse([simulate(tmp_path / "reference", [Case(strategy="ddp", ranks=2, sync_bn=True)])])
    said += [summary.sync_bn_mark([trace(effective=own)]), *(one.message for one in reference.findings)]
    check_said("syncbn-on-cpu", said)


def test_pair_syncbn_under_dp(ran):
    """DataParallel's SyncBN is BatchNorm to the bit; the right lines are refused on CPU, as torch's SyncBN is."""
    found = ran["syncbn-under-dp"]
    assert all((rank["layers"], rank["equal"]) == (1, True) for rank in found["wrong"])
    assert all("only work with GPU modules" in rank["raised"] for rank in found["right"])
    skipped = legal.why_not(Case(strategy="dp", ranks=2, sync_bn=True), legal.Context(host=cpu_host()))
    check_said("syncbn-under-dp", [skipped, *found["wrong"][0]["said"]])


def seen(**fields):
    """What bench.watch would have seen of a loop without mistakes, but for these fields."""
    good = {
        "steps": 9, "world": 2, "world_asked": 2, "local_rank": 0, "model": "Linear", "wrapped": True, "agreed": True,
        "wrapper": "DistributedDataParallel", "device": "cpu", "device_index": None, "device_count": 0,
        "sampler": None, "epochs": (0, 1), "gradients_kept": False, "optimizer_steps": 9, "rebuilt": 0, "norms": 0,
        "synced": 0, "num_workers": 2, "cpus": 8, "local_ranks": 2, "threads": 1, "waited": 0.0,
    }  # fmt: skip
    return Seen(**good | fields)


def watched(one):
    """The lines of its mistakes."""
    return list(mistakes(one).values())
