"""bench.watch: what it sees in loops of many shapes, and what it writes."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from bench import watch as watching  # noqa: E402
from bench import watch_study  # noqa: E402
from bench.analysis import analyse  # noqa: E402
from bench.store import Store  # noqa: E402
from bench.watch import watch  # noqa: E402
from bench.watch_checks import mistakes  # noqa: E402
from bench.watch_marks import (  # noqa: E402
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    H2D,
    OPTIMIZER,
    OTHER,
)
from tests.hosts import cpu_host  # noqa: E402


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """In a folder of its own, on a host that need not be looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch_study, "probe_host", cpu_host)
    monkeypatch.setattr(watch_study, "git_state", lambda: None)


class Loop:
    """A small model with its loader and optimizer; `run` trains as a tutorial does."""

    def __init__(self, samples=40, batch=4, **loader):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(samples, 3), torch.randint(2, (samples,)))
        self.loader = DataLoader(data, batch, **loader)

    def backward(self, inputs, targets):
        nn.functional.cross_entropy(self.model(inputs), targets).backward()

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        self.backward(inputs, targets)
        self.optimizer.step()

    def run(self, watched, epochs=1):
        for _ in range(epochs):
            for inputs, targets in watched.loader(self.loader):
                self.step(inputs, targets)


def record(folder="mine"):
    """The one launch of a study in `folder`."""
    (found,), broken = Store(Path(folder)).records()
    assert not broken
    return found


def seen_by(loop, monkeypatch, **options):
    """The packet of a loop that ran to its end, without writing it."""
    kept = []
    monkeypatch.setattr(
        watching, "write_study", lambda packets, *_: kept.extend(packets) or (Store(Path("none")), ())
    )
    with watch(loop.model, **options) as watched:
        loop.run(watched)
    return kept[0]


def test_a_watched_loop_leaves_a_study_that_is_read():
    """One cell, one launch; samples are counted, phases sum to the step, and the row says what it is."""
    loop = Loop(samples=42)  # the last batch of an epoch holds 2
    with watch(loop.model, steps=100, output="mine") as watched:
        loop.run(watched, epochs=2)
    found = record()
    (rank,) = found.ranks
    assert found.marks[:2] == ("watched: the user's own loop", "one launch")
    assert (found.requested.strategy, found.requested.batch, found.requested.steps) == ("single", 4, 22)
    assert (found.requested.model, found.requested.data) == ("watch:Sequential", "own")
    assert (rank.counts.seen, rank.counts.per_epoch, rank.counts.epochs) == (84, 42, 2)
    first = found.window.cut.first
    assert (first, found.window.steps) == (6, 16)  # 3 and a tenth of 22
    assert found.window.samples == rank.counts.in_window == 84 - 6 * 4
    known = [value for value in found.phases_s.values() if value is not None]
    assert sum(known) == pytest.approx(found.window.step_s)
    assert found.phases_s["h2d"] is None
    assert rank.effective.optimizer == "SGD"
    analysis = analyse([Store(Path("mine"))])
    assert [cell.status for cell in analysis.cells] == ["ok"]
    assert analysis.cells[0].samples_per_s.half_width is None
    (quick,) = [finding for finding in analysis.findings if finding.code == "quick-study"]
    assert quick.message.startswith("watched, not run")


def test_after_its_steps_a_watch_is_gone():
    """The steps asked for, then no hook is left; the loop goes on over the same loader without a gap."""
    loop = Loop(samples=40)
    watched = watch(loop.model, steps=5, output="mine")
    seen = [
        len(inputs) for inputs, targets in watched.loader(loop.loader) if loop.step(inputs, targets) is None
    ]
    assert seen == [4] * 10
    assert record().requested.steps == 5
    assert not loop.model._forward_hooks and not loop.model._forward_pre_hooks
    loop.run(watched)
    assert len(Store(Path("mine")).records()[0]) == 1


