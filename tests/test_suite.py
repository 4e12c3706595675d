"""Suites: TOML and overrides to cells."""

import pytest

from bench import suite
from bench.errors import UsageError
from tests.hosts import cpu_host, gpu_host


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def expand(tmp_path, text, host=None, sets=(), nproc=None):
    one = suite.override(suite.load(write(tmp_path, text)), sets)
    return suite.expand(one, host or cpu_host(), nproc)


def test_a_matrix_is_crossed_and_excluded_combinations_are_gone(tmp_path):
    """Every combination of levels is a case, but for those that an exclude matches."""
    text = """
[case]
data = "photos"
[matrix]
num_workers = [0, 2]
persistent_workers = [false, true]
[[exclude]]
num_workers = 0
persistent_workers = true
"""
    found = {(c.num_workers, c.persistent_workers) for c in expand(tmp_path, text)}
    assert found == {(0, False), (2, False), (2, True)}


def test_rank_counts_double_up_to_the_limit():
    """`auto` ranks are 1, 2, 4, ... and the limit itself."""
    assert suite.doubling(1) == [1]
    assert suite.doubling(8) == [1, 2, 4, 8]
    assert suite.doubling(6) == [1, 2, 4, 6]


def test_the_ddp_suite_holds_its_own_base_and_every_rank_count():
    """ddp: the base without a wrapper first, then DDP on 1, 2 and 4 ranks, same model, data and batch."""
    cases = suite.expand(suite.load("ddp"), cpu_host(), 4)
    assert [(c.strategy, c.ranks) for c in cases] == [("single", 1), ("ddp", 1), ("ddp", 2), ("ddp", 4)]
    assert len({(c.model, c.data, c.batch, c.num_workers) for c in cases}) == 1


def test_the_host_decides_the_model():
    """CPU hosts train the small ResNet, hosts with accelerators ResNet-50, both on photographs."""
    assert {c.model for c in suite.expand(suite.load("ddp"), cpu_host())} == {"resnet-small"}
    found = suite.expand(suite.load("ddp"), gpu_host(4))
    assert {c.model for c in found} == {"resnet50"}
    assert {c.data for c in found} == {"photos"}
    assert max(c.ranks for c in found) == 4


def test_strong_scaling_keeps_the_global_batch_of_the_base():
    """--set scaling=strong: base and ranks share one global batch."""
    one = suite.override(suite.load("ddp"), ["scaling=strong"])
    cases = suite.expand(one, cpu_host(), 4)
    assert {c.scaling for c in cases} == {"strong"}
    assert len({c.global_batch for c in cases}) == 1
    assert all(c.global_batch % c.devices == 0 for c in cases)


def test_worker_counts_end_at_the_usable_cpus():
    """loader: 0, 1, 2, 4 as far as the CPUs go, each with pin_memory off and on."""
    found = suite.expand(suite.load("loader"), cpu_host(2))
    assert {(c.num_workers, c.pin_memory) for c in found} == {
        (w, p) for w in (0, 1, 2) for p in (False, True)
    }
    assert max(c.num_workers for c in suite.expand(suite.load("loader"), cpu_host(6))) == 4


def test_syncbn_has_no_cell_without_a_partner():
    """syncbn: with and without at every rank count, and one base without a wrapper."""
    found = suite.expand(suite.load("syncbn"), cpu_host(2))
    assert [c.strategy for c in found].count("single") == 1
    assert {(c.ranks, c.sync_bn) for c in found if c.strategy == "ddp"} == {
        (1, False),
        (1, True),
        (2, False),
        (2, True),
    }


def test_set_makes_replaces_and_fixes_axes(tmp_path):
    """Several values make an axis, one value fixes it, an existing axis is replaced."""
    text = '[case]\ndata = "photos"\n[matrix]\nnum_workers = [0, 1]\n'
    cases = expand(tmp_path, text, sets=["num_workers=3", "batch=4,8", "pin_memory=true"])
    assert {(c.num_workers, c.batch, c.pin_memory) for c in cases} == {(3, 4, True), (3, 8, True)}


def test_set_reaches_the_base():
    """A model that is set is the base's model too: a curve never mixes models."""
    one = suite.override(suite.load("ddp"), ["model=mlp", "num_workers=1,2"])
    cases = suite.expand(one, cpu_host())
    assert {c.model for c in cases} == {"mlp"}
    assert {c.num_workers for c in cases if c.strategy == "single"} == {1, 2}


