"""bench.watch in scripts of their own, under torchrun and under plain python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.analysis import analyse
from bench.store import Store
from tests.e2e.command import records, scalemark
from tests.test_docs import after, blocks, text

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

# No wrapper, no sampler, no zero_grad, no done(): it ends as scripts do, and prints what it has trained.
MISTAKEN = """
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from bench.watch import watch

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(48, 8), torch.randint(2, (48,)))
watched = watch(model, output="mistaken")
for epoch in range(2):
    for inputs, targets in watched.loader(DataLoader(data, batch_size=4, shuffle=True)):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
"""

PLAIN = """
import torch
from bench.watch import watch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with watch(model, steps=60, output="plain") as watched:
    for inputs in watched.loader([torch.randn(16, 8)] * 80):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
print("trained")
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder in which the scripts ran, where the package is installed; what torchrun's and python's printed."""
    folder = tmp_path_factory.mktemp("watch")
    shutil.copytree(ROOT / "examples", folder / "examples")
    (change,) = blocks(text("bring-your-own.md"), "diff")
    script = folder / "examples" / "train_ddp.py"
    script.write_text(after(change, script.read_text()))
    for name, source in {"train.py": MISTAKEN, "plain.py": PLAIN}.items():
        (folder / name).write_text(source)
    # side by side: starting them is what takes the time; not in one process, whose second group meets the first one's keys
    commands = ((*TORCHRUN, "examples/train_ddp.py"), (*TORCHRUN, "train.py"), ("plain.py",))
    started = [start(folder, *words) for words in commands]
    (page, said), mistaken, plain = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said + mistaken[1] + plain[1]
    return folder, (page + mistaken[0], said + mistaken[1]), plain


def start(folder, *words):
    """A script as its user starts it."""
    return subprocess.Popen(
        [sys.executable, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def findings(study, code):
    """What the findings of a code say."""
    return [one.message for one in analyse([Store(study)]).findings if one.code == code]


def test_the_training_script_of_the_page_is_watched(ran):
    """The script with the page's few lines: 100 steps of two ranks, nothing wrong with them; training goes on."""
    folder, (printed, said), _ = ran
    assert "epoch 1: loss" in printed
    (study,) = (folder / "results").glob("watch-train_ddp-*")
    assert f"read them with: scalemark report results/{study.name}" in said
    (record,) = records(study)
    asked = record.requested
    assert (asked.strategy, asked.ranks, asked.batch, asked.num_workers) == ("ddp", 2, 16, 1)
    assert [rank.counts.seen for rank in record.ranks] == [62 * 16 + 8 + 37 * 16] * 2
    assert [rank.counts.per_epoch for rank in record.ranks] == [1000] * 2
    assert [rank.effective.wrapper for rank in record.ranks] == ["DistributedDataParallel"] * 2
    assert len({rank.effective.weights_hash for rank in record.ranks}) == 1
    assert all(value > 0 for name, value in record.phases_s.items() if name != "h2d")
    assert findings(study, "watch-sees") == findings(study, "not-in-effect") == []
    code, out = scalemark(folder, "report", f"results/{study.name}")
    assert code == 0, out
    assert "watched: the user" in (folder / out.strip()).read_text()


def test_mistakes_of_a_loop_are_in_its_report(ran):
    """Two separate trainings that read the same data and never clear gradients: each is said, in no curve."""
    folder, (_, said), _ = ran
    (record,) = records(folder / "mistaken")
    assert len(record.ranks) == 2
    assert record.mismatches == ("ddp asked for, the model is a Linear",)
    found = findings(folder / "mistaken", "watch-sees")
    for word in ("every rank trains a model of its own", "every rank reads all of it", "they add up"):
        assert any(word in message for message in found) and word in said


def test_plain_python_is_watched_too(ran):
    """No launcher and no process group: one device's row, which says how it was measured."""
    folder, _, (printed, _) = ran
    assert printed == "trained\n"
    (record,) = records(folder / "plain")
    assert (record.requested.strategy, record.requested.devices, record.requested.steps) == ("single", 1, 60)
    (cell,) = analyse([Store(folder / "plain")]).cells
    assert cell.status == "ok" and "watched: the user's own loop" in cell.marks
