"""One process against another: what the reference does with a batch, and what cannot be told of a model."""

import os

import pytest

torch = pytest.importorskip("torch")

from bench import verify_tensors as tensors  # noqa: E402
from bench.case import Case  # noqa: E402
from bench.equality import Equality  # noqa: E402
from bench.float64 import Untellable, join  # noqa: E402
from bench.place import Place  # noqa: E402
from bench.plugins import load  # noqa: E402
from bench.records import Launch  # noqa: E402
from bench.single_process import Single  # noqa: E402
from bench.verify_tensors import apart, apart_each  # noqa: E402
from bench.verifying import work  # noqa: E402

MODEL = {"model": "tests.e2e.unequal:build", "data": "own", "batch": 4, "steps": 3}


def case(strategy="single", ranks=1, fault=None, norm=False, **fields):
    """A case of the model that does not train alike, or does."""
    args = {"norm": norm} | ({"fault": fault} if fault else {})
    return Case(strategy=strategy, ranks=ranks, model_args=args, **MODEL, **fields)


def checked(monkeypatch, tmp_path, one):
    """Outcomes by check of a way of training of one process, run here."""
    threads = torch.get_num_threads()
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = str(tmp_path)
    launch = Launch(launch="x", case=one, task="verify", scratch=folder, logs=folder, conductor_pid=1)
    try:
        found = work(launch, [0] * 8, lambda known: None)
    finally:
        torch.set_num_threads(threads)
    return {check.name: check for check in found["verified"]}


def single(one, world=1):
    """The reference of a case, ready to take steps, and a place of that many ranks."""
    place = Place(rank=0, local_rank=0, world_size=world, node=0, device=torch.device("cpu"), devices=())
    found = Single(one)
    found.start(found.tensors(), load("strategies", one.strategy), place)
    return found


def batches(world, micro=1, count=4, seed=0):
    """Batches of so many ranks and micro-batches, in float64."""
    random = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    return [[[numbers(count, 8), numbers(count, 2)] for _ in range(world)] for _ in range(micro)]


def test_one_process_is_equal_to_itself(monkeypatch, tmp_path):
    """Every check of a model in one process passes, and the gradients are those of the reference."""
    found = checked(monkeypatch, tmp_path, case(grad_accumulation=2))
    assert {check.outcome for check in found.values()} == {"pass", "not applicable"}
    assert found["batch norm"].outcome == "not applicable"
    assert found["gradients"].tolerance == 1e-10


def test_dataparallel_is_followed_chunk_by_chunk(monkeypatch, tmp_path):
    """With BatchNorm its replicas have statistics of their own: known, with the reason, and equal for that."""
    found = checked(monkeypatch, tmp_path, case("dp", 2, norm=True))
    assert found["gradients"].outcome == found["batch norm"].outcome == "pass"
    assert found["global batch"].outcome == "known"
    assert "BatchNorm has the statistics of each replica" in found["global batch"].detail
    assert found["global batch"].tensor == "first.weight"
    without = checked(monkeypatch, tmp_path, case("dp", 2))
    assert without["global batch"].outcome == "pass"


def test_a_reference_that_is_not_finite_is_held_against_nothing():
    """A loss of NaN is no sign of random numbers, and no loss that ranks would have to have."""
    one = single(case())
    with torch.no_grad():
        one.model.last.bias.fill_(float("nan"))
    for look in (one.look, one.step):
        with pytest.raises(Untellable, match="the reference itself is not finite: its loss is nan"):
            look(batches(1))


def test_tensors_that_are_not_finite_are_told_apart_all_the_same():
    """A mask of -inf that depends on the rank is a difference, not an error."""
    low = torch.tensor([0.0, float("-inf")])
    assert tensors.of_one("mask", low, low.flip(0)).told() == "mask differs, and is not finite"
    assert tensors.of_one("mask", torch.zeros(3), low).first == "mask"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("noisy", "the model draws random numbers in training"),
        ("no-double", "not in float64: RuntimeError"),
    ],
)
def test_what_cannot_be_told_is_no_pass(monkeypatch, tmp_path, fault, why):
    """A model that draws random numbers, or does not run in float64: the reason, in the place of a verdict."""
    found = checked(monkeypatch, tmp_path, case(fault=fault))
    for name in ("gradients", "global batch", "loss", "parameters"):
        assert found[name].outcome == "cannot tell"
        assert found[name].detail.startswith(why)


