"""Frames: one row a launch and a rank, missing values missing, and one pass over the file."""

import math
import time
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

from bench import frame
from bench.case import Case
from bench.records import LaunchRecord
from bench.store import Store
from tests.simulate import GPU_HOST, each_rank, failed, launch_record, simulate

SINGLE, DDP = Case(), Case(strategy="ddp", ranks=2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two cells, three blocks, spread 0."""
    return simulate(tmp_path / "study", [SINGLE, DDP], blocks=3, spread=0.0, step_s=lambda case: 0.1)


def test_a_launch_is_a_row_with_its_case_and_its_throughput(store: Store) -> None:
    """Samples/s, its log, phases and every field of the case stand in one row."""
    table = frame.launches([store])
    assert len(table) == 6
    row = table[table["cell"] == DDP.id].iloc[0]
    assert (row["strategy"], row["ranks"], row["devices"], row["global_batch"]) == ("ddp", 2, 2, 32)
    assert row["samples_per_s"] == pytest.approx(320.0)
    assert row["y"] == pytest.approx(math.log(320.0))
    assert np.nansum(row[list(frame.PHASE_COLUMNS)].astype(float)) == pytest.approx(row["step_s"])
    assert math.isnan(row["data_wait_s"])
    assert set(Case.__struct_fields__) <= set(table.columns)


def test_a_rank_is_a_row_with_what_it_says_it_ran(store: Store) -> None:
    """DDP on 2 has two rows a launch, single one; effective settings, counts and memory are columns."""
    table = frame.ranks([store])
    assert table.groupby("cell").size().to_dict() == {SINGLE.id: 3, DDP.id: 6}
    row = table[table["cell"] == DDP.id].iloc[1]
    assert (row["rank"], row["world_size"], row["backend"], row["threads"]) == (1, 2, "gloo", 1)
    assert row["in_window"] == 16 * 45
    assert row["rank_pss_bytes"] > 300 * 2**20
    assert math.isnan(row["device_used_bytes"])


def test_throughput_is_what_was_counted_not_what_was_asked_for(tmp_path: Path) -> None:
    """Where a batch held fewer samples than it should, the counted ones make the throughput."""

    def short_batches(record: LaunchRecord) -> LaunchRecord:
        window = msgspec.structs.replace(record.window, samples=10, wall_s=2.0, samples_per_s=5.0)
        return msgspec.structs.replace(record, window=window)

    store = simulate(tmp_path / "s", [SINGLE], blocks=1, change=short_batches)
    assert frame.launches([store])["samples_per_s"].tolist() == [5.0]


@pytest.mark.parametrize(
    ("change", "reject", "comparable"),
    [
        (lambda r: r, None, True),
        (failed, "exception", False),
        (lambda r: failed(r, status="timeout", reason=None), "timeout", False),
        (lambda r: msgspec.structs.replace(r, window=None), "window too short: no throughput", False),
        (lambda r: rewindow(r, samples_per_s=None), "window too short: no throughput", False),
        (lambda r: msgspec.structs.replace(r, mismatches=("ran as single",)), "ran as single", False),
        (lambda r: msgspec.structs.replace(r, ranks=r.ranks[:1]), "rank 1 missing", False),
        (lambda r: rewindow(r, cut={"state": "unsteady"}), None, False),
        (lambda r: rewindow(r, cut={"state": "assumed"}), None, True),
    ],
)
def test_why_a_launch_may_not_be_compared(
    tmp_path: Path, change, reject: str | None, comparable: bool
) -> None:
    """Failures, no window, other settings than asked, a missing rank and drift each keep a launch out."""
    row = frame.launches([simulate(tmp_path / "s", [DDP], blocks=1, change=change)]).iloc[0]
    assert (row["reject"], bool(row["comparable"])) == (reject, comparable)


def rewindow(record: LaunchRecord, cut: dict | None = None, **fields) -> LaunchRecord:
    """The record with fields of its window, or of the window's cut, changed."""
    assert record.window is not None
    if cut:
        fields["cut"] = msgspec.structs.replace(record.window.cut, **cut)
    return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, **fields))


def test_missing_is_not_zero(tmp_path: Path) -> None:
    """A phase that was not measured is missing in both frames, and so are numbers of a failed launch."""

    def no_backward(record: LaunchRecord) -> LaunchRecord:
        if record.cell == SINGLE.id:
            return failed(record)
        return msgspec.structs.replace(record, phases_s=record.phases_s | {"backward": None})

    table = frame.launches([simulate(tmp_path / "s", [SINGLE, DDP], blocks=1, change=no_backward)])
    assert table["backward_s"].isna().all()
    lost = table[table["cell"] == SINGLE.id].iloc[0]
    assert math.isnan(lost["samples_per_s"])
    assert lost["reason"] == "exception"
    assert lost["first_rank"] == 1
    kept = table[table["cell"] == DDP.id].iloc[0]
    assert kept["reason"] is None