def test_arguments_of_a_model_are_set_by_a_dotted_name():
    """model_args.width=8 sets one argument and leaves the others."""
    one = suite.override(suite.load("single"), ["model=mlp", "model_args.width=8,16", "data=device"])
    assert [c.model_args for c in suite.expand(one, cpu_host())] == [{"width": 8}, {"width": 16}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[case]\nnum_worker = 2\n", "unknown name 'num_worker'; known: strategy"),
        ("[cases]\n", "unknown name 'cases'; known: case"),
        ("[case]\nranks = 'two'\n", "ranks: Expected `int`, got `str`"),
        ("[case]\nranks = 0\n", "ranks: Expected `int` >= 1"),
        ("[matrix]\nbatch = []\n", "batch: an empty list"),
        ("[case\n", "not TOML"),
        ('[case]\nmodel = "resnet5"\n', "unknown name 'resnet5'"),
        ("title = 3\n", "Expected `str`, got `int`"),
        ("[matrix]\nranks = [[1, 2]]\n", "ranks: [1, 2] is a list"),
        ("[matrix]\nmodel = {a = 1}\n", "model: {'a': 1} is a dict"),
        ("[case]\ntimeout_s = inf\n", "timeout_s: inf is not a finite number"),
        ("[case]\nbucket_cap_mb = inf\n", "bucket_cap_mb: inf is not a finite number"),
        ("[case]\nmodel_args.x = inf\n", "x: inf is not a finite number"),
        (
            "[case]\nprecision = 'int8'\n",
            "precision: unknown name 'int8'; known: bf16, fp16, fp32, tf32, none",
        ),
        ("[case]\nprecision = 'BF16'\n", "did you mean 'bf16'"),
        ("[matrix]\noptimizer = ['adam']\n", "known: adamw, sgd, none; did you mean 'adamw'"),
        ("[case]\ncompile = 'yes'\n", "known: true, false, max-autotune, reduce-overhead"),
        ("[case]\ncompile = 2\n", "compile: unknown name '2'; known: true, false"),
        ("[case]\nsync_bn = 'maybe'\n", "sync_bn: unknown name 'maybe'; known: true, false"),
        ("[case]\nstrategy = 'none'\nmodel = 'mlp'\nseed = 'none'\n", "seed: Expected `int`, got `str`"),
        ("[case]\nmodel_args = 3\n'model_args.width' = 2\n", "model_args: 3 is no table"),
        ("[case]\nmodel_args = [1]\n", "model_args"),
        ("exclude = 3\n", "Expected `array`"),
        ('parts = ["ddp"]\n[case]\nbatch = 4\n', "parts stand instead of"),
        ("", "nothing to run"),
    ],
)
def test_a_wrong_suite_gives_one_line(tmp_path, text, says):
    """What is wrong, where, what is allowed: in one line."""
    with pytest.raises(UsageError) as error:
        expand(tmp_path, text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_suites_and_axes_are_answered_with_the_known_ones():
    """A typo is answered with the known names and the nearest one."""
    with pytest.raises(UsageError, match=r"known: .*ddp.*; did you mean 'single'"):
        suite.load("singel")
    with pytest.raises(UsageError, match="did you mean 'num_workers'"):
        suite.override(suite.load("ddp"), ["num_worker=2"])
    with pytest.raises(UsageError, match="axis=value"):
        suite.override(suite.load("ddp"), ["num_workers"])


def test_a_suite_file_that_is_not_there_is_named(tmp_path):
    """A path that cannot be read is told with the reason."""
    with pytest.raises(UsageError, match=r"gone\.toml: cannot be read \(No such file"):
        suite.load(str(tmp_path / "gone.toml"))


def test_too_many_cells_are_refused_before_they_are_made(tmp_path):
    """A matrix of a hundred thousand cells is refused by its count."""
    levels = list(range(1, 401))
    with pytest.raises(UsageError, match="160000 cells; at most 10000"):
        expand(tmp_path, f"[matrix]\nbatch = {levels}\nseed = {levels}\n")


@pytest.mark.parametrize("name", ["single", "dp", "ddp", "loader", "syncbn"])
def test_every_suite_expands_on_every_kind_of_host(name):
    """The suites that ship give cells, each once, on CPU and GPU hosts."""
    for host in (cpu_host(1), cpu_host(8), gpu_host(1), gpu_host(8)):
        cases = suite.expand(suite.load(name), host)
        assert cases
        assert len({c.id for c in cases}) == len(cases)


def test_what_only_ranks_have_does_not_reach_the_base():
    """--set backend=gloo or sync_bn=true is for the ranks: the base, one device, stays legal."""
    one = suite.override(suite.load("ddp"), ["backend=gloo", "sync_bn=true"])
    found = {c.strategy: (c.backend, c.sync_bn) for c in suite.expand(one, cpu_host())}
    assert found == {"single": (None, False), "ddp": ("gloo", True)}


def test_an_exclude_sees_defaults_and_what_auto_became(tmp_path):
    """An exclude matches the finished case: a default and a value that the host chose count as well."""
    text = """
[case]
model = "auto"
[matrix]
batch = [4, 8]
[[exclude]]
num_workers = 0
model = "resnet-small"
batch = 4
"""
    assert {c.batch for c in expand(tmp_path, text)} == {8}


def test_axes_of_arguments_may_be_tables(tmp_path):
    """[matrix] model_args.width = [8, 16] is an axis, as its quoted form is."""
    text = '[case]\nmodel = "mlp"\ndata = "device"\n[matrix]\nmodel_args.width = [8, 16]\n'
    assert [c.model_args for c in expand(tmp_path, text)] == [{"width": 8}, {"width": 16}]


@pytest.mark.parametrize(
    ("model", "data"),
    [
        ("vit", "photos"),
        ("gpt2", "tokens"),
        ("mlp", "synthetic"),
        ("timm:resnet18", "photos"),
        ("hf:gpt2", "own"),
        ("my.module:build", "own"),
    ],
)
def test_auto_data_is_what_the_model_takes(model, data):
    """Photographs for images, a file of ids for token ids, random samples for the rest; what has to be built says itself."""
    asked = suite.override(suite.load("ddp"), [f"model={model}"])
    assert {case.data for case in suite.expand(asked, cpu_host())} == {data}


@pytest.mark.parametrize("word", ["none", "None", "NULL"])
def test_null_is_a_word_in_any_spelling(tmp_path, word):
    """On the command line and in a file; where a setting cannot be null the word is a name."""
    (found,) = expand(tmp_path, "[case]\nprecision = 'fp32'\n", sets=[f"precision={word}", "model_args.x=1"])
    assert found.precision is None
    (found,) = expand(tmp_path, f"[case]\noptimizer = '{word}'\n")
    assert found.optimizer is None
    (found,) = expand(tmp_path, f"[case]\nstrategy = '{word}'\n")
    assert found.strategy == word


@pytest.mark.parametrize(("word", "value"), [("True", True), ("FALSE", False), ("true", True)])
def test_true_and_false_are_words_in_any_spelling(tmp_path, word, value):
    """As values, as levels, in a file's texts and in an exclude; a compiled case has its longer time limit."""
    (found,) = expand(tmp_path, "[case]\nbatch = 4\n", sets=[f"compile={word}", f"model_args.deep={word}"])
    assert (found.compile, found.model_args) == (value, {"deep": value})
    assert found.timeout_s == (600.0 if value else 180.0)
    text = f"[case]\ncompile = '{word}'\n"
    (found,) = expand(tmp_path, text)
    assert (found.compile, found.timeout_s) == (value, 600.0 if value else 180.0)
    text = f"[case]\nbatch = 4\n[matrix]\nsync_bn = [true, false]\n[[exclude]]\nsync_bn = '{word}'\n"
    assert [case.sync_bn for case in expand(tmp_path, text)] == [not value]


@pytest.mark.parametrize(
    ("text", "chooses"),
    [
        ("[case]\nbatch = 4\n", True),
        ("[matrix]\ndata = ['device', 'auto']\n", True),
        ("[case]\ndata = 'photos'\n[base]\nstrategy = 'single'\n", False),
        ("[case]\ndata = 'photos'\n[base]\ndata = 'auto'\n", True),
        ("[matrix]\ndata = ['own', 'auto']\n", False),
    ],
)
def test_who_names_the_data_is_not_given_other_data(tmp_path, text, chooses):
    """`auto`, of all cells or some, is filled in once the model is known; `own` in words never is."""
    assert suite.chooses_data(suite.load(write(tmp_path, text))) is chooses