def test_float32_inside_a_model_widens_the_tolerance_and_is_said(monkeypatch, tmp_path):
    """A layer that computes in float32 whatever it is given: the operation is named."""
    found = checked(monkeypatch, tmp_path, case(fault="float32"))
    assert found["gradients"].tolerance == 1e-4
    assert "in float32" in found["gradients"].detail


def test_a_process_by_itself_builds_the_model_as_if_there_were_no_other(monkeypatch, tmp_path):
    """A model that looks at WORLD_SIZE: the reference is built as of one, and the first tensor that differs is named."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    before = dict(os.environ)
    assert Single(case(fault="world")).digests == Single(case()).digests
    assert dict(os.environ) == before
    monkeypatch.setenv("RANK", "0")
    found = checked(monkeypatch, tmp_path, case(fault="twice"))
    assert found["weights"].outcome == "fail"
    assert found["weights"].tensor == "first.weight"
    assert "one process on its own, with the same seed, builds another model" in found["weights"].detail


def test_a_collective_is_noticed_before_it_waits_for_others():
    """One process cannot run a model with collectives of its own: no hang, the operation is named."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(Untellable, match=r"collectives of its own \(c10d::allreduce_\)"):
            single(case(fault="gathering")).look(batches(1))
    finally:
        dist.destroy_process_group()


def test_shards_have_the_mean_gradient_of_the_global_batch():
    """Without BatchNorm the mean over four shards and micro-batches is the gradient of all samples at once."""
    step = single(case("ddp", 4, grad_accumulation=2), 4).step(batches(4, micro=2))
    assert apart(step.gradients, step.whole, 1e-12).first is None


def test_running_statistics_are_those_of_the_first_shard():
    """DDP sends rank 0's buffers: after two steps they have seen rank 0's samples only."""
    one = single(case("ddp", 3, norm=True), 3)
    alone = torch.nn.BatchNorm1d(6).double()
    for seed in range(2):
        data = batches(3, seed=seed)
        with torch.no_grad():
            alone(one.model.twist(one.model.first(data[0][0][0])))
        one.step(data)
    torch.testing.assert_close(one.model.norm.running_mean, alone.running_mean)
    torch.testing.assert_close(one.model.norm.running_var, alone.running_var)
    assert int(one.model.norm.num_batches_tracked) == 2


def test_a_loss_that_is_no_mean_over_samples_is_told_from_batchnorm():
    """BatchNorm with fixed statistics couples nothing; a loss against the batch's own mean does."""
    data = batches(2)
    assert not single(case("ddp", 2, norm=True), 2).couples(data)
    assert single(case("ddp", 2, fault="coupled"), 2).couples(data)


def test_what_rounding_decided_is_not_compared():
    """The bias before BatchNorm has no gradient but rounding: AdamW's step along it is chance, and left out."""
    one = single(case(norm=True))
    one.step(batches(1))
    own = {name: parameter.detach() for name, parameter in one.model.named_parameters()}
    found, left = one.rounding.apart(own | {"first.bias": own["first.bias"] + 0.01}, own, 1e-8)
    assert (found.first, left) == (None, {"first.bias": 6})
    found, left = one.rounding.apart(own | {"first.weight": own["first.weight"] + 0.01}, own, 1e-8)
    assert (found.first, left) == ("first.weight", {})


@pytest.mark.parametrize(
    ("names", "outcome", "told"),
    [
        ((), "pass", "equal on all ranks"),
        (("first.bias",), "known", "6 of 80 elements cannot be judged, such as of first.bias"),
        (
            ("first.bias", "first.weight"),
            "cannot tell",
            "most of first.weight is not known: 54 of 80 elements",
        ),
    ],
)
def test_elements_that_cannot_be_judged_are_counted(names, outcome, told):
    """A bias that rounding moves is known; most of a matrix is too much to call the model the same."""
    judge, reference = judged(case("ddp", 2, norm=True))
    judge.take(batches(2), 1.0, {}, [])
    own = dict(reference.model.named_parameters())
    for name in names:
        reference.rounding._real[name] = torch.zeros_like(own[name], dtype=torch.bool)
    moved = {name.replace(".", "_"): own[name].detach() + 0.01 for name in names}
    found = ended(judge, reference, **moved)["parameters"]
    assert found.outcome == outcome
    assert told in found.detail


