"""Models by name out of other libraries: what is built, on which samples, and one line for what is not there."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.case import Case
from bench.errors import UsageError
from bench.preflight import _inspect
from bench.user import workload

torch = pytest.importorskip("torch")
Sample = pytest.importorskip("bench.workload").Sample

ROOT = Path(__file__).parent.parent
SMALL = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
GPT2 = {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """transformers says nothing of ids beyond a small vocabulary; what the adapter sets is taken back."""
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def imports(package):
    """Skip where a library is not installed, or does not import beside this torch."""
    try:
        __import__(package)
    except (ImportError, RuntimeError, AttributeError) as error:
        pytest.skip(f"{package} does not import here: {error}")


def build(name, **options):
    return workload(Case(model=name, model_args=options))


def refusal(name, **options):
    """The one line that comes of building a model."""
    with pytest.raises(UsageError) as caught:
        build(name, **options)
    assert "\n" not in str(caught.value) and name in str(caught.value)
    return str(caught.value)


def step(made):
    """The loss of a batch of two random samples; every parameter must get a gradient."""
    torch.manual_seed(0)
    shape, classes = made.sample.shape, made.sample.classes
    if made.sample.tokens:
        ids = torch.randint(classes, (2, shape[0] + 1))
        batch = (ids[:, :-1], ids[:, 1:])
    else:
        batch = (torch.randn(2, *shape), torch.randint(classes, (2,)))
    loss = made.loss(made.model.train(), batch)
    loss.backward()
    assert [key for key, p in made.model.named_parameters() if p.grad is None] == []
    return loss.item()


@pytest.mark.parametrize(
    ("name", "options", "built", "sequence"),
    [
        ("hf:gpt2", GPT2, "GPT2LMHeadModel", 512),
        ("hf:gpt2", GPT2 | {"n_positions": 64}, "GPT2LMHeadModel", 32),
        ("hf:llama", SMALL | {"intermediate_size": 32, "sequence": 24}, "LlamaForCausalLM", 24),
        ("hf:bert", SMALL | {"intermediate_size": 32}, "BertForMaskedLM", 256),
        (
            "hf:t5",
            {
                "vocab_size": 60,
                "d_model": 16,
                "d_kv": 8,
                "d_ff": 32,
                "num_layers": 1,
                "num_heads": 2,
                "sequence": 16,
            },
            "T5ForConditionalGeneration",
            16,
        ),
    ],
)
def test_language_models_train_on_token_ids(name, options, built, sequence):
    """The class follows from the type; ids fill half the positions; an untrained loss is that of a guess."""
    imports("transformers")
    made = build(name, **options)
    assert type(made.model.model).__name__ == built
    assert made.sample == Sample((sequence,), 60, tokens=True)
    assert step(made) == pytest.approx(math.log(60), rel=0.02 if built != "T5ForConditionalGeneration" else 1)


def test_image_types_of_transformers_classify():
    """A vision type takes images of its configuration's size, and its labels are the classes."""
    imports("transformers")
    small = {key: value for key, value in SMALL.items() if key != "vocab_size"} | {"intermediate_size": 32}
    made = build("hf:vit", **small, image_size=32, num_labels=5)
    assert type(made.model.model).__name__ == "ViTForImageClassification"
    assert made.sample == Sample((3, 32, 32), 5)
    assert 0.5 < step(made) < 4
    assert made.model(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_masked_models_learn_the_masked_positions_alone():
    """The loss does not ask for ids that the model was shown, and does not show those that it asks for."""
    imports("transformers")
    from bench.models._hf import MaskedLoss

    seen = []

    def model(ids):
        seen.append(ids)
        return torch.nn.functional.one_hot(ids, 10).float() * 100  # sure of what it is shown

    ids = torch.arange(2, 10).repeat(1, 2)
    loss = MaskedLoss(mask_id=0)(model, (ids, None))
    shown = seen[0][0].tolist()
    assert [i for i, value in enumerate(shown) if value == 0] == [0, 7, 14]
    assert [value for value in shown if value] == [int(v) for i, v in enumerate(ids[0]) if i % 7]
    assert loss.item() == pytest.approx(100)


def test_gpt2_has_keys_shapes_and_logits_of_transformers():
    """Weights of GPT2LMHeadModel load into gpt2: the same keys in the same order, shapes, and the same logits."""
    imports("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        theirs, ours = GPT2LMHeadModel(GPT2Config()), build("gpt2").model
    assert shapes(ours) == shapes(theirs)

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    theirs = GPT2LMHeadModel(config).eval().double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    # gpt-small: its table of positions is as long as the sequence here
    ours = build("gpt-small", vocabulary=60, sequence=64, width=32, depth=2, heads=4).model.eval().double()
    weights = theirs.state_dict()
    table = torch.zeros(64, 32, dtype=torch.double)
    table[:16] = weights["transformer.wpe.weight"]
    ours.load_state_dict(weights | {"transformer.wpe.weight": table})
    ids = torch.randint(60, (3, 16))
    assert torch.allclose(ours(ids), theirs(ids).logits, rtol=1e-9, atol=1e-9)
    assert theirs(ids).logits.std() > 0.1


def shapes(model):
    return [(key, value.shape) for key, value in model.state_dict().items()]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("hf:gtp2", {}, r"no model type of transformers 'gtp2' among \d+; nearest: .*gpt2"),
        (
            "hf:gpt2",
            {"n_layr": 1},
            r"no option or field of its configuration 'n_layr' among \d+; nearest: n_layer",
        ),
        ("hf:gpt2", {"n_layer": "two"}, "n_layer.*expected int, got str"),
        ("hf:gpt2", {"n_layer": 0}, "n_layer = 0: needs at least 1"),
        ("hf:gpt2", {"num_hidden_layers": -1}, "num_hidden_layers = -1: needs at least 1"),
        ("hf:gpt2", {"n_embd": 10, "n_head": 3}, "building it raised ValueError"),
        ("hf:gpt2", {"sequence": 1025}, "sequence = 1025, and the model has 1024 positions: lower sequence"),
        ("hf:whisper", {}, "neither language modelling nor image classification"),
    ],
)
def test_what_transformers_does_not_have_is_one_line(name, options, says):
    """Unknown types and fields get the nearest names; wrong values and types of other use say why."""
    imports("transformers")
    assert re.search(says, refusal(name, **options))


