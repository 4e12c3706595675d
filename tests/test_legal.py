"""Which cells can run, and why not."""

import msgspec
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
        (
            Case(model="mlp", data="photos"),
            "data 'photos' gives images, mlp takes neither images nor token ids",
        ),
        (Case(model="gpt2", data="photos"), "data 'photos' gives images, gpt2 takes token ids"),
        (Case(model="vit", data="tokens"), "data 'tokens' gives token ids, vit takes images"),
        (Case(model="paced", data="tokens"), "data 'tokens' gives token ids, paced takes neither"),
        (Case(model="hf:gpt2", data="own"), "needs a model of your own"),
        (Case(strategy="ddp", model="vit", sync_bn=True), "sync_bn: vit has no BatchNorm layer"),
        (Case(model="mlp", data="own"), "needs a model of your own"),
        (
            Case(strategy="ddp", ranks=3, batch=8, scaling="strong"),
            "a global batch of 8 does not divide over 3 ranks",
        ),
        (Case(strategy="ddp", ranks=2, backend="nccl"), "backend nccl: not in this torch (has: gloo)"),
        (Case(strategy="single", backend="gloo"), "backend gloo: single has no process group"),
        (Case(strategy="ddp", nodes=2), "2 nodes asked for, 1 to be had: run it with --nodes 2"),
        (Case(strategy="dp", ranks=2, nodes=2), "dp runs on one node"),
        (Case(strategy="ddp", link="1gbit"), "link 1gbit: one node has no link to others"),
        (Case(bucket_cap_mb=5.0), "bucket_cap_mb is DistributedDataParallel's: single has none"),
        (
            Case(strategy="dp", ranks=2, comm_hook="fp16"),
            "comm_hook is DistributedDataParallel's: dp has none",
        ),
        (
            Case(strategy="fsdp", broadcast_buffers=False),
            "broadcast_buffers is DistributedDataParallel's: fsdp",
        ),
        (
            Case(strategy="ddp", static_graph=True, grad_accumulation=2),
            "static_graph does not go with grad_accumulation",
        ),
        (Case(strategy="ddp", comm_hook="bf16"), "comm_hook bf16 needs nccl or xccl"),
        (Case(precision="tf32"), "precision tf32 needs CUDA devices (Ampere or later), this host has cpu"),
        (Case(model="mlp", channels_last=True), "channels_last is a layout of images: mlp takes none"),
        (Case(strategy="dp", ranks=2, compile=True), "torch.compile does not go with dp"),
        (Case(fused=True), "fused needs optimizer = sgd or adamw"),
        (Case(strategy="fsdp", optimizer="sgd", fused=True), "fused sgd does not go with fsdp"),
        (Case(strategy="fsdp", channels_last=True), "channels_last does not go with fsdp"),
        (Case(compile="reduce-overhead"), "compile reduce-overhead means CUDA graphs"),
        (
            Case(strategy="ddp", compile=True, bucket_cap_mb=0.5),
            "torch.compile needs bucket_cap_mb of at least 1",
        ),
        (Case(page_cache="cold"), "page_cache: data 'device' reads no files"),
        (
            Case(strategy="ddp", ranks=4, cpu_binding="cores"),
            "cpu_binding cores: 4 ranks on 2 CPUs, a rank needs one of its own",
        ),
        (
            Case(scaling="strong", batch=8, grad_accumulation=3),
            "a batch of 8 does not divide into 3 micro-batches",
        ),
        (
            Case(strategy="ddp", ranks=2, scaling="strong", batch=6, grad_accumulation=2),
            "a global batch of 3 does not divide over 2 ranks",
        ),
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
        Case(strategy="zero1", ranks=2, comm_hook="powersgd", bucket_cap_mb=1.0, grad_accumulation=2),
        Case(strategy="fsdp", ranks=2, sync_bn=True, compile=True, precision="fp16"),
        Case(channels_last=True, compile="max-autotune", optimizer="adamw", fused=True),
        Case(data="photos", page_cache="cold", cpu_binding="numa", precision="fp32"),
        Case(strategy="ddp", ranks=2, cpu_binding="cores", static_graph=True, find_unused_parameters=True),
        Case(strategy="ddp", ranks=2, batch=8, scaling="strong"),
        Case(model="vit", data="photos"),
        Case(model="gpt2", data="tokens"),
        Case(model="gpt-small", data="synthetic"),
    ],
)
def test_legal_cells_are_not_skipped(case):
    """What torch can do here is allowed; SyncBN and DataParallel have their reference on CPU."""
    assert reason(case) is None


