"""Which cells can run, and why not."""

import pytest

from bench import legal
from bench.case import Case
from bench.errors import UsageError
from tests.hosts import cpu_host, gpu_host

CPU = legal.Context(host=cpu_host())


def reason(case, context=CPU):
    legal.check(case, context)
    return legal.why_not(case, context)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (Case(strategy="single", ranks=2), "single runs on one device, 2 were asked for"),
        (Case(strategy="single", sync_bn=True), "sync_bn needs ddp: single has no process group"),
        (Case(strategy="dp", ranks=2, sync_bn=True), "sync_bn needs ddp: dp has no process group"),
        (Case(data="photos", persistent_workers=True), "persistent_workers needs num_workers > 0"),
        (Case(data="photos", prefetch_factor=4), "prefetch_factor needs num_workers > 0"),
        (Case(data="device", num_workers=2), "data 'device' has no loader: num_workers has no effect"),
        (Case(data="device", pin_memory=True), "data 'device' has no loader: pin_memory has no effect"),
        (Case(model="mlp", data="photos"), "data 'photos' gives images, mlp takes none"),
        (Case(model="mlp", data="own"), "needs a model of your own"),
        (
            Case(strategy="ddp", ranks=3, batch=8, scaling="strong"),
            "a global batch of 8 does not divide over 3 ranks",
        ),
        (Case(strategy="ddp", ranks=2, backend="nccl"), "backend nccl: not in this torch (has: gloo)"),
        (Case(strategy="single", backend="gloo"), "backend gloo: single has no process group"),
        (Case(strategy="ddp", nodes=2), "several nodes are not supported"),
    ],
)
def test_illegal_cells_are_skipped_with_the_reason(case, says):
    """Every rule names what does not go together."""
    assert says in reason(case)


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(strategy="ddp", ranks=4, sync_bn=True),
        Case(strategy="dp", ranks=2),
        Case(data="photos", num_workers=2, persistent_workers=True, prefetch_factor=4, pin_memory=True),
        Case(strategy="ddp", ranks=2, backend="gloo"),
        Case(strategy="ddp", ranks=2, batch=8, scaling="strong"),
    ],
)
def test_legal_cells_are_not_skipped(case):
    """What torch can do here is allowed; SyncBN and DataParallel have their reference on CPU."""
    assert reason(case) is None


def test_an_unknown_backend_is_answered_with_the_known_ones():
    """ "ucci" is a typing error, not a skipped cell."""
    with pytest.raises(
        UsageError,
        match=r"backend: unknown name 'ucci'; known: gloo, mpi, nccl, ucc, xccl; did you mean 'ucc'",
    ):
        reason(Case(strategy="ddp", ranks=2, backend="ucci"))


def test_more_devices_than_there_are_is_one_clear_error():
    """The error says how many were asked for, what was found, and what to do."""
    context = legal.Context(host=gpu_host(2))
    with pytest.raises(
        UsageError, match=r"4 devices asked for, 2 to be had \(0: Card, 1: Card\); .*--oversubscribe"
    ):
        reason(Case(strategy="ddp", ranks=4), context)


def test_oversubscribing_devices_is_allowed_when_asked_for():
    """With --oversubscribe ranks share devices over gloo, and nccl is refused for them."""
    context = legal.Context(host=gpu_host(2), oversubscribe=True)
    assert reason(Case(strategy="ddp", ranks=4), context) is None
    assert "share a device" in reason(Case(strategy="ddp", ranks=4, backend="nccl"), context)


def test_a_data_set_too_small_for_the_ranks_is_refused_beforehand():
    """3 samples over 4 ranks at batch 64: no whole batch a rank, and nothing is divided by zero."""
    case = Case(strategy="ddp", ranks=4, batch=64, data="photos", data_args={"length": 3})
    assert reason(case) == "dataset 3, world 4, batch 64, drop_last: 0 steps per rank"
    own = Case(strategy="ddp", ranks=4, batch=64, model="a.b:c", data="own")
    brought = legal.Brought(dataset_len=3, has_dataset=True)
    assert legal.why_not(own, legal.Context(host=cpu_host(), brought=brought)) == (
        "dataset 3, world 4, batch 64, drop_last: 0 steps per rank"
    )


@pytest.mark.parametrize(("n", "world", "per_rank"), [(10, 4, 3), (1000, 7, 143), (3, 4, 1)])
def test_padded_samples_count_for_every_rank(n, world, per_rank):
    """DistributedSampler pads to ceil(n / world) samples a rank."""
    assert legal.batches_per_epoch(n, world, 1) == per_rank


def test_dataparallel_chunks_are_those_of_torch():
    """36 samples on 7 devices make 6 chunks of 6, so one device would idle: the cell is skipped."""
    assert legal.chunks(36, 7) == (6, 6, 6, 6, 6, 6)
    assert legal.chunks(50, 8) == (7, 7, 7, 7, 7, 7, 7, 1)
    case = Case(strategy="dp", ranks=7, batch=36, scaling="strong")
    assert reason(case, legal.Context(host=cpu_host())) == (
        "DataParallel: a batch of 36 makes chunks 6,6,6,6,6,6: 6 of 7 devices used"
    )


def test_wrong_options_of_a_model_are_refused():
    """An unknown argument is answered with the allowed ones, and a wrong type with the right one."""
    with pytest.raises(UsageError, match=r"unknown option 'widht'.*did you mean 'width'"):
        reason(Case(model="mlp", model_args={"widht": 8}))
    with pytest.raises(UsageError, match="needs int"):
        reason(Case(model="mlp", model_args={"width": "wide"}))


def test_loader_matrix_of_persistent_workers_runs_three_cells_and_skips_one():
    """Workers {0, 2} x persistent {no, yes}: three run, one is skipped with its reason."""
    cases = [Case(data="photos", num_workers=w, persistent_workers=p) for w in (0, 2) for p in (False, True)]
    reasons = [reason(case) for case in cases]
    assert [r is None for r in reasons] == [True, False, True, True]
