"""A user's factory: found, called, checked; and one line for each thing that can be wrong with it."""

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from bench import plugins
from bench.case import Case
from bench.errors import UsageError
from bench.failures import REMEDIES
from bench.user import check_picklable, load_factory, workload

torch = pytest.importorskip("torch")
nn = torch.nn
defaults = pytest.importorskip("bench.workload")
Sample, Workload = defaults.Sample, defaults.Workload

ROOT = Path(__file__).parent.parent


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory of a user's own; returns a function that writes a module into it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name, source):
        path = tmp_path / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


def failure(spec, **fields):
    """The one line that comes of building a spec."""
    with pytest.raises(UsageError) as caught:
        workload(Case(model=spec, **fields))
    assert "\n" not in str(caught.value) and spec in str(caught.value)
    return str(caught.value)


def test_builtin_models_check_their_options():
    """A model of the suite refuses options it does not have, before it is built."""
    with pytest.raises(
        UsageError, match=r"model_args of 'mlp': unknown option 'hidden'; allowed.*width = 1024"
    ):
        workload(Case(model="mlp", model_args={"hidden": 3}))


def test_bare_module_becomes_a_classifier_with_the_defaults(project):
    """Cross entropy, SGD and 224 x 224 images are assumed, with the classes of the last linear layer."""
    project("my_net", "from torch import nn\ndef build(case): return nn.Linear(3, 7)")
    made = workload(Case(model="my_net:build"))
    assert (made.loss, made.optimizer, made.dataset) == (defaults.classification_loss, defaults.sgd, None)
    assert made.sample == Sample((3, 224, 224), 7)
    sized = workload(Case(model="my_net:build", model_args={"image_size": 32, "classes": 5}))
    assert sized.sample == Sample((3, 32, 32), 5)
    with pytest.raises(UsageError, match="image_size = 'big': wrong type str, needs int"):
        workload(Case(model="my_net:build", model_args={"image_size": "big"}))


def test_workload_is_taken_as_it_is(project):
    """What a factory says of sample, loss and data set is left alone, and the Case reaches it."""
    project(
        "my_work",
        """
        from torch import nn
        from bench.workload import Sample, Workload
        def build(case): return Workload(nn.Linear(case.model_args["n"], 1), sample=Sample((4,), 2))
        """,
    )
    made = workload(Case(model="my_work:build", model_args={"n": 9}))
    assert (made.model.in_features, made.sample) == (9, Sample((4,), 2))


def test_data_sets_without_an_index_are_refused(project):
    """A stream cannot be shared out by index: every rank would see the same samples, so it is refused."""
    project(
        "my_stream",
        """
        from torch import nn
        from torch.utils.data import IterableDataset
        from bench.workload import Workload
        class Stream(IterableDataset):
            def __iter__(self): return iter(range(3))
        def build(case): return Workload(nn.Linear(1, 1), dataset=Stream())
        """,
    )
    with pytest.raises(UsageError, match="dataset is a Stream; ranks share a data set by index"):
        workload(Case(model="my_stream:build"))


def test_working_directory_goes_last_on_the_path(project, tmp_path):
    """A user's file named like an installed module does not replace it."""
    project("bench.mine", "x = 1")
    project(
        "my_json",
        "import json\nfrom torch import nn\ndef build(case): return nn.Linear(1, len(json.loads('[1]')))",
    )
    project("json", "raise RuntimeError('the wrong json')")
    assert load_factory("my_json:build")(Case()).model.out_features == 1
    assert sys.path[-1] == str(tmp_path)
    text = failure("bench.mine:build")
    assert "no module 'bench.mine'" in text and f"'bench' is {Path(plugins.__file__).parent}" in text


@pytest.mark.parametrize("spec", ["my_net:", ":build", "a b:build", "my_net:build:more", "3d:build"])
def test_form_of_a_factory_is_checked(spec):
    """A name that is not package.module:factory is answered with the form and an example."""
    assert "is named package.module:factory, such as examples.my_training:build" in failure(spec)


def test_file_name_in_place_of_a_module_is_corrected():
    """A path is answered with the dotted name that was meant."""
    assert failure("examples/my_training.py:build").endswith("; write examples.my_training:build")


def test_missing_module_says_where_it_was_looked_for(project, tmp_path):
    """The missing part and the working directory are named."""
    assert f"no module 'my_gone' on the Python path or in {tmp_path}" in failure("my_gone.sub:build")


def test_missing_attribute_names_the_file_it_is_not_in(project, tmp_path):
    """A wrong function name shows which file was read."""
    project("my_net", "def build(case): pass\nNUMBER = 3")
    assert f"{tmp_path / 'my_net.py'} has no 'biuld'" in failure("my_net:biuld")
    assert "NUMBER is a int; a function of the Case is needed" in failure("my_net:NUMBER")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nonexistent_thing", "ModuleNotFoundError: No module named 'nonexistent_thing', my_bad.py:1"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero, my_bad.py:2"),
        ("import sys\nsys.exit('usage: ...')", "SystemExit: usage: ..., my_bad.py:2"),
        ("def build(case:", "SyntaxError: '(' was never closed (my_bad.py, line 1)"),
    ],
)
def test_module_that_fails_to_import_is_told_with_its_line(project, source, told):
    """An error inside the user's module is not mistaken for a missing one."""
    project("my_bad", source)
    assert f"importing my_bad raised {told}" in failure("my_bad:build")


def test_factory_that_raises_is_told_with_its_line(project):
    """The exception, its text in one line, and the user's line."""
    project("my_bad", "def build(case):\n    raise KeyError('two\\nlines')")
    assert r"the factory raised KeyError: 'two\nlines', my_bad.py:2" in failure("my_bad:build")


