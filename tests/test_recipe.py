"""How a step is taken: precision, accumulation, optimizers; on one rank, in this process."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from bench import plugins  # noqa: E402
from bench.build import make_model  # noqa: E402
from bench.case import Case  # noqa: E402
from bench.loop import CpuClock, timed_steps  # noqa: E402
from bench.place import Place  # noqa: E402
from bench.readback import Witness, optimizer_name, wrapper_name  # noqa: E402
from bench.recipe import make_optimizer, make_training, unwrapped  # noqa: E402
from bench.strategies.fsdp import blocks  # noqa: E402
from bench.workload import Workload  # noqa: E402

PLACE = Place(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"), devices=())
RANKED = ["ddp", "zero1", "fsdp"]


@pytest.fixture(scope="module")
def group():
    """A process group of one, for strategies that need one."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def net(dtype=torch.float32):
    """Two linear layers, the same at every call."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(dtype)


def batches(size, dtype=torch.float32):
    """Batches of the same 12 samples in order, without end."""
    torch.manual_seed(1)
    x, y = torch.randn(12, 6, dtype=dtype), torch.arange(12) % 3
    return itertools.cycle(list(zip(x.split(size), y.split(size), strict=True)))


def trained(steps, size, dtype=torch.float64, **settings):
    """Parameters after some steps on micro-batches of `size`, and the training that made them."""
    case = Case(**settings)
    strategy = plugins.load("strategies", case.strategy)
    workload = Workload(net(dtype))
    model = make_model(case, workload, strategy, PLACE)
    optimizer = make_optimizer(case, workload, strategy, model)
    training = make_training(case, workload, PLACE, model, optimizer, batches(size, dtype), lambda b: b)
    witness = Witness(model)
    timed_steps(training, CpuClock(), steps, lambda: None, [0])
    training.witness = witness
    return [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()], training


@pytest.mark.parametrize("strategy", ["single", "dp", *RANKED])
def test_accumulation_trains_as_one_large_batch(strategy, group):
    """Three steps of 3 micro-batches of 4 give the weights of three steps of 12, under every strategy, in float64."""
    whole, _ = trained(3, 12)
    parts, _ = trained(3, 4, strategy=strategy, grad_accumulation=3)
    for ours, theirs in zip(parts, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_are_exchanged_once_a_step(strategy, group):
    """All micro-batches but the last run with the exchange of gradients switched off."""
    case = Case(strategy=strategy, grad_accumulation=3)
    plugin = plugins.load("strategies", strategy)
    workload = Workload(net())
    model = make_model(case, workload, plugin, PLACE)
    optimizer = make_optimizer(case, workload, plugin, model)
    training = make_training(case, workload, PLACE, model, optimizer, batches(4), lambda b: b)
    exchanged = []
    inside = training.loss

    def loss(batch):
        if strategy == "ddp":
            exchanged.append(model.require_backward_grad_sync)
        else:
            exchanged.append(model[0]._get_fsdp_state()._fsdp_param_group.reduce_grads)
        return inside(batch)

    training.loss = loss
    timed_steps(training, CpuClock(), 2, lambda: None, [0])
    assert exchanged == [False, False, True] * 2


def test_replicas_compute_in_the_precision_of_the_step():
    """Autocast belongs to a thread: the reference DataParallel takes it along to its replicas."""
    case = Case(strategy="dp", ranks=2, precision="bf16")
    workload = Workload(net())
    strategy = plugins.load("strategies", "dp")
    model = make_model(case, workload, strategy, PLACE)
    optimizer = make_optimizer(case, workload, strategy, model)
    witness = Witness(model)
    training = make_training(case, workload, PLACE, model, optimizer, batches(4), lambda b: b)
    timed_steps(training, CpuClock(), 1, lambda: None, [0])
    assert witness.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(None, "float32"), ("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")],
)
def test_the_precision_asked_for_is_the_one_layers_compute_in(precision, dtype):
    """What the first layer gives out is of the type asked for; parameters stay float32."""
    parameters, training = trained(2, 4, torch.float32, precision=precision)
    assert training.witness.dtype == dtype
    assert {p.dtype for p in parameters} == {torch.float32}


def test_fp16_scales_its_loss_and_reports_the_loss_itself():
    """Under fp16 a gradient scaler is at work; the loss that is kept is the unscaled one."""
    _, scaled = trained(2, 4, torch.float32, precision="fp16")
    _, plain = trained(2, 4, torch.float32)
    assert scaled.scaler.get_scale() > 1
    assert plain.scaler is None
    assert float(scaled.last_loss.detach()) == pytest.approx(float(plain.last_loss.detach()), rel=0.02)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_fused_and_plain_optimizers_train_alike(optimizer):
    """A fused optimizer is the same optimizer: equal weights after some steps, to rounding."""
    plain, _ = trained(3, 12, torch.float32, optimizer=optimizer)
    fused, _ = trained(3, 12, torch.float32, optimizer=optimizer, fused=True)
    for ours, theirs in zip(fused, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_named_optimizer_takes_the_place_of_the_workloads():
    """sgd and adamw are torch's; without a name the workload's own is used."""
    made = {}
    for name in (None, "sgd", "adamw"):
        case = Case(optimizer=name, fused=name is not None)
        workload = Workload(net(), optimizer=torch.optim.RMSprop)
        made[name] = make_optimizer(case, workload, plugins.load("strategies", "single"), workload.model)
    assert [type(one).__name__ for one in made.values()] == ["RMSprop", "SGD", "AdamW"]
    assert [one.defaults.get("fused") for one in made.values()] == [None, True, True]


def test_zero1_takes_over_class_settings_and_groups(group):
    """The sharded optimizer is the workload's: its class, its rates, its parameter groups."""
    model = net()

    def two_groups(parameters):
        first, *rest = parameters
        groups = [{"params": [first], "lr": 0.5}, {"params": rest}]
        return torch.optim.AdamW(groups, lr=0.25, betas=(0.8, 0.9))

    workload = Workload(model, optimizer=two_groups)
    made = make_optimizer(Case(strategy="zero1"), workload, plugins.load("strategies", "zero1"), model)
    assert optimizer_name(made) == "ZeroRedundancyOptimizer(AdamW)"
    assert [group["lr"] for group in made.param_groups] == [0.5, 0.25]
    assert made.optim.param_groups[1]["betas"] == (0.8, 0.9)


