"""The models: torchvision's keys, the small ResNet's size, and the stand-in's pace and gradients."""

import copy
import json
import threading
import time
from pathlib import Path

import pytest

from bench import plugins
from bench.case import Case
from bench.errors import UsageError
from bench.user import workload

torch = pytest.importorskip("torch")

TORCHVISION = json.loads((Path(__file__).parent / "fixtures" / "torchvision_keys.json").read_text())


class FakeTime(threading.local):
    """A clock of its own for every thread, which only sleeping moves; each sleep ends 0.1 ms late."""

    now_s = 0.0
    late_s = 1e-4

    def perf_counter(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds + self.late_s


@pytest.fixture
def clock(monkeypatch):
    """The stand-in's clock, replaced."""
    fake = FakeTime()
    monkeypatch.setattr("bench.models._paced.time", fake)
    return fake


def paced(**options):
    """The stand-in: 8 ms forward and 16 ms backward for the 4 samples of `step`."""
    defaults = {"forward_s_per_sample": 0.002, "backward_s_per_sample": 0.004}
    return workload(Case(model="paced", model_args=defaults | options)).model


def step(model, clock, batch=4):
    """One forward and backward pass, and how long each took in milliseconds."""
    from bench.models._paced import PacedLoss

    inputs = torch.randn(batch, 10)
    start_s = clock.perf_counter()
    inner = getattr(model, "module", model)
    paced_loss = PacedLoss(batch * inner.forward_s_per_sample + inner.slow_forward_s)
    loss = paced_loss(model, (inputs, torch.zeros(batch, dtype=torch.long)))
    middle_s = clock.perf_counter()
    loss.backward()
    return (middle_s - start_s) * 1e3, (clock.perf_counter() - middle_s) * 1e3


@pytest.mark.parametrize("name", sorted(TORCHVISION))
def test_image_models_have_the_keys_shapes_and_parameter_count_of_torchvision(name):
    """Weights of torchvision load into our ResNets and ViT-B/16: same keys, same order, same shapes."""
    with torch.device("meta"):
        model = workload(Case(model=name)).model
    state = {key: list(value.shape) for key, value in model.state_dict().items()}
    assert list(state.items()) == list(TORCHVISION[name]["state"].items())
    assert sum(p.numel() for p in model.parameters()) == TORCHVISION[name]["parameters"]


def test_bottlenecks_stride_in_their_3x3_convolution():
    """ResNet-50 is version 1.5: the stride of a stage is in its 3x3 convolution."""
    block = workload(Case(model="resnet50")).model.get_submodule("layer2.0")
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


@pytest.mark.parametrize(("name", "size", "classes"), [("resnet18", 224, 1000), ("resnet-small", 64, 100)])
def test_image_models_say_which_samples_they_take(name, size, classes):
    """The sample shape and the number of classes follow the options."""
    assert workload(Case(model=name)).sample.shape == (3, size, size)
    assert workload(Case(model=name)).sample.classes == classes
    own = workload(Case(model=name, model_args={"image_size": 32, "classes": 7}))
    assert (own.sample.shape, own.sample.classes) == ((3, 32, 32), 7)
    assert own.model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_small_resnet_is_small_and_normalised():
    """The CPU model keeps to some half a million parameters and has BatchNorm for SyncBN to matter."""
    model = workload(Case(model="resnet-small")).model
    assert 200_000 < sum(p.numel() for p in model.parameters()) < 700_000
    assert sum(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules()) == 24


def test_gpt2_has_the_parameters_of_gpt2_small():
    """124,439,808, the head being the embedding; sequences shorter than 1024 change nothing in it, longer ones do."""
    with torch.device("meta"):
        models = [workload(Case(model="gpt2", model_args={"sequence": t})).model for t in (1024, 128, 2048)]
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert counts == [124_439_808, 124_439_808, 124_439_808 + 1024 * 768]
    assert models[0].lm_head.weight is models[0].transformer["wte"].weight


def test_small_gpt_is_small():
    """The CPU model keeps to less than a million parameters."""
    assert 500_000 < sum(p.numel() for p in workload(Case(model="gpt-small")).model.parameters()) < 1_000_000


def test_gpt_sees_nothing_of_what_follows():
    """A change of the last id changes the logits of the last position alone."""
    model = workload(Case(model="gpt-small")).model
    ids = torch.randint(512, (1, 64), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % 512
    changed = (model(ids) - model(other)).abs().sum(-1)[0]
    assert changed[:-1].max() == 0 and changed[-1] > 0


def test_gpt_loss_counts_every_position():
    """The loss is the mean over all positions of minus the log probability of the target there."""
    made = workload(Case(model="gpt-small", model_args={"sequence": 5, "vocabulary": 11}))
    generator = torch.Generator().manual_seed(0)
    ids, targets = (torch.randint(11, (3, 5), generator=generator) for _ in range(2))
    chosen = made.model(ids).softmax(-1).gather(-1, targets[..., None])
    assert made.loss(made.model, (ids, targets)).item() == pytest.approx(
        -chosen.log().mean().item(), rel=1e-5
    )


@pytest.fixture
def one_thread():
    """Small sums are quicker on one thread, much so on a busy host."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_image_and_token_models_learn_a_batch(one_thread):
    """Steps on one batch lower the loss by much: gradients go where they should."""
    vit = {"image_size": 16, "classes": 4, "patch": 4, "width": 32, "depth": 2, "heads": 2}
    gpt = {"sequence": 16, "vocabulary": 20, "width": 32, "depth": 2, "heads": 2}
    for name, options in (("vit", vit), ("gpt2", gpt)):
        torch.manual_seed(0)
        made = workload(Case(model=name, model_args=options))
        inputs = torch.randint(20, (8, 16)) if name == "gpt2" else torch.randn(8, 3, 16, 16)
        targets = inputs.roll(1, 1) if name == "gpt2" else torch.arange(8) % 4
        optimizer, losses = torch.optim.AdamW(made.model.parameters(), lr=0.01), []
        for _ in range(15):
            loss = made.loss(made.model, (inputs, targets))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.6 * losses[0], (name, losses[0], losses[-1])


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("gpt2", {"width": 10, "heads": 4}, "width = 10 does not divide by heads = 4"),
        (
            "vit",
            {"width": 10, "heads": 4},
            "width = 10 does not divide by heads = 4: make it a multiple of 4",
        ),
        (
            "vit",
            {"image_size": 100},
            "image_size = 100 does not divide by patch = 16: make it a multiple of 16",
        ),
    ],
)
def test_sizes_that_do_not_divide_are_refused(name, options, text):
    """The line names both numbers and what to give instead."""
    with pytest.raises(UsageError, match=f"model_args of '{name}': {text}"):
        workload(Case(model=name, model_args=options))


def test_mlp_takes_its_sizes_from_the_options():
    """Width, depth, inputs and classes set the layers."""
    options = {"width": 8, "depth": 3, "inputs": 5, "classes": 2}
    made = workload(Case(model="mlp", model_args=options))
    sizes = [(m.in_features, m.out_features) for m in made.model if isinstance(m, torch.nn.Linear)]
    assert sizes == [(5, 8), (8, 8), (8, 2)]
    assert (made.sample.shape, made.sample.classes) == ((5,), 2)


@pytest.mark.parametrize("layers", [1, 3, 16])
def test_paced_passes_end_at_their_deadlines(clock, layers):
    """Sleeps that end late do not add up over the layers: a pass is late by the last one at most."""
    model = paced(layers=layers)
    for _ in range(3):
        assert step(model, clock) == (pytest.approx(8.1), pytest.approx(16.0))


def test_paced_step_is_never_shorter_than_asked():
    """On a real clock too, a pass takes at least its stated time."""
    forward, backward = step(paced(), time)
    assert forward >= 8 and forward + backward >= 24


def test_paced_absorbs_work_inside_a_layer(clock):
    """A delay in a gradient hook is made up for by the next layer's shorter sleep."""
    model = paced(layers=4)
    model.layers[3].weight.register_post_accumulate_grad_hook(lambda _: clock.sleep(0.0035))
    assert step(model, clock)[1] == pytest.approx(16.0)


def test_paced_gradients_become_ready_during_backward_last_layer_first(clock):
    """Gradients arrive evenly, and before the pass ends, so their collectives can run meanwhile."""
    model, ready = paced(layers=3), []
    for number, layer in enumerate(model.layers):
        layer.weight.register_post_accumulate_grad_hook(lambda _, n=number: ready.append((n, clock.now_s)))
    assert step(model, clock)[1] == pytest.approx(16.0)
    times_ms = [round((now_s - 0.0081) * 1e3, 3) for _, now_s in ready]
    assert [number for number, _ in ready] == [2, 1, 0]
    assert times_ms == [4.0, 8.0, 12.0]


def test_paced_time_follows_the_samples(clock):
    """Twice the samples take twice the time, as DataParallel's chunks need it."""
    clock.late_s = 0.0
    model = paced()
    assert step(model, clock, 8) == pytest.approx([2 * ms for ms in step(model, clock, 4)])


def test_paced_replicas_in_threads_do_not_disturb_each_other(clock):
    """One module and its copies, used from several threads at once, keep each thread's own deadlines."""
    model, took = paced(), []
    replicas = [model, model, copy.deepcopy(model), copy.deepcopy(model)]
    gate = threading.Barrier(len(replicas))

    def run(replica):
        clock.now_s, clock.late_s = float(threading.get_ident() % 1000), 1e-4
        gate.wait()
        took.append(step(replica, clock))

    threads = [threading.Thread(target=run, args=(replica,)) for replica in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert took == [(pytest.approx(8.1), pytest.approx(16.0))] * 4


def test_paced_has_the_gradients_of_what_it_computes():
    """The sleeping function is an honest one: its gradients agree with finite differences."""
    from bench.models._paced import Backward, PacedLayer

    layer, at_once = PacedLayer(3).double(), Backward(0.0, 0.0)
    inputs = torch.randn(2, 4, dtype=torch.double, requires_grad=True)
    weight = torch.randn(3, dtype=torch.double, requires_grad=True)

    def scaled(x, w):
        return torch.func.functional_call(layer, {"weight": w}, (x, 0.0, at_once, 1.0))

    assert torch.autograd.gradcheck(scaled, (inputs, weight))


@pytest.mark.parametrize(("parameters", "layers"), [(1000, 8), (1_000_003, 16), (5, 5)])
def test_paced_has_exactly_the_parameters_asked_for(parameters, layers):
    """The gradient volume of the stand-in is what the case says, to the number."""
    model = paced(parameters=parameters, layers=layers)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(list(model.parameters())) == layers


def test_paced_refuses_fewer_parameters_than_layers():
    """A layer without a parameter has no gradient to be ready."""
    with pytest.raises(UsageError, match=r"parameters = 3 for 8 layers: a layer needs at least one"):
        paced(parameters=3)


def test_paced_delay_hits_the_slow_rank_alone(clock, monkeypatch):
    """The injected delay goes to the rank of that RANK, once a pass."""
    slow = {"slow_rank": 1, "slow_backward_s": 0.03, "slow_forward_s": 0.01}
    took = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        took.append(step(paced(**slow), clock))
    assert took[0] == (pytest.approx(8.1), pytest.approx(16.0))
    assert took[1] == (pytest.approx(18.1), pytest.approx(46.0))


def test_paced_runs_under_ddp_with_real_collectives(clock, tmp_path):
    """DDP finds the stand-in's gradients and reduces them, at world size 1 as well."""
    import torch.distributed as dist

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(paced())
        assert step(model, clock)[1] == pytest.approx(16.0)
        assert all(p.grad.abs().sum() > 0 for p in model.parameters())
    finally:
        dist.destroy_process_group()


def test_unknown_model_is_answered_with_the_known_ones():
    """A typo in a model's name gives the names there are and the nearest."""
    with pytest.raises(UsageError, match=r"known: gpt-small, gpt2, .*did you mean 'resnet18'"):
        plugins.load("models", "resnet-18")