@pytest.mark.parametrize(
    ("told", "energy"),
    [
        ({"GPU-0": 3600.0, "GPU-1": 3600.0, "GPU-5": 1e9}, 7200 / (32 * 45)),
        ({"MIG-0": 3600.0, "MIG-1": 0.0}, 3600 / (32 * 45)),
        ({"GPU-0": 3600.0, "GPU-1": None}, math.nan),
        ({"GPU-0": 3600.0}, math.nan),
        ({}, math.nan),
    ],
)
def test_energy_a_sample_is_of_all_devices_of_the_ranks(
    tmp_path: Path, told: dict[str, float | None], energy: float
) -> None:
    """Joules of every device in use over the samples of the window; one that does not say leaves it missing."""
    telemetry = {f"{uuid}/energy_j": {"total": joules} for uuid, joules in told.items()}
    store = simulate(
        tmp_path / "s", [DDP], blocks=1, host=GPU_HOST,
        change=lambda record: msgspec.structs.replace(record, telemetry=telemetry),
    )  # fmt: skip
    row = frame.launches([store]).iloc[0]
    assert row["energy_per_sample_j"] == pytest.approx(energy, nan_ok=True)


def test_a_study_without_a_launch_has_the_same_columns(tmp_path: Path, store: Store) -> None:
    """Empty and all-failed studies give frames of the same columns and types."""
    empty = frame.load([simulate(tmp_path / "empty", [])])
    lost = frame.load([simulate(tmp_path / "lost", [SINGLE], change=failed)])
    whole = frame.load([store])
    for other in (empty, lost):
        pd.testing.assert_series_equal(other.launches.dtypes, whole.launches.dtypes)
        pd.testing.assert_series_equal(other.ranks.dtypes, whole.ranks.dtypes)


def test_studies_of_one_name_stay_apart(tmp_path: Path) -> None:
    """Two folders of the same name are two studies; blocks of one are never paired with the other's."""
    stores = [simulate(tmp_path / side / "same", [SINGLE], blocks=2) for side in ("a", "b")]
    assert frame.launches(stores)["study"].nunique() == 2


def test_broken_lines_are_named_and_left_out(store: Store) -> None:
    """A cut last line is said with file and line; the frames hold the rest."""
    data = store.launches_path.read_bytes()
    store.launches_path.write_bytes(data[:-50])
    loaded = frame.load([store])
    assert len(loaded.launches) == 5
    assert len(loaded.broken) == 1
    assert loaded.broken[0].startswith(f"{store.launches_path}:6: ")


def test_stand_ins_and_reference_are_told(tmp_path: Path) -> None:
    """The names of what replaced the real thing come from the ranks."""
    cells = [Case(model="paced"), Case(strategy="dp", ranks=2)]
    table = frame.launches([simulate(tmp_path / "s", cells, blocks=1)]).set_index("strategy")
    assert table.loc["single", "stand_ins"] == ("paced model",)
    assert table["reference"].to_dict() == {"single": False, "dp": True}


def test_steps_are_read_only_when_asked_for(tmp_path: Path) -> None:
    """The step frame of one launch holds all its ranks; a launch without one gives an empty frame."""
    store = simulate(tmp_path / "s", [DDP], blocks=1, steps=20, write_steps=True)
    launch = store.records()[0][0].launch
    table = frame.steps(store, launch)
    assert table.groupby("rank").size().tolist() == [25, 25]
    assert table["in_window"].sum() == 40
    assert frame.steps(store, "none").empty
    for path in store.root.glob("steps/*"):
        path.write_bytes(b"not a Parquet file")
    assert len(frame.launches([store])) == 1


def test_reading_grows_no_faster_than_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the launches cost at most about four times as much."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    case = Case(strategy="ddp", ranks=8)
    stores = [Store(tmp_path / f"s{count}") for count in (500, 2000)]
    for store, count in zip(stores, (500, 2000), strict=True):
        simulate(store.root, [case], blocks=1)
        record = launch_record(case, 0, 0)
        line = msgspec.json.encode(each_rank(record, "counts", seen=1)) + b"\n"
        store.launches_path.write_bytes(line * count)
    frame.load([stores[0]])
    seconds = np.array([min(timed(store) for _ in range(2)) for store in stores])
    assert seconds[1] / seconds[0] < 8


def timed(store: Store) -> float:
    """Seconds that one load takes."""
    began = time.perf_counter()
    frame.load([store])
    return time.perf_counter() - began