def test_what_a_built_model_takes_decides_over_its_data():
    """A model that is built to be looked at gets images if it takes images, token ids if it takes those."""
    images = legal.Brought(has_sample=True, image=True)
    tokens = legal.Brought(has_sample=True, tokens=True)
    for model in ("hf:any", "my.model:build"):
        for data, fits, other in (("photos", images, tokens), ("tokens", tokens, images)):
            case = Case(model=model, data=data)
            assert legal.why_not(case, legal.Context(host=cpu_host(), brought=fits)) is None
            assert f"{model} takes" in legal.why_not(case, legal.Context(host=cpu_host(), brought=other))


def test_what_one_model_brings_is_not_taken_for_that_of_the_next():
    """A built-in model is judged by its plug-in, whatever was found in the model before it."""
    context = legal.Context(host=cpu_host(), brought=legal.Brought(has_sample=True, tokens=True))
    assert legal.why_not(Case(model="resnet-small", data="photos"), context) is None
    assert "vit takes images" in legal.why_not(Case(model="vit", data="tokens"), context)


def test_several_nodes_are_legal_where_they_are_to_be_had():
    """As many as take part, and no more; a link between those of one box only, a delay only where it can be made."""
    two, plain = Case(strategy="ddp", nodes=2), legal.Context(host=cpu_host(), nodes=2)
    linked = msgspec.structs.replace(two, link="1gbit")
    assert reason(two, plain) is None
    assert "3 nodes asked for, 2 to be had" in reason(msgspec.structs.replace(two, nodes=3), plain)
    assert "links are shaped between the nodes of one box" in reason(linked, plain)
    box = legal.Context(host=cpu_host(), nodes=2, box=True, no_link=None, no_delay="no netem")
    assert reason(linked, box) is None
    assert reason(msgspec.structs.replace(linked, link="1gbit,0.2ms"), box) == "link 1gbit,0.2ms: no netem"


def test_nodes_on_one_box_share_its_devices_and_cpus():
    """Two nodes of two ranks need four devices on a box, and two on each of two machines; CPUs are not bound twice."""
    case = Case(strategy="ddp", ranks=2, nodes=2)
    assert reason(case, legal.Context(host=gpu_host(2), nodes=2)) is None
    box = legal.Context(host=gpu_host(2), nodes=2, box=True)
    assert "2 nodes of 2 on one box: 4 devices asked for, 2 to be had" in reason(case, box)
    assert reason(case, msgspec.structs.replace(box, oversubscribe=True)) is None
    bound = Case(strategy="ddp", nodes=2, cpu_binding="cores")
    assert "would bind their ranks to the same CPUs" in reason(
        bound, legal.Context(host=cpu_host(), nodes=2, box=True)
    )


def test_what_needs_cuda_is_legal_there():
    """TF32 and the bf16 hook on a host with CUDA devices; the hook not over gloo."""
    gpu = legal.Context(host=gpu_host())
    assert reason(Case(precision="tf32"), gpu) is None
    assert reason(Case(strategy="ddp", ranks=2, comm_hook="bf16"), gpu) is None
    assert "needs nccl" in reason(Case(strategy="ddp", ranks=2, comm_hook="bf16", backend="gloo"), gpu)
    assert reason(Case(compile="reduce-overhead"), gpu) is None


def test_what_cuda_gets_wrong_is_skipped_there():
    """CUDA graphs with micro-batches, autocast under DataParallel's replicas, TF32 on cards without it."""
    gpu = legal.Context(host=gpu_host())
    assert "CUDA graphs overwrite" in reason(Case(compile="max-autotune", grad_accumulation=2), gpu)
    assert reason(Case(compile=True, grad_accumulation=2), gpu) is None
    assert "does not hand the type of autocast" in reason(Case(strategy="dp", ranks=2, precision="bf16"), gpu)
    assert reason(Case(strategy="dp", ranks=1, precision="bf16"), gpu) is None
    turing = [msgspec.structs.replace(d, capability=7.5) for d in gpu.host.devices]
    old = legal.Context(host=msgspec.structs.replace(gpu.host, devices=turing))
    assert "needs Ampere or later: Card has none" in reason(Case(precision="tf32"), old)
    rocm = legal.Context(host=msgspec.structs.replace(gpu.host, rocm="6.4"))
    assert "this host has ROCm" in reason(Case(precision="tf32"), rocm)


def test_compiling_needs_a_compiler():
    """Without a C++ compiler a compiled cell is skipped before the study, not failed after a minute."""
    bare = legal.Context(host=msgspec.structs.replace(cpu_host(), compiler=None))
    assert "needs a C++ compiler" in reason(Case(compile=True), bare)


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
