"""What a failure is called, and which rank failed first."""

import pytest

from bench.failures import REMEDIES, RankEnd, classify, first_failure, one_line, signal_name, stuck_rank


@pytest.mark.parametrize(
    ("error_type", "text", "reason"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "oom_device"),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", "oom_host"),
        ("MemoryError", "", "oom_host"),
        ("RuntimeError", "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)", "shm_full"),
        ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "shm_full"),
        ("RuntimeError", "Too many open files. Communication with the workers is no longer possible.", "fd_limit"),
        ("RuntimeError", "received 0 items of ancdata", "fd_limit"),
        ("OSError", "[Errno 98] Address already in use", "port_in_use"),
        ("DistNetworkError", "The server socket has failed to listen: EADDRINUSE", "port_in_use"),
        ("ValueError", "Expected more than 1 value per channel when training, got input size [1, 4]", "batchnorm_single_value"),
        ("RuntimeError", "Expected to have finished reduction in the prior iteration before starting a new one.", "unused_parameters"),
        ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", "communication"),
        ("RuntimeError", "Timed out waiting 6000ms for recv operation to complete", "communication"),
        ("DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp", "communication"),
        ("ModuleNotFoundError", "No module named 'timm'", "import_error"),
        ("RuntimeError", "DataLoader worker (pid(s) 12) exited unexpectedly", "loader_worker"),
        ("ConnectionResetError", "DataLoader worker lost: [Errno 104] Connection reset by peer", "loader_worker"),
        ("ConnectionRefusedError", "Caught ConnectionRefusedError in DataLoader worker process 0. [Errno 111] Connection refused", "loader_worker"),
        ("RuntimeError", "can't start new thread", "thread_limit"),
        ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "thread_limit"),
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:299] connect: Resource temporarily unavailable", "communication"),
        ("BenchError", "uneven number of batches: 3 vs 4 steps", "uneven_batches"),
        ("UsageError", "model 'x:y': the factory raised ValueError", "usage"),
        ("OSError", "[Errno 28] No space left on device", "disk_full"),
        ("RuntimeError", "unable to write to file </torch_12_34>: No space left on device (28)", "shm_full"),
        ("DistBackendError", "NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'", "oom_device"),
        ("ValueError", "Default process group has not been initialized, please make sure to call init_process_group.", "process_group"),
        ("ValueError", "trying to initialize the default process group twice!", "process_group"),
        ("ValueError", "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set", "process_group"),
        ("UsageError", "model 'x:y': the factory raised ValueError: Default process group has not been initialized", "process_group"),
        ("AssertionError", "Unknown backend type ucci", "unknown_backend"),
        ("AssertionError", "Unknown c10d backend type UCC", "unknown_backend"),
        ("AcceleratorError", "CUDA error: invalid device ordinal", "no_such_device"),
        ("RuntimeError", "No CUDA GPUs are available", "no_such_device"),
        ("AssertionError", "Torch not compiled with CUDA enabled", "no_such_device"),
        ("RuntimeError", "Cannot access accelerator device when none is available.", "no_such_device"),
        ("ValueError", "SyncBatchNorm layers only work with GPU modules", "sync_bn_device"),
        ("ValueError", "SyncBatchNorm expected input tensor to be on GPU or XPU or privateuseone", "sync_bn_device"),
        ("ValueError", "sampler option is mutually exclusive with shuffle", "loader_options"),
        ("ValueError", "prefetch_factor option could only be specified in multiprocessing.", "loader_options"),
        ("AttributeError", "module 'torch.cuda' has no attribute 'device_counts'", "no_such_name"),
        ("TypeError", "DistributedDataParallel.__init__() got an unexpected keyword argument 'device_id'", "no_such_name"),
        ("AttributeError", "module 'mine' has no attribute 'build'", "exception"),
        ("ValueError", "these two are mutually exclusive with each other", "exception"),
        ("OutOfResources", "out of resource: shared memory, Required: 1, Hardware limit: 2", "exception"),
        ("ValueError", "planted", "exception"),
    ],
)  # fmt: skip
def test_messages_of_torch_and_python_have_their_class(error_type, text, reason):
    """The messages that torch 2.13, gloo, NCCL and Python give are put into their class, which has a remedy."""
    assert classify(error_type, text) == reason
    assert reason in REMEDIES


def test_the_rank_that_raised_outranks_its_victims():
    """Rank 0 sees a closed connection a moment before rank 1's own stamp: rank 1 failed first all the same."""
    ends = [
        RankEnd(
            rank=0, exitcode=1, error_type="RuntimeError", error="Connection closed by peer", failed_ns=100
        ),
        RankEnd(rank=1, exitcode=1, error_type="ValueError", error="planted", failed_ns=105),
    ]
    found = first_failure(ends)
    assert (found.first_rank, found.reason) == (1, "exception")
    assert "planted" in found.detail