def test_known_mistakes_are_told_with_what_to_do(project):
    """A misspelt name is answered with the nearest, another known mistake with its remedy."""
    project("my_bad", "import torch\ndef build(case):\n    return torch.cuda.device_counts()")
    assert failure("my_bad:build").endswith("'device_counts', my_bad.py:3; did you mean 'device_count'?")
    project("my_worse", "import torch.distributed as d\ndef build(case):\n    return d.get_rank()")
    assert failure("my_worse:build").endswith(f"my_worse.py:3; {REMEDIES['process_group']}")


@pytest.mark.parametrize("where", ["importing my_gpu", "the factory"])
def test_code_that_sets_the_visible_devices_is_refused(project, monkeypatch, where):
    """It would have no effect: on import or in the factory, the variable must stay as it was."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    line = "os.environ['CUDA_VISIBLE_DEVICES'] = '1'"
    top, inside = (line, "pass") if where != "the factory" else ("", line)
    project(
        "my_gpu",
        f"import os\nfrom torch import nn\n{top}\ndef build(case):\n    {inside}\n    return nn.Linear(1, 1)",
    )
    text = failure("my_gpu:build")
    assert f"{where} set CUDA_VISIBLE_DEVICES to '1'" in text and "--devices" in text


def test_factory_out_of_memory_stays_that(project):
    """Running out of memory is a matter of the host and keeps its own type."""
    project("my_big", "def build(case): raise MemoryError('big')")
    with pytest.raises(MemoryError):
        workload(Case(model="my_big:build"))


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("None", "the factory returned a NoneType; return an nn.Module or a Workload"),
        ("(nn.Linear(1, 1), None)", "the factory returned a tuple;"),
        ("Workload(nn.Linear)", "Workload.model is a type, not an nn.Module"),
        ("Workload(nn.Linear(1, 1), loss=3)", "Workload.loss is a int, no function"),
        (
            "Workload(nn.Linear(1, 1), dataset=Endless())",
            "dataset is a Endless; ranks share a data set by index",
        ),
    ],
)
def test_wrong_results_of_a_factory_are_refused(project, expression, told):
    """What a factory returns is checked before anything is launched."""
    project(
        "my_bad",
        f"""
        from torch import nn
        from bench.workload import Workload
        class Endless:
            def __getitem__(self, index): return index
        def build(case): return {expression}
        """,
    )
    assert told in failure("my_bad:build")


class Listed(torch.utils.data.Dataset):
    """A data set with one attribute and one list."""

    def __init__(self, transform, steps=()):
        self.transform, self.steps = transform, list(steps)
        self.parent = self

    def __len__(self):
        return 1


def test_picklable_workload_passes():
    """Data set and collate function at the top level of a module are fine, and None is."""
    check_picklable(Workload(nn.Linear(1, 1)))
    check_picklable(Workload(nn.Linear(1, 1), dataset=Listed(len), collate=list))


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda: {"dataset": Listed(lambda x: x)}, "dataset.transform"),
        (
            lambda: {"dataset": torch.utils.data.Subset(Listed(1, [1, lambda x: x]), [0])},
            "dataset.dataset.steps[1]",
        ),
        (lambda: {"dataset": Listed({"a": threading.Lock()})}, "dataset.transform['a']"),
        (lambda: {"dataset": type("Local", (Listed,), {})(1)}, "dataset"),
        (lambda: {"collate": lambda items: items}, "collate"),
    ],
)
def test_attribute_that_cannot_be_pickled_is_named(made, named):
    """The innermost culprit is named, with what to do about it."""
    with pytest.raises(UsageError) as caught:
        check_picklable(Workload(nn.Linear(1, 1), **made()), "model 'x:build'")
    assert str(caught.value).startswith(
        f"model 'x:build': {named} cannot be pickled, as loader workers need ("
    )
    assert "\n" not in str(caught.value) and "define it at the top level" in str(caught.value)


class Huge(torch.Tensor):
    """A tensor that must not be copied."""

    def __reduce_ex__(self, protocol):
        raise MemoryError("too large to pickle")


def test_tensors_are_not_copied_by_the_check():
    """A data set that fills the memory can be checked: its tensors are passed over."""
    check_picklable(Workload(nn.Linear(1, 1), dataset=Listed(torch.empty(1).as_subclass(Huge))))


@pytest.mark.parametrize(("name", "model_args"), [("my_training", {"width": 8}), ("from_train", {})])
def test_documented_examples_train(monkeypatch, name, model_args):
    """The examples with a data set build, pickle, load in workers and learn."""
    monkeypatch.chdir(ROOT)
    made = workload(Case(model=f"examples.{name}:build", model_args=model_args))
    check_picklable(made)
    loader = torch.utils.data.DataLoader(
        made.dataset, batch_size=16, num_workers=1, collate_fn=made.collate, multiprocessing_context="fork"
    )
    optimizer, losses = made.optimizer(made.model.parameters()), []
    for _, batch in zip(range(60), loader, strict=False):
        assert made.samples(batch) == 16
        loss = made.loss(made.model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


def test_user_models_load_without_torch():
    """The command line can name a user's model where torch is not installed."""
    code = "import sys; sys.modules['torch'] = None; import bench.user, bench.options"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_documented_model_is_taken_for_a_classifier(monkeypatch):
    """The example that is a model and nothing else: pictures are made for it, of as many classes as it has outputs."""
    monkeypatch.chdir(ROOT)
    made = workload(Case(model="examples.my_model:build"))
    assert made.sample == Sample((3, 224, 224), 10)
    assert made.loss(made.model, (torch.zeros(2, 3, 224, 224), torch.tensor([0, 9]))).item() > 0