def test_what_has_a_gradient_is_judged_beside_what_has_none():
    """A bias before BatchNorm excuses nothing but itself."""
    judge, reference = judged(case("ddp", 2, norm=True))
    judge.take(batches(2), 1.0, {}, [])
    own = {name: one.detach() for name, one in reference.model.named_parameters()}
    off = {"first_bias": own["first.bias"] + 0.01, "last_weight": own["last.weight"] + 0.01}
    found = ended(judge, reference, **off)["parameters"]
    assert (found.outcome, found.tensor) == ("fail", "last.weight")


def test_batches_of_every_structure_are_put_together():
    """Tensors, mappings, tuples and lists along the first axis; what has no such thing is no global batch."""
    one, two = torch.ones(2, 3), torch.zeros(1, 3)
    found = join([{"x": one, "y": (one,)}, {"x": two, "y": (two,)}])
    assert found["x"].shape == found["y"][0].shape == (3, 3)
    with pytest.raises(Untellable, match="a batch has a str in it"):
        join(["a", "b"])


def test_the_first_tensor_that_differs_is_named_with_its_difference():
    """In the order of the reference; a missing gradient is zero; NaN is beyond every tolerance."""
    theirs = {"a": torch.ones(2), "b": torch.full((2,), 4.0), "c": None}
    assert apart(theirs, theirs, 0.0).first is None
    found = apart({"a": torch.ones(2), "b": torch.full((2,), 4.5)}, theirs, 1e-3)
    assert (found.first, found.largest, found.relative) == ("b", 0.5, 0.125)
    assert apart(theirs | {"a": None}, theirs, 1e-3).first == "a"
    assert apart(theirs | {"c": torch.ones(1)}, theirs, 1e-3).first == "c"
    assert apart(theirs | {"a": torch.tensor([1.0, float("nan")])}, theirs, 1e-3).first == "a"
    assert "has shape (3,) in place of (2,)" in apart(theirs | {"a": torch.ones(3)}, theirs, 1e-3).told()
    with pytest.raises(Untellable, match="the reference itself is not finite: a has infinities or NaN"):
        apart(theirs, theirs | {"a": torch.tensor([float("inf")])}, 1e-3)


def test_a_tensor_is_held_against_its_own_size():
    """A small tensor beside a large one is not equal to zeros; one of rounding's size still is."""
    theirs = {
        "large": torch.full((2,), 100.0),
        "small": torch.full((2,), 2e-3),
        "rounding": torch.full((2,), 1e-9),
    }
    found = apart(theirs | {"small": torch.zeros(2)}, theirs, 1e-4)
    assert (found.first, found.largest) == ("small", pytest.approx(2e-3))
    assert apart(theirs | {"rounding": torch.zeros(2)}, theirs, 1e-4).first is None
    assert apart(theirs | {"small": torch.zeros(2)}, theirs, 1e-4, floor=1.0).first is None


def test_buffers_are_held_against_themselves():
    """A mask of any kind hides no other buffer; infinities at the same places are equal, and elsewhere are not."""
    inf, nan = float("inf"), float("nan")
    theirs = {
        "mask": torch.tensor([0.0, -1e9]),
        "open": torch.tensor([0.0, -inf, nan]),
        "causal": torch.tensor([True, False]),
        "scale": torch.tensor([1.0, 2.0]),
    }
    assert apart_each(theirs, theirs, 1e-8).first is None
    assert apart_each(theirs | {"scale": torch.tensor([1.0, 2.1])}, theirs, 1e-8).first == "scale"
    assert apart_each(theirs | {"causal": torch.tensor([True, True])}, theirs, 1e-8).first == "causal"
    for other in ([0.0, inf, nan], [0.0, -inf, 0.0], [nan, -inf, nan]):
        found = apart_each(theirs | {"open": torch.tensor(other)}, theirs, 1e-8)
        assert (found.first, found.why) == ("open", "is not finite at the same places")
    assert "has shape" in apart_each(theirs | {"scale": torch.ones(3)}, theirs, 1e-8).told()


