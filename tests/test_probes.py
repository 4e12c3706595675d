"""All-reduces after the window: which sizes, how often, that ranks agree, and that they cost nothing that is finished."""

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import interfaces, probes  # noqa: E402
from bench.place import Place  # noqa: E402

KIB, MIB = 2**10, 2**20
SIZES = (64 * KIB, MIB, 8 * MIB)


def place(rank: int = 0, ranks: int = 2) -> Place:
    """A CPU rank, each on a node of its own."""
    return Place(rank, 0, ranks, rank, torch.device("cpu"), ())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only all-reduces move, at `bytes_per_s`; `runs` are the sizes in the order in which they ran."""
    state = SimpleNamespace(now_s=0.0, bytes_per_s=12.5e6, runs=[])

    def once(buffer: Any, _place: Place) -> float:
        size = buffer.numel() * 4
        state.runs.append(size)
        state.now_s += size / state.bytes_per_s
        return float(size / state.bytes_per_s)

    monkeypatch.setattr(probes, "_once", once)
    monkeypatch.setattr(probes, "_agree", lambda _place, *values: list(values))
    monkeypatch.setattr(probes, "time", SimpleNamespace(perf_counter=lambda: state.now_s))
    return state


def test_sizes_are_those_of_the_model_among_fixed_ones() -> None:
    """Gradients and the largest bucket stand in ascending order beside 64 KiB, 1 MiB and 8 MiB, each once."""
    facts = SimpleNamespace(gradient_bytes=2_800_006, buckets_bytes=(MIB, 1_700_000))
    assert probes.sizes(facts) == (64 * KIB, MIB, 1_700_000, 2_800_004, 8 * MIB)
    alone = SimpleNamespace(gradient_bytes=0, buckets_bytes=None)
    assert probes.sizes(alone) == SIZES


def test_a_fast_network_has_every_size_repeated(clock: SimpleNamespace) -> None:
    """Where time is no matter each size runs once to warm up and then seven times, the small ones first."""
    clock.bytes_per_s = 1.25e9
    found = probes.all_reduces(place(), reversed(SIZES))
    assert [(one.bytes, one.repeats) for one in found] == [(size, 7) for size in SIZES]
    assert clock.runs == [size for size in SIZES for _ in range(8)]
    assert [one.seconds for one in found] == pytest.approx([size / 1.25e9 for size in SIZES])


def test_on_100_mbit_the_largest_size_still_runs_once(clock: SimpleNamespace) -> None:
    """8 MiB take 0.67 s there: fewer repeats of the others leave room for one run, and 1.5 s are not exceeded."""
    found = probes.all_reduces(place(), SIZES)
    assert [one.bytes for one in found] == list(SIZES)
    assert found[-1].repeats == 1
    assert clock.runs.count(8 * MIB) == 1
    assert clock.now_s <= probes.BUDGET_S


@pytest.mark.parametrize("budget_s", [0.0, 0.05, 0.2, 0.5, 1.5, 10.0])
def test_no_size_begins_that_cannot_end_in_time(clock: SimpleNamespace, budget_s: float) -> None:
    """Whatever the budget: the first size is there, the order ascends, and only the first may go beyond it."""
    found = probes.all_reduces(place(), (*SIZES, 100 * MIB), budget_s)
    done = [one.bytes for one in found]
    assert done == [*SIZES, 100 * MIB][: len(done)]
    assert len(done) >= 1
    assert clock.now_s <= max(budget_s, 64 * KIB / clock.bytes_per_s)


def test_a_size_that_has_no_memory_ends_it(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is full keeps the smaller sizes; nothing is raised."""
    real = probes._buffer
    monkeypatch.setattr(probes, "_buffer", lambda size, where: None if size > MIB else real(size, where))
    assert [one.bytes for one in probes.all_reduces(place(), SIZES)] == [64 * KIB, MIB]


def test_what_goes_wrong_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that is gone costs the all-reduces, and neither the interfaces nor the finished window."""

    def gone(*_: object) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(probes, "all_reduces", gone)
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(interfaces, "used", lambda other_than: {(29500,): ("eth1", "eth0")}[other_than])
    monkeypatch.setattr(interfaces, "speed_mbit", {"eth1": 2500}.get)
    facts = SimpleNamespace(gradient_bytes=0, buckets_bytes=None)
    with pytest.warns(UserWarning, match="no all-reduce after the window: RuntimeError: Connection closed"):
        found = probes.network(place(), facts)
    assert (found.interfaces, found.speed_mbit, found.exchanges) == (("eth1", "eth0"), 2500, ())


def rank_of_two(rank: int, port: int, queue: Any) -> None:
    """One of two gloo ranks; rank 1 is late, and has no memory for 8 MiB. Answers with all that it measured."""
    import time

    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    whole = probes.all_reduces(place(rank), SIZES)
    tiny = probes.all_reduces(place(rank), SIZES, budget_s=1e-9)
    once, buffer = probes._once, probes._buffer
    if rank == 1:
        probes._once = lambda *given: time.sleep(0.05) or once(*given)
        probes._buffer = lambda size, where: None if size > MIB else buffer(size, where)
    uneven = probes.all_reduces(place(rank), SIZES)
    queue.put((rank, whole, tiny, uneven))
    dist.barrier()
    queue.close()
    queue.join_thread()
    os._exit(0)


def test_two_ranks_measure_the_same_sizes_equally_often() -> None:
    """Also where one comes late, or cannot take part in a size: none waits for an exchange that the other left out."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=rank_of_two, args=(rank, port, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    _, first, second = sorted([queue.get(timeout=60) for _ in ranks] + [(-1,)])
    for process in ranks:
        process.join(30)
    for ours, theirs in zip(first[1:], second[1:], strict=True):
        assert [(one.bytes, one.repeats) for one in ours] == [(one.bytes, one.repeats) for one in theirs]
        assert all(one.seconds > 0 for one in (*ours, *theirs))
    whole, tiny, uneven = first[1:]
    assert [one.bytes for one in whole] == list(SIZES)
    assert [(one.bytes, one.repeats) for one in tiny] == [(64 * KIB, 1)]
    assert [one.bytes for one in uneven] == [64 * KIB, MIB]
    late = second[3]
    assert all(own.seconds < waiting.seconds for own, waiting in zip(late, uneven, strict=True))