def test_among_equals_the_earliest_stamp_decides():
    """Two ranks out of memory: the one that stamped first is named."""
    ends = [
        RankEnd(rank=r, exitcode=1, error_type="OutOfMemoryError", error="CUDA out of memory", failed_ns=ns)
        for r, ns in ((0, 300), (1, 200), (2, 250))
    ]
    assert first_failure(ends).first_rank == 1


def test_a_signal_outranks_a_communication_error():
    """A killed rank leaves no trace; its peer's complaint does not make the peer the culprit."""
    ends = [
        RankEnd(
            rank=0, exitcode=1, error_type="RuntimeError", error="Connection reset by peer", failed_ns=50
        ),
        RankEnd(rank=1, exitcode=-9, failed_ns=60),
    ]
    found = first_failure(ends)
    assert (found.first_rank, found.reason, found.signal) == (1, "signal", "SIGKILL")


def test_a_kill_while_the_kernel_counts_one_is_out_of_memory():
    """SIGKILL with an out-of-memory kill counted in the control group is memory, not somebody's signal."""
    found = first_failure([RankEnd(rank=0, exitcode=-9, failed_ns=1)], oom_kills=1)
    assert found.reason == "oom_host"
    assert "out of memory" in found.detail


def test_a_killed_loader_worker_while_the_kernel_counts_one_is_out_of_memory():
    """A worker's death that torch reports is memory where the kernel has killed for it."""
    text = "DataLoader worker (pid 7) is killed by signal: Killed."
    end = RankEnd(rank=0, exitcode=1, error_type="RuntimeError", error=text, failed_ns=1)
    assert first_failure([end]).reason == "loader_worker"
    assert first_failure([end], oom_kills=1).reason == "oom_host"


def test_ranks_that_we_ended_are_not_culprits():
    """Who was ended after the first failure is nobody's cause."""
    ends = [
        RankEnd(rank=0, exitcode=-15, failed_ns=9, killed_by_us=True),
        RankEnd(rank=1, exitcode=-11, failed_ns=8),
    ]
    assert first_failure(ends).first_rank == 1
    assert first_failure(ends[:1]) is None


def test_ranks_without_a_stamp_cannot_be_told_apart():
    """Two ranks died by signal and nobody saw when: the record says that the first is not known."""
    ends = [RankEnd(rank=0, exitcode=-11), RankEnd(rank=1, exitcode=-11)]
    assert first_failure(ends).first_rank is None


def test_a_bus_error_is_shared_memory():
    """SIGBUS in a rank is what a full /dev/shm looks like."""
    assert first_failure([RankEnd(rank=0, exitcode=-7, failed_ns=1)]).reason == "shm_full"


def test_nothing_failed_means_no_verdict():
    """Ranks that ended well give no failure."""
    assert first_failure([RankEnd(rank=0, exitcode=0, ok=True)]) is None


def test_a_hang_names_the_stopped_rank_or_the_one_behind():
    """A stopped process is named; else the rank that passed the fewest marks; else nobody."""
    assert stuck_rank([5, 7, 7], [False, False, False])[0] == 0
    assert stuck_rank([7, 7], [False, True])[0] == 1
    rank, why = stuck_rank([7, 7], [False, False])
    assert rank is None
    assert "cannot be named" in why
    assert stuck_rank([3], [False])[0] == 0


def test_what_a_loader_worker_raised_is_told_without_its_traceback():
    """Where it was and what it said: the lines between are in the log."""
    text = (
        "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n    g()\nValueError: bad image\n'
    )
    verdict = first_failure([RankEnd(rank=1, exitcode=1, error_type="ValueError", error=text, failed_ns=1)])
    assert verdict.detail == (
        "rank 1: ValueError: Caught ValueError in DataLoader worker process 0. ValueError: bad image"
    )


def test_details_are_one_printable_line():
    """Control characters and line breaks of a message do not reach the record."""
    assert one_line("a\x1b[31m\nb\tc") == "a [31m b c"
    assert len(one_line("x" * 10_000)) == 300


def test_signals_have_their_names():
    """-9 is SIGKILL; an exit code is no signal; an unknown number is still said."""
    assert (signal_name(-9), signal_name(1), signal_name(None), signal_name(-250)) == (
        "SIGKILL",
        None,
        None,
        "signal 250",
    )