def test_training_is_the_same_with_and_without_a_watch():
    """Equal parameters at the end, to the bit."""
    alone, seen = Loop(), Loop()
    for inputs, targets in alone.loader:
        alone.step(inputs, targets)
    with watch(seen.model, output="mine") as watched:
        seen.run(watched)
    pairs = zip(alone.model.parameters(), seen.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_folder_that_is_taken_is_left_alone():
    """A second study goes beside the first one."""
    for _ in range(2):
        loop = Loop()
        with watch(loop.model, output="mine") as watched:
            loop.run(watched)
    assert record("mine").requested == record("mine-2").requested


def test_a_wrapped_loader_is_the_loader_in_all_else():
    """Length, sampler and data set are the user's."""
    loop = Loop()
    watched = watch(loop.model)
    shown = watched.loader(loop.loader)
    assert len(shown) == 10
    assert shown.dataset is loop.loader.dataset and shown.batch_size == 4
    watched.done()


def test_accumulation_is_counted_and_said(monkeypatch):
    """A batch is a step; the optimizer's are fewer, gradients that add up between them are no mistake."""
    loop, at = Loop(), iter(range(100))

    def step(inputs, targets):
        loop.backward(inputs, targets)
        if next(at) % 2:
            loop.optimizer.step()
            loop.optimizer.zero_grad()

    loop.step = step
    packet = seen_by(loop, monkeypatch)
    assert (packet.seen.steps, packet.seen.optimizer_steps) == (10, 5)
    assert "5 optimizer steps in 10 batches" in watch_study.launch_record([packet]).marks
    assert "zero-grad" not in mistakes(packet.seen)


def test_evaluation_inside_the_loop_is_no_forward(monkeypatch):
    """A batch is one step, however often the model is called under no_grad or in eval mode beside it."""
    loop = Loop()
    train = loop.step

    def step(inputs, targets):
        loop.model.eval()
        loop.model(inputs)
        loop.model.train()
        with torch.no_grad():
            loop.model(inputs)
        train(inputs, targets)

    loop.step = step
    kept = []
    inner = watching.phases_s
    monkeypatch.setattr(watching, "phases_s", lambda steps, clock: kept.extend(steps) or inner(steps, clock))
    assert seen_by(loop, monkeypatch).seen.steps == 10
    assert {step.phases for step in kept} == {(DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER)}


def test_batches_that_train_nothing_are_no_steps(monkeypatch):
    """A pass of evaluation through a watched loader leaves no steps."""
    loop = Loop()

    def run(watched):
        loop.model.eval()
        for inputs, _ in watched.loader(loop.loader):
            loop.model(inputs)
        loop.model.train()
        Loop.run(loop, watched)

    loop.run = run
    assert seen_by(loop, monkeypatch).seen.steps == 10


def test_a_loop_that_is_left_keeps_its_whole_steps(monkeypatch):
    """`break` in a batch: the batches before it count, it does not."""
    loop = Loop()

    def run(watched):
        for at, (inputs, targets) in enumerate(watched.loader(loop.loader)):
            loop.step(inputs, targets)
            if at == 7:
                break

    loop.run = run
    assert seen_by(loop, monkeypatch).trace.samples == (4,) * 7


def test_two_optimizers_and_a_scaler_that_skips_are_followed(monkeypatch):
    """Both optimizers' time is the optimizer's; a step that the scaler leaves out is none."""
    loop, at = Loop(), iter(range(100))
    first, second = loop.model[0], loop.model[2]
    optimizers = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters())]

    def step(inputs, targets):
        loop.model.zero_grad()
        loop.backward(inputs, targets)
        if next(at) % 5:  # as GradScaler does where gradients are not finite
            for optimizer in optimizers:
                optimizer.step()

    loop.step = step
    seen = seen_by(loop, monkeypatch).seen
    assert (seen.optimizer_steps, seen.rebuilt, seen.gradients_kept) == (16, 0, False)


def test_gradients_that_are_never_cleared_are_seen(monkeypatch):
    """No zero_grad anywhere; and clearing by zeros, or between forward and backward, is no mistake."""

    def without(loop, inputs, targets):
        loop.backward(inputs, targets)
        loop.optimizer.step()

    def late(loop, inputs, targets):
        loss = nn.functional.cross_entropy(loop.model(inputs), targets)
        loop.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        loop.optimizer.step()

    for steps, kept in ((without, True), (late, False)):
        loop = Loop()
        loop.step = steps.__get__(loop)
        assert seen_by(loop, monkeypatch).seen.gradients_kept is kept


def test_an_optimizer_built_in_the_loop_is_seen(monkeypatch):
    """Nine of ten were built anew."""
    loop = Loop()
    train = loop.step

    def step(inputs, targets):
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1, momentum=0.9)
        train(inputs, targets)

    loop.step = step
    seen = seen_by(loop, monkeypatch).seen
    assert seen.rebuilt == 9
    assert "built anew 9 times" in mistakes(seen)["rebuilt-optimizer"]


def test_a_loop_without_optimizer_steps_is_told(monkeypatch):
    """Backward alone teaches nothing."""
    loop = Loop()
    loop.step = loop.backward
    packet = seen_by(loop, monkeypatch)
    assert packet.trace.effective.optimizer == "none"
    assert "no optimizer stepped in 10 steps" in mistakes(packet.seen)["no-step"]


def test_mixed_precision_is_read_off_the_layers(monkeypatch):
    """autocast around the forward is bf16 in the row, whatever the parameters are."""
    loop = Loop()
    plain = loop.backward

    def backward(inputs, targets):
        with torch.autocast("cpu", torch.bfloat16):
            plain(inputs, targets)

    loop.backward = backward
    packet = seen_by(loop, monkeypatch)
    assert packet.trace.effective.precision == packet.case.precision == "bf16"


def test_any_shape_of_batch_and_output_will_do(monkeypatch):
    """Dictionaries are counted; a batch of another class by `samples`, and an output in a dictionary is found."""
    loop = Loop()

    class Batch:
        def __init__(self, items):
            self.inputs = torch.stack([inputs for inputs, _ in items])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, batch):
            return {"logits": self.inner(batch.inputs)}

    loop.model = Net()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    loop.loader = DataLoader(loop.loader.dataset, 4, collate_fn=Batch)

    def run(watched):
        for batch in watched.loader(loop.loader):
            loop.model(batch)["logits"].sum().backward()
            loop.optimizer.step()

    loop.run = run
    packet = seen_by(loop, monkeypatch, samples=lambda batch: len(batch.inputs))
    assert packet.trace.samples == (4,) * 10
    assert packet.seen.gradients_kept


def test_a_set_epoch_that_is_missed_after_the_study_is_still_said(capfd):
    """The steps were measured in the first epoch: the second one tells."""
    data = TensorDataset(torch.randn(8, 3), torch.randint(2, (8,)))
    loop = Loop(sampler=DistributedSampler(data, 1, 0))
    watched = watch(loop.model, steps=2, output="mine")
    loop.run(watched, epochs=3)
    said = [line for line in capfd.readouterr().err.splitlines() if "set_epoch" in line]
    assert len(said) == 1
