"""What every model must do, run over every file in models/."""

import copy
import io
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench import plugins
from bench.case import Case
from bench.options import check_options
from bench.user import workload

torch = pytest.importorskip("torch")

ALL = plugins.names("models")
NAMES = [name for name in ALL if not plugins.load("models", name).named]  # the others: tests/test_adapters.py
QUICK = {
    "image_size": 32,
    "forward_s_per_sample": 0.0,
    "backward_s_per_sample": 0.0,
    "sequence": 8,
    "vocabulary": 50,
    "patch": 8,
    "heads": 2,
}
NARROW = {"width": 16, "depth": 2}  # for the models that are large by themselves


def build(name):
    """The workload at a size that a test can afford."""
    allowed = plugins.load("models", name).options
    quick = QUICK | (NARROW if "heads" in allowed else {})
    return workload(Case(model=name, model_args={key: quick[key] for key in quick if key in allowed}))


def batch(made, samples=2):
    """Random inputs and targets of the sample shape."""
    torch.manual_seed(0)
    shape, classes = made.sample.shape, made.sample.classes
    if made.sample.tokens:
        return torch.randint(classes, (samples, *shape)), torch.randint(classes, (samples, *shape))
    return torch.randn(samples, *shape), torch.randint(classes, (samples,))


def test_models_load_without_torch():
    """Names, summaries and options of all models are there where torch is not."""
    code = (
        "import sys; sys.modules['torch'] = None; from bench import plugins\n"
        "for name in plugins.names('models'): assert plugins.load('models', name).summary"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("name", ALL)
def test_model_declares_itself(name):
    """A summary in one line, defaults that pass their own check, an example where it takes a name."""
    plugin = plugins.load("models", name)
    assert plugin.summary and "\n" not in plugin.summary
    check_options("models", name, plugin.options, plugin.options)
    assert plugin.named.partition(":")[0] in ("", name) and not (plugin.image and plugin.tokens)


@pytest.mark.parametrize("name", NAMES)
def test_model_takes_the_samples_it_says(name):
    """Square colour images, token ids in a row, or neither of them, as the plug-in says."""
    plugin, sample = plugins.load("models", name), build(name).sample
    assert plugin.image == (len(sample.shape) == 3 and sample.shape[0] == 3)
    assert plugin.tokens == sample.tokens and (not sample.tokens or len(sample.shape) == 1)


@pytest.mark.parametrize("name", NAMES)
def test_model_trains_a_step(name):
    """The loss is a finite scalar, every parameter gets a finite gradient, and the step changes them."""
    made = build(name)
    data = batch(made)
    before = [p.detach().clone() for p in made.model.parameters()]
    optimizer = made.optimizer(made.model.parameters())
    loss = made.loss(made.model, data)
    loss.backward()
    assert loss.shape == () and math.isfinite(loss.item()) and made.samples(data) == 2
    for key, parameter in made.model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), key
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_model_is_the_same_for_the_same_seed(name):
    """Two builds after one seed have equal weights, so that all strategies start alike."""
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build(name).model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_model_can_be_copied_and_saved(name):
    """A deep copy and a pickled copy compute what the model computes; a copy's weights are its own."""
    made = build(name)
    model, (inputs, _) = made.model.eval(), batch(made)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False, map_location="cpu")):
        assert torch.equal(twin(inputs), model(inputs))
        shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in twin.parameters()}
        assert not shared
