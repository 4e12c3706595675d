"""bench.watch: what it sees in loops of many shapes, what it writes, and that no loop ever fails by it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from bench import watch as watching  # noqa: E402
from bench import watch_facts, watch_study  # noqa: E402
from bench.analysis import analyse  # noqa: E402
from bench.case import Case  # noqa: E402
from bench.records import PHASES  # noqa: E402
from bench.store import Store  # noqa: E402
from bench.watch import watch  # noqa: E402
from bench.watch_checks import MISTAKES, PREFIX, Seen, mistakes, remedy_of  # noqa: E402
from bench.watch_marks import (  # noqa: E402
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    H2D,
    OPTIMIZER,
    OTHER,
    EventStamps,
    HostStamps,
    Step,
    phases_s,
)
from bench.workload import leading_size  # noqa: E402
from tests.hosts import cpu_host  # noqa: E402
from tests.traces import effective, trace  # noqa: E402

SOUND = Seen(
    steps=60, world=2, world_asked=2, local_rank=0, model="Net", wrapped=True, wrapper="DistributedDataParallel",
    device="cpu", device_index=None, device_count=0, sampler=None, epochs=(0, 1), gradients_kept=False,
    optimizer_steps=60, rebuilt=0, norms=2, synced=0, num_workers=2, waited=0.5,
)  # fmt: skip


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


def test_a_steps_phases_are_its_gaps_by_what_began():
    """Two forwards and two optimizers in one step add up, and what comes after them is other."""
    order = (DATA_WAIT, H2D, FORWARD, BACKWARD, FORWARD, BACKWARD, OPTIMIZER, OTHER, OPTIMIZER, OTHER)
    stamps = np.cumsum([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]) * 10**9
    (found,) = phases_s([Step(order, tuple(stamps), 1)], HostStamps())
    assert found.tolist() == [1, 2, 4 + 16, 8 + 32, 64 + 256, 128 + 512]


def test_on_a_device_only_the_loaders_time_is_waiting():
    """The device stood still for 5 s, the loader took 2 of them: the others are the host being late."""

    class Event:
        def __init__(self, at_s):
            self.at_s = at_s

        def elapsed_time(self, other):
            return (other.at_s - self.at_s) * 1e3

    at = [(Event(0.0), 0), (Event(5.0), 2 * 10**9), (Event(6.0), 3 * 10**9)]
    (found,) = phases_s([Step((DATA_WAIT, FORWARD), tuple(at), 1)], EventStamps(None))
    assert found.tolist() == [2, 0, 1, 0, 0, 3]


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


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("samples", "give watch(samples=...)"),
        ("model", "was called to train in none of 10 batches"),
        ("clock", "no clock"),
        ("unused", "no batch of watched.loader(...) was asked for"),
    ],
)
def test_what_fails_in_a_watch_is_a_line_and_the_loop_goes_on(monkeypatch, capfd, wrong, says):
    """The loop gets all its batches, its hooks are gone, and one line says why there is no study."""
    loop = Loop()
    stamps = iter(range(20))  # and then none
    if wrong == "clock":
        monkeypatch.setattr(HostStamps, "stamp", lambda _: next(stamps, None) or _fail(OSError("no clock")))
    model = nn.Linear(3, 2) if wrong == "model" else loop.model
    watched = watch(model, samples=_uncounted if wrong == "samples" else len, output="mine")
    trained = 0
    for inputs, targets in loop.loader if wrong == "unused" else watched.loader(loop.loader):
        loop.step(inputs, targets)
        trained += 1
    watched.done()
    assert trained == 10
    assert not loop.model._forward_hooks
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("scalemark: no study is written: ") and says in line


def _fail(error):
    raise error


def _uncounted(batch):
    return leading_size("text")


def test_a_loop_that_fails_fails_with_its_own_error(capfd):
    """The exception is the user's, and no study is written."""
    loop = Loop()
    with pytest.raises(ZeroDivisionError), watch(loop.model, output="mine") as watched:
        for _ in watched.loader(loop.loader):
            raise ZeroDivisionError
    assert "the loop ended with ZeroDivisionError" in capfd.readouterr().err
    assert not Store(Path("mine")).root.exists()


def test_a_set_epoch_that_is_missed_after_the_study_is_still_said(capfd):
    """The steps were measured in the first epoch: the second one tells."""
    data = TensorDataset(torch.randn(8, 3), torch.randint(2, (8,)))
    loop = Loop(sampler=DistributedSampler(data, 1, 0))
    watched = watch(loop.model, steps=2, output="mine")
    loop.run(watched, epochs=3)
    said = [line for line in capfd.readouterr().err.splitlines() if "set_epoch" in line]
    assert len(said) == 1


def test_a_sound_loop_has_no_mistakes():
    """Two ranks under DDP with a sampler whose epoch moves."""
    assert mistakes(SOUND) == {}


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("no-group", {"world": 1}),
        ("not-wrapped", {"wrapped": False, "agreed": False}),
        ("wrong-device", {"local_rank": 1, "device_index": 0, "device_count": 2}),
        ("same-data", {"sampler": "RandomSampler"}),
        ("set-epoch", {"epochs": (0, 0)}),
        ("zero-grad", {"gradients_kept": True}),
        ("rebuilt-optimizer", {"rebuilt": 3}),
        ("no-step", {"optimizer_steps": 0}),
        ("sync-bn-partly", {"synced": 1}),
        ("sync-bn-alone", {"synced": 2, "world": 1, "world_asked": 1, "wrapper": "DataParallel"}),
        ("no-workers", {"num_workers": 0}),
    ],
)
def test_each_mistake_is_seen_by_its_sign(code, changes):
    """One change to a sound loop, one line, in words of its own and with a remedy."""
    found = mistakes(msgspec.structs.replace(SOUND, **changes))
    assert list(found) == [code]
    message, remedy = remedy_of(found[code])
    assert found[code] == f"{PREFIX}{message}; {remedy}"
    assert remedy == MISTAKES[code].remedy and "{" not in message