def test_what_is_not_finite_is_equal_to_nothing():
    """Without any tolerance, as for compressed gradients, numbers still have to be numbers."""
    theirs = {"a": torch.ones(2)}
    for bad in (float("nan"), float("inf")):
        found = apart({"a": torch.tensor([1.0, bad])}, theirs, float("inf"))
        assert (found.first, found.why) == ("a", "is not finite")
        check = tensors.differing("gradients", found, float("inf"), "told")
        assert (check.largest, check.relative, check.tolerance) == (None, None, None)


def test_a_model_that_has_a_module_of_that_name_keeps_its_names():
    """A user's own `module` is no wrapper; what DistributedDataParallel and DataParallel put before is left out."""
    inner = torch.nn.Linear(2, 2)
    own = torch.nn.Sequential()
    own.module = inner
    assert list(tensors.parameters(own)) == ["module.weight", "module.bias"]
    assert list(tensors.gradients(torch.nn.DataParallel(own))) == ["module.weight", "module.bias"]
    assert list(tensors.parameters(torch.nn.DataParallel(inner))) == ["weight", "bias"]


def judged(one, buffer=None, hook=None):
    """Rank 0's judge of two ranks with a model that has a buffer beside its BatchNorm."""
    place = Place(rank=0, local_rank=0, world_size=2, node=0, device=torch.device("cpu"), devices=())
    reference = Single(one)
    if buffer is not None:
        reference.model.register_buffer("mask", buffer)
    weights = reference.tensors()
    return Equality(one, load("strategies", one.strategy), place, reference, weights), reference


def ended(judge, reference, **changed):
    """All checks by name, where the ranks hold what the reference holds but for what is `changed`."""
    own, held = dict(reference.model.named_parameters()), dict(reference.model.named_buffers())
    known = {name: changed.pop(name.replace(".", "_"), tensor) for name, tensor in (own | held).items()}
    found = judge.end({n: known[n] for n in own}, {n: known[n] for n in held}, None, None)
    return {check.name: check for check in found}


@pytest.mark.parametrize("low", [-1e9, float("-inf")])
def test_a_mask_among_the_buffers_hides_no_parameter(low):
    """A parameter that is off by a tenth fails beside any mask, and a mask that differs fails itself."""
    judge, reference = judged(case("ddp", 2), torch.tensor([0.0, low]))
    assert ended(judge, reference)["parameters"].outcome == "pass"
    off = reference.model.last.bias.detach() + 0.1
    found = ended(judge, reference, last_bias=off)["parameters"]
    assert (found.outcome, found.tensor) == ("fail", "last.bias")
    found = ended(judge, reference, mask=torch.tensor([1.0, low], dtype=torch.float64))["parameters"]
    assert (found.outcome, found.tensor) == ("fail", "mask")


def test_a_check_that_breaks_does_not_take_the_others_along():
    """Parameters of the reference that are not finite: that check cannot tell, the others say what they found."""
    judge, reference = judged(case("ddp", 2))
    with torch.no_grad():
        reference.model.last.bias.fill_(float("nan"))
    found = ended(judge, reference)
    assert found["parameters"].outcome == "cannot tell"
    assert found["parameters"].detail == "the reference itself is not finite: last.bias has infinities or NaN"
    assert found["gradients"].outcome == found["loss"].outcome == "pass"


def test_compressed_gradients_have_to_be_finite():
    """PowerSGD may differ by any number, but not by one that is none."""
    judge, _ = judged(case("ddp", 2, comm_hook="powersgd"))
    data = batches(2)
    for _ in range(3):
        judge.take(data, float("nan"), {"first.weight": torch.full((6, 8), float("nan"))}, [])
    checks = {check.name: check for check in ended(judge, judge._single).values()}
    assert checks["gradients"].outcome == "fail"
    judge, reference = judged(case("ddp", 2, comm_hook="powersgd"))
    bad = torch.full((2,), float("inf"), dtype=torch.float64)
    assert ended(judge, reference, last_bias=bad)["parameters"].outcome == "fail"


def test_no_memory_for_a_model_in_float64_is_said(monkeypatch):
    """A model whose copies do not fit is not checked, with the sizes."""
    from bench import verify_room

    place = Place(rank=0, local_rank=0, world_size=1, node=0, device=torch.device("cpu"), devices=())
    model = torch.nn.Linear(1000, 1000)
    assert verify_room.no_room(model, case(), place) is None
    monkeypatch.setattr(verify_room, "_free_bytes", lambda: 1_000_000)
    assert "not enough memory: 0.1 GiB" in verify_room.no_room(model, case(), place)
