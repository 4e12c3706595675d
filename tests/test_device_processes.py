"""Whose processes are on a device: others are counted, ranks are named, and what cannot be known is null."""

from pathlib import Path

import pytest

from bench.samplers._device_processes import HIDDEN, NO_SIZE, UNMAPPED
from bench.samplers.nvml import PROCESSES_S, NvmlReader
from tests.nvml import FakeNvml, failing, fake_proc, reader_of

GIB = 1 << 30
CARDS = ["GPU-aaaa", "GPU-bbbb"]


def watched(tmp_path: Path, running: dict[str, list[tuple[int, int | None]]], **proc: str) -> NvmlReader:
    """Ranks 0 and 1 are processes 501 and 502 of group 500; 900 is somebody else's; others are not to be seen."""
    nvml = FakeNvml()
    nvml.running = running
    (tmp_path / "ranks").write_text("0 501\n1 502\n")
    folder = fake_proc(tmp_path / "proc", {501: 500, 502: 500, 503: 500, 900: 900}, **proc)
    return reader_of(CARDS, nvml, folder, engine_pgid=500, rank_pids=str(tmp_path / "ranks"))


def test_processes_of_others_are_counted_with_their_memory(tmp_path: Path) -> None:
    """Ranks and their workers are ours by group; a process of another group, or one that cannot be seen, is not."""
    reader = watched(
        tmp_path,
        {"GPU-aaaa": [(501, GIB), (503, GIB), (900, 2 * GIB), (7777, GIB)], "GPU-bbbb": [(502, GIB)]},
    )
    values = reader.read(0.0)
    assert values["GPU-aaaa", "foreign_processes"] == 2
    assert values["GPU-aaaa", "foreign_memory_bytes"] == 3 * GIB
    assert values["GPU-bbbb", "foreign_processes"] == 0
    assert values["GPU-bbbb", "foreign_memory_bytes"] == 0
    assert reader.reasons == {}


def test_what_a_rank_holds_is_given_for_every_device(tmp_path: Path) -> None:
    """A rank with a context on a second device has memory on both."""
    reader = watched(tmp_path, {"GPU-aaaa": [(501, GIB), (502, GIB // 2)], "GPU-bbbb": [(502, 4 * GIB)]})
    values = reader.read(0.0)
    held = {key: value for key, value in values.items() if key[1].startswith("rank_")}
    assert held == {
        ("GPU-aaaa", "rank_0_memory_bytes"): GIB,
        ("GPU-aaaa", "rank_1_memory_bytes"): GIB // 2,
        ("GPU-bbbb", "rank_1_memory_bytes"): 4 * GIB,
    }


@pytest.mark.parametrize("running", [{}, {"GPU-aaaa": [(31337, GIB)]}])
def test_no_process_of_this_launch_in_the_lists_is_null_and_not_zero(
    tmp_path: Path, running: dict[str, list[tuple[int, int | None]]]
) -> None:
    """An empty list, or ids that are all strange, may be of another namespace: nothing is said of others."""
    reader = watched(tmp_path, running)
    values = reader.read(0.0)
    assert values["GPU-aaaa", "foreign_processes"] is None
    assert values["GPU-bbbb", "foreign_memory_bytes"] is None
    assert reader.reasons["GPU-aaaa/foreign_processes"] == UNMAPPED


def test_inside_a_container_none_is_null_and_some_are_counted(tmp_path: Path) -> None:
    """NVML may hide processes of other containers there: what it shows counts, what it does not is not 0."""
    reader = watched(
        tmp_path,
        {"GPU-aaaa": [(501, GIB)], "GPU-bbbb": [(502, GIB), (900, GIB)]},
        namespace="pid:[4026532999]",
    )
    values = reader.read(0.0)
    assert values["GPU-aaaa", "foreign_processes"] is None
    assert reader.reasons["GPU-aaaa/foreign_processes"] == HIDDEN
    assert values["GPU-bbbb", "foreign_processes"] == 1


def test_ids_that_have_matched_once_stay_trusted(tmp_path: Path) -> None:
    """After the ranks have left their devices, a process of others is still one."""
    reader = watched(tmp_path, {"GPU-aaaa": [(501, GIB)]})
    reader.read(0.0)
    reader.nvml.running = {"GPU-aaaa": [(900, GIB)]}
    assert reader.read(PROCESSES_S)["GPU-aaaa", "foreign_processes"] == 1


def test_an_unknown_size_is_null_and_the_count_stays(tmp_path: Path) -> None:
    """Where NVML does not say how much a process holds, no sum is made up."""
    reader = watched(tmp_path, {"GPU-aaaa": [(501, None), (900, None)]})
    values = reader.read(0.0)
    assert values["GPU-aaaa", "foreign_processes"] == 1
    assert values["GPU-aaaa", "foreign_memory_bytes"] is None
    assert values["GPU-aaaa", "rank_0_memory_bytes"] is None
    assert reader.reasons["GPU-aaaa/rank_0_memory_bytes"] == NO_SIZE


def test_the_file_of_ranks_may_name_the_engine(tmp_path: Path) -> None:
    """The first launch of a block begins before its engine: the group is then known from the file."""
    nvml = FakeNvml()
    nvml.running = {"GPU-aaaa": [(501, GIB), (503, GIB), (900, GIB)]}
    (tmp_path / "ranks").write_text("engine 500\n0 501\n")
    folder = fake_proc(tmp_path / "proc", {501: 500, 503: 500, 900: 900})
    reader = reader_of(CARDS, nvml, folder, rank_pids=str(tmp_path / "ranks"))
    assert reader.read(0.0)["GPU-aaaa", "foreign_processes"] == 1


def test_one_list_that_fails_leaves_the_other(tmp_path: Path) -> None:
    """A device whose processes may not be listed is null by itself, with NVML's reason."""
    reader = watched(tmp_path, {"GPU-bbbb": [(502, GIB), (900, GIB)]})
    listing = reader.nvml.nvmlDeviceGetComputeRunningProcesses

    def refuse(handle: str) -> object:
        if handle == "GPU-aaaa":
            raise failing("NoPermission")
        return listing(handle)

    reader.nvml.nvmlDeviceGetComputeRunningProcesses = refuse
    values = reader.read(0.0)
    assert values["GPU-aaaa", "foreign_processes"] is None
    assert reader.reasons["GPU-aaaa/foreign_memory_bytes"] == "NoPermission"
    assert values["GPU-bbbb", "foreign_processes"] == 1


def test_processes_are_listed_twice_a_second(tmp_path: Path) -> None:
    """Readings in between do not ask for them."""
    reader = watched(tmp_path, {"GPU-aaaa": [(501, GIB)]})
    asked = [("GPU-aaaa", "foreign_processes") in reader.read(tenth / 10) for tenth in range(10)]
    assert [tenth for tenth, told in enumerate(asked) if told] == [0, 5]