@pytest.mark.parametrize(
    "changes",
    [
        {"wrapped": False, "agreed": True},  # the loop averages gradients itself
        {"wrapped": False, "agreed": None},  # not all ranks were heard
        {"local_rank": 1, "device_index": 0, "device_count": 1},  # one device visible to each rank
        {"epochs": (0,)},  # one pass
        {"epochs": ()},  # a sampler that does not shuffle
        {"num_workers": 0, "waited": 0.05},
        {"synced": 2},
    ],
)
def test_what_may_be_right_is_no_mistake(changes):
    """Each of these looks like a mistake and need not be one."""
    assert mistakes(msgspec.structs.replace(SOUND, **changes)) == {}


def test_every_mistake_has_a_test():
    """A new row of the table needs a sign above."""
    marks = test_each_mistake_is_seen_by_its_sign.pytestmark[0].args[1]
    assert [code for code, _ in marks] == list(MISTAKES)


DDP = Case(strategy="ddp", ranks=2)


def packets(seen=SOUND, case=DDP, steps=(10, 10), hashes=("a", "a")):
    """What two ranks hand over."""
    return [
        watch_study.Packet(
            case=case,
            trace=trace(rank, step_s=(0.1 + 0.1 * rank,) * count, effective=effective(weights_hash=weights)),
            seen=seen,
        )
        for rank, (count, weights) in enumerate(zip(steps, hashes, strict=True))
    ]


def test_the_window_is_of_the_steps_that_all_ranks_have():
    """Nine steps are common; four go as warm-up; the slower rank sets the time."""
    found = watch_study.launch_record(packets(steps=(10, 9)))
    assert (found.window.steps, found.window.cut.first) == (5, 4)
    assert found.window.wall_s == pytest.approx(5 * 0.2)
    assert found.window.samples == 2 * 5 * 4
    assert found.mismatches == ()


def test_plain_models_that_drift_apart_are_no_ddp():
    """Such a row enters no curve; where the parameters agree, the loop has averaged by itself."""
    plain = msgspec.structs.replace(SOUND, wrapped=False, wrapper="Net")
    own = Case(strategy="own", ranks=2)
    apart = watch_study.launch_record(packets(plain, own, hashes=("a", "b")))
    assert apart.mismatches == ("ddp asked for, the model is a Net",)
    assert any("trains a model of its own" in text for text in apart.ranks[0].warnings)
    together = watch_study.launch_record(packets(plain, own))
    assert (together.mismatches, together.requested.strategy) == ((), "own")


def test_processes_without_a_group_are_told():
    """WORLD_SIZE 2 and no process group: one rank's numbers, out of every curve."""
    alone = msgspec.structs.replace(SOUND, world=1)
    (first, _) = packets(alone, Case())
    found = watch_study.launch_record([first])
    assert found.mismatches == ("world size: 2 asked for, 1 in effect",)


def test_a_mistake_of_all_ranks_is_said_once():
    """Rank 0 says what both saw; rank 1 only what it alone saw."""
    one, two = packets(msgspec.structs.replace(SOUND, gradients_kept=True))
    seen = msgspec.structs.replace(two.seen, local_rank=1, device_index=0, device_count=2)
    ranks = watch_study.launch_record([one, msgspec.structs.replace(two, seen=seen)]).ranks
    assert [len(rank.warnings) for rank in ranks] == [1, 1]
    assert "LOCAL_RANK is 1" in ranks[1].warnings[0]


def test_late_ranks_are_waited_for_and_then_left_out(monkeypatch):
    """Packets come in order of rank; one that never comes is missing when the time is up."""
    monkeypatch.setattr(watch_study, "WAIT_S", 0.1)
    sent = dict(enumerate(packets()))

    class Group:
        def check(self, keys):
            return keys[0] == "key/1"

        def get(self, key):
            return msgspec.json.encode(sent[1])

    assert watch_study.collected(Group(), "key", 3) == [sent[1]]
    assert watch_study.collected(None, "key", 1) == []


def test_the_class_is_named_whatever_is_around_it():
    """In what torch.compile makes of a DataParallel it is still the user's class; the wrapper says the strategy."""
    compiled = nn.Module()
    compiled._orig_mod = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    assert watch_facts.model_name(compiled) == "watch:Sequential"
    assert watch_facts.compiled(compiled) and not watch_facts.compiled(nn.Linear(1, 1))
    assert watch_facts.strategy_of(compiled, None, 1) == "dp"
    assert watch_facts.strategy_of(nn.Linear(1, 1), None, 1) == "single"
    assert watch_facts.strategy_of(nn.Linear(1, 1), None, 2) == "own"


def test_samplers_that_do_not_share_are_named():
    """torch's own random and sequential order; of anything else nothing is claimed."""
    data = TensorDataset(torch.zeros(8, 1))
    assert watch_facts.unshared_sampler(DataLoader(data, shuffle=True)) == "RandomSampler"
    assert watch_facts.unshared_sampler(DataLoader(data)) == "SequentialSampler"
    assert watch_facts.unshared_sampler(DataLoader(data, sampler=DistributedSampler(data, 2, 0))) is None
    assert watch_facts.unshared_sampler(DataLoader(data, batch_sampler=[[0, 1]])) is None
    assert watch_facts.unshared_sampler([1, 2, 3]) is None


def test_the_phases_of_a_step_are_all_there():
    """The marks are numbered as the phases are."""
    assert [PHASES[phase] for phase in (DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER)] == list(PHASES)