def test_preflight_finds_what_a_model_by_name_brings():
    """What the rules ask for, its kind of sample and its BatchNorm layers, is read from the model once built."""
    imports("transformers")
    image = _inspect(Case(model="hf:resnet", model_args={"image_size": 32}))
    assert (image.image, image.tokens, image.batch_norm, image.has_sample) == (True, False, True, True)
    text = _inspect(Case(model="hf:gpt2", model_args=GPT2))
    assert (text.image, text.tokens, text.batch_norm, text.has_sample) == (False, True, False, True)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A function that puts a package of a name and a source in front of all others."""
    made = []

    def put(name, source):
        for module in [key for key in sys.modules if key.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
        made.append(name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield put
    for name in made:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18", "hf:gpt2"])
def test_missing_library_is_one_line(monkeypatch, name):
    """The line names the package and how it is installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    package = {"hf": "transformers"}.get(name.partition(":")[0], name.partition(":")[0])
    line = refusal(name)
    assert (
        f"the package {package} is not installed: install the extra 'models' (in a clone: .venv/bin/pip"
        in line
    )


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18", "hf:gpt2"])
def test_library_that_does_not_import_is_one_line(fake, name):
    """A torchvision built for another torch fails as it is imported: its own words, and what fits."""
    package = {"hf": "transformers"}.get(name.partition(":")[0], name.partition(":")[0])
    source = "raise RuntimeError('operator torchvision::nms\\n does not exist')"
    fake(package, source)
    line = refusal(name)
    assert (
        f"importing {package} raised RuntimeError: operator torchvision::nms does not exist: install" in line
    )
    assert torch.__version__ in line


STAND_IN = """
import types
from torch import nn
made = []
def make(name, **given):
    made.append((name, given))
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(given["num_classes"]))
    net.default_cfg = {"input_size": (3, 48, 48)}
    return net
def get_pretrained_cfg(name):
    return types.SimpleNamespace(fixed_input_size=name.startswith("vit_"))
def list_models(module=None):
    return ["resnet18", "resnet34", "googlenet", "vit_b_16"]
get_model = create_model = make
models = types.SimpleNamespace(get_model=make, list_models=list_models)
"""


@pytest.mark.parametrize(
    ("name", "options", "given", "sample"),
    [
        ("torchvision:resnet18", {}, {"weights": None}, (224, 1000)),
        ("torchvision:vit_b_16", {"image_size": 32}, {"weights": None, "image_size": 32}, (32, 1000)),
        (
            "torchvision:googlenet",
            {"classes": 3},
            {"weights": None, "aux_logits": False, "init_weights": False},
            (224, 3),
        ),
        ("timm:resnet18", {"image_size": 64}, {"pretrained": False}, (64, 1000)),
        ("timm:vit_b_16", {}, {"pretrained": False}, (48, 1000)),
        ("timm:vit_b_16", {"image_size": 32}, {"pretrained": False, "img_size": 32}, (32, 1000)),
    ],
)
def test_image_libraries_are_asked_for_random_weights(fake, name, options, given, sample):
    """Of a library stood in for: what it is called with, and the samples that follow; no weights are loaded."""
    package, _, model = name.partition(":")
    fake(package, STAND_IN)
    made = build(name, **options)
    size, classes = sample
    assert sys.modules[package].made == [(model, {"num_classes": classes, **given})]
    assert made.sample == Sample((3, size, size), classes)


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_unknown_model_of_an_image_library_gets_the_nearest(fake, package):
    """A typo is answered with near names; nothing is looked for on a hub."""
    fake(package, STAND_IN)
    assert "'resnet81' among 4; nearest: resnet18" in refusal(f"{package}:resnet81")
    assert "'hf-hub:x/y' among 4" in refusal(f"{package}:hf-hub:x/y")


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        ("torchvision:resnet18", {}, 11_689_512),
        ("torchvision:googlenet", {}, 6_624_904),
        ("torchvision:vit_b_32", {"image_size": 64, "classes": 7}, 87_426_055),
        ("timm:resnet18", {"image_size": 64}, 11_689_512),
        ("timm:vit_tiny_patch16_224", {"image_size": 64}, 5_682_856),
    ],
)
def test_image_libraries_train(name, options, parameters):
    """Where the library imports: the model's size, and a finite loss from the samples that it says it takes."""
    imports(name.partition(":")[0])
    made = build(name, **options)
    assert sum(p.numel() for p in made.model.parameters()) == parameters
    assert math.isfinite(step(made))


def test_adapters_are_listed_without_their_libraries():
    """`scalemark list models` names them, and loads neither torch nor any of the three."""
    code = (
        "import sys\n"
        "for name in ('torch', 'torchvision', 'timm', 'transformers'): sys.modules[name] = None\n"
        "from bench.cli import app; app(['list', 'models'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name in ("hf", "timm", "torchvision", "gpt2", "gpt-small", "vit"):
        assert f"\n  {name} " in done.stdout
