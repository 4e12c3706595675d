"""Every strategy plug-in: loads without torch, and trains as one device does, or says what it is instead."""

import subprocess

import pytest

from bench import plugins
from bench.case import Case
from bench.machine import own_python

torch = pytest.importorskip("torch")

from bench.place import Place  # noqa: E402

NAMES = plugins.names("strategies")
PLACE = Place(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"), devices=())


@pytest.fixture(scope="module")
def group():
    """A process group of one, for strategies that need one."""
    from torch import distributed

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_loads_without_torch(name):
    """Plans read a strategy's facts where torch does not exist."""
    code = f"sys.modules['torch'] = None; from bench import plugins; plugins.load('strategies', {name!r})"
    subprocess.run(own_python(code), check=True, timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_says_what_it_is(name):
    """A summary, and no contradictions between its facts."""
    strategy = plugins.load("strategies", name)
    assert strategy.summary
    assert not (strategy.collective and strategy.single_process)
    assert not (strategy.one_device and strategy.collective)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_one_device(name, group):
    """One step on the same batch gives the same gradients as the bare model, in float64, to rounding."""
    strategy = plugins.load("strategies", name)
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    twin = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    twin.load_state_dict(plain.state_dict())
    case = Case(strategy=name, ranks=2 if strategy.single_process else 1)
    wrapped = strategy.wrap(twin, case, PLACE)
    x, y = torch.randn(7, 6, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    ((plain(x) - y) ** 2).mean().backward()
    ((wrapped(x) - y) ** 2).mean().backward()
    for ours, theirs in zip(twin.parameters(), plain.parameters(), strict=True):
        whole = getattr(ours.grad, "full_tensor", lambda grad=ours.grad: grad)()
        torch.testing.assert_close(whole, theirs.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_model_keeps_its_weights_hash(name, group):
    """The hash of the weights does not depend on the wrapper."""
    from bench.readback import weights_hash

    strategy = plugins.load("strategies", name)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    before = weights_hash(model)
    wrapped = strategy.wrap(model, Case(strategy=name, ranks=2 if strategy.single_process else 1), PLACE)
    assert weights_hash(wrapped) == before