def test_fsdp_shards_block_by_block():
    """Elements of sequences and lists that have parameters are blocks; what is inside one belongs to it."""
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(2, 2)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2))
            self.layer = nn.Sequential(Inner(), Inner())

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    model = Net()
    found = [block for _, _, block in blocks(model)]
    assert model.layer[0] in found
    assert model.layer[0].body[0] not in found
    assert model.embed not in found
    assert model.blocks[0][0] in found
    assert model.blocks[0][1] not in found  # nothing to shard


def test_compiled_models_are_seen_through(group):
    """torch.compile's wrapper is not the model; what fully_shard made of it is, since that is what exchanges."""
    model = net()
    assert unwrapped(torch.compile(model)) is model
    assert unwrapped(model) is model
    flat = torch.nn.Bilinear(2, 2, 2)
    case = Case(strategy="fsdp", compile=True)
    sharded = make_model(case, Workload(flat), plugins.load("strategies", "fsdp"), PLACE)
    assert unwrapped(sharded) is sharded
    assert wrapper_name(unwrapped(sharded)) == "FSDPModule"


def test_sharding_takes_the_ranks_device_and_group(group, monkeypatch):
    """On a CPU rank of a torch built for CUDA the shards lie on the CPU, in the group that there is."""
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
    model = make_model(Case(strategy="fsdp"), Workload(net()), plugins.load("strategies", "fsdp"), PLACE)
    assert {p.device_mesh.device_type for p in model.parameters()} == {"cpu"}
    assert next(model.parameters()).device_mesh.get_group() is torch.distributed.group.WORLD


def test_of_a_compiled_module_only_a_smaller_type_tells(group):
    """Its output is all that can be seen: bfloat16 there is bf16, float32 says nothing."""
    for dtype, said in ((torch.bfloat16, "bfloat16"), (torch.float32, None)):
        compiled = torch.compile(net(), backend="eager")
        witness = Witness(compiled)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            compiled(torch.ones(2, 6))
        assert witness.dtype == said
