"""CPUs for ranks, from a made-up /sys and from this process."""

import os
import subprocess

import pytest

from bench import binding
from bench.errors import BenchError
from bench.machine import own_python


@pytest.fixture
def system(tmp_path):
    """Two NUMA nodes of two cores with two threads each; threads of a core are n and n + 4."""
    for node, cpus in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        folder = tmp_path / f"node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for cpu in range(8):
        folder = tmp_path / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    return tmp_path


def test_threads_of_a_core_stay_together(system):
    """Two ranks on eight CPUs of two nodes get a node each; four ranks a core each."""
    order = binding.neighbours(range(8), system)
    assert order == [0, 4, 1, 5, 2, 6, 3, 7]
    assert [binding.share(order, rank, 2) for rank in range(2)] == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert [binding.share(order, rank, 4) for rank in range(4)] == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_what_does_not_divide_is_left_over():
    """Three ranks on eight CPUs get two each: ranks are alike, two CPUs stay free."""
    assert [binding.share(range(8), rank, 3) for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert binding.share(range(2), 0, 4) == []


def test_numa_nodes_are_dealt_out_and_read_back(system):
    """Four ranks on two nodes: two neighbours on each; a set of CPUs says which nodes it touches."""
    assert [binding.dealt([0, 1], rank, 4) for rank in range(4)] == [0, 0, 1, 1]
    assert binding.dealt([], 0, 1) is None
    assert binding.nodes_of({0, 5}, system) == (0,)
    assert binding.nodes_of({0, 2}, system) == (0, 1)


def test_nodes_without_a_cpu_of_ours_are_not_dealt_out(monkeypatch):
    """A mask on the second node only: both ranks are bound there, none to the empty node."""
    cpus = set(sorted(os.sched_getaffinity(0))[:1])
    monkeypatch.setattr(binding, "numa_nodes", lambda *_: {0: {999}, 1: set(os.sched_getaffinity(0))})
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, wanted: bound.append(set(wanted)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus)
    for rank in (0, 1):
        binding.bind("numa", rank, 2, None)
    assert bound == [cpus, cpus]


def test_a_kernel_that_says_nothing_is_null(tmp_path):
    """Without /sys entries there are no nodes, every CPU is its own core, and a device has no node."""
    assert binding.nodes_of({0}, tmp_path) is None
    assert binding.neighbours([3, 1], tmp_path) == [1, 3]
    assert binding.device_numa(None) is None
    assert binding.device_numa("ffff:ff:1f.7") is None


def test_a_process_is_bound_and_its_children_with_it():
    """The last of as many ranks as CPUs gets the last CPU, and what it starts has the same."""
    cpus = sorted(os.sched_getaffinity(0))
    code = f"import os; from bench import binding; binding.bind('cores', {len(cpus) - 1}, {len(cpus)}, None);"
    code += "os.execvp('sh', ['sh', '-c', 'grep Cpus_allowed_list /proc/self/status'])"
    done = subprocess.run(own_python(code), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["Cpus_allowed_list:", str(binding.neighbours(cpus)[-1])]


def test_a_rank_without_a_cpu_is_refused():
    """More ranks than CPUs cannot be bound to cores: said in one line, nothing is changed."""
    before = os.sched_getaffinity(0)
    with pytest.raises(BenchError, match="no CPU for local rank 0 of"):
        binding.bind("cores", 0, len(before) + 1, None)
    assert os.sched_getaffinity(0) == before
