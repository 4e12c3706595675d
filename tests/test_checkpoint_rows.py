"""Rows over all ranks, the file that holds them, and the ways of loading that a host's strategies have."""

import re
from pathlib import Path

import msgspec
import pytest

from bench.case import Case
from bench.checkpoint_plan import Saved, loads_of, saves_of, suites
from bench.checkpoint_records import (
    AS_IT_IS,
    BY_DEFAULT,
    CUT,
    MAPS,
    Attempt,
    CheckpointRow,
    File,
    Load,
    Save,
    location,
)
from bench.checkpoint_rows import append, attempts, load_row, read, save_row
from bench.errors import UsageError
from bench.records import RankTrace
from tests.checkpoints import load, save, some
from tests.hosts import cpu_host, gpu_host

ROOT = Path(__file__).parents[1]
DDP = Case(strategy="ddp", ranks=2)
STATE = Save(id="1-ddp.state", format="state_dict")
FILE = File(name="1-ddp.state.pt", bytes=4096, saved_on="cuda:0")
LOAD = Load(id="x", format="state_dict", files=(FILE,), way="dict", map_location="dict")


def attempt(**fields):
    """One rank's."""
    return Attempt(id=STATE.id, **fields)


def trace(rank, *done):
    """A rank's trace with what it did."""
    return RankTrace(
        launch="l", rank=rank, local_rank=rank, node=0, host="h", pid=1, status="ok", checkpoints=tuple(done)
    )


def test_a_save_lasts_until_the_slowest_rank_goes_on():
    """Seconds are the slowest rank's, repeat by repeat, waiting included; rank 0's own stand beside them."""
    ranks = [
        attempt(
            own_s=(1.0, 2.0, 6.0), all_s=(1.5, 2.5, 6.5), durable_s=(2.0, 3.0, 9.0), files=(FILE,), tensors=3
        ),
        attempt(all_s=(1.0, 4.0, 6.0)),
    ]
    row = save_row(STATE, DDP, ranks)
    assert (row.seconds, row.low_s, row.high_s, row.repeats) == (4.0, 1.5, 6.5, 3)
    assert (row.rank0_s, row.durable_s, row.bytes, row.files) == (2.0, 3.0, 4096, 1)
    assert (row.saver, row.saver_ranks, row.saved_on, row.outcome) == ("ddp", 2, "cuda:0", "ok")


def test_files_of_all_ranks_count():
    """Where every rank writes a file of its own, their bytes are added."""
    row = save_row(STATE, DDP, [attempt(files=(FILE,)), attempt(files=(FILE,))])
    assert (row.bytes, row.files) == (8192, 2)


@pytest.mark.parametrize(("first", "second", "worst"), [
    ("ok", "refused", "refused"), ("mismatch", "ok", "mismatch"), ("failed", "mismatch", "failed"),
])  # fmt: skip
def test_one_rank_that_fails_decides(first, second, worst):
    """The outcome is the gravest of all ranks, with its message, and nothing counts as measured."""
    said = [attempt(outcome=first, message=first), attempt(outcome=second, message=second)]
    row = load_row(LOAD, save("ddp", 2), DDP, said, "cuda:0")
    assert (row.outcome, row.message) == (worst, worst)
    assert (row.seconds, row.equal, row.repeats) == (None, None, 0)


def test_a_launch_that_was_lost_is_a_row():
    """Without a word of all ranks the row has failed, and says why; half a word is none."""
    half = attempts([trace(0, attempt())], STATE.id, 2)
    row = save_row(STATE, DDP, half, lost="signal: rank 1 got SIGKILL")
    assert (row.outcome, row.message, row.seconds) == ("failed", "signal: rank 1 got SIGKILL", None)
    both = attempts([trace(1, attempt(tensors=2)), trace(0, attempt(tensors=1))], STATE.id, 2)
    assert [one.tensors for one in both] == [1, 2]


def test_a_load_is_equal_only_where_it_is_on_every_rank():
    """One rank that differs makes the row differ, and its tensor is named; an accelerator's ranks say where they loaded."""
    ranks = [
        attempt(own_s=(1.0,), equal=True, elsewhere={}),
        attempt(own_s=(2.0,), equal=False, differing="model.a", elsewhere={"cuda:0": 7}),
    ]
    row = load_row(LOAD, save("ddp", 2), DDP, ranks, "cuda:0")
    assert (row.equal, row.differing, row.seconds) == (False, "model.a", 2.0)
    assert row.elsewhere == {"rank 1 on cuda:0": 7}
    assert load_row(LOAD, save("ddp", 2), DDP, ranks, "cpu").elsewhere is None


@pytest.mark.parametrize(("kind", "argument"), [
    ("none", None), ("in place", None), ("cpu", "cpu"), ("device", "cuda:1"), ("dict", {"cuda:0": "cuda:1"}),
    ("other dict", {"cuda:7": "cuda:1"}),
])  # fmt: skip
def test_every_kind_of_map_location_has_its_argument(kind, argument):
    """For a file of device 0 and a rank on device 1."""
    assert location(kind, "cuda:0", "cuda:1") == argument


def test_the_dict_that_does_not_match_names_another_device():
    """Whatever the file was saved on."""
    assert "cuda:7" not in location("other dict", "cuda:7", "cpu")


def ways(form, made="", loader="single", writer="rank 0"):
    """Ways in which a strategy loads one file."""
    row = save(form=form, made=made, writer=writer)
    cell = Case(strategy=loader, ranks=1 if loader == "single" else 2)
    return [load for load, _ in loads_of([Saved("f", row, (FILE,))], cell, 3)]


def test_every_kind_is_tried_on_every_file_and_the_mistakes_too():
    """State dicts with and without a look at their prefix, whole models with and without weights_only=False."""
    assert [one.way for one in ways("state_dict")] == [*MAPS, AS_IT_IS]
    assert [one.way for one in ways("model")] == [*MAPS, BY_DEFAULT]
    assert [one.way for one in ways("state_dict", made="location tag")] == [*MAPS]
    assert [one.way for one in ways("state_dict", made="cut short")] == [CUT]
    assert [one.way for one in ways("dcp")] == ["in place"]


def test_only_whole_models_are_unpickled_and_never_by_default():
    """weights_only=False is for the whole models of this run; state dicts and what stands in for other files never get it."""
    assert [one.way for one in ways("model") if one.default_weights_only] == [BY_DEFAULT]
    rest = [*ways("state_dict"), *ways("state_dict", made="location tag"), *ways("dcp")]
    assert all(one.default_weights_only for one in rest)
    assert [one.way for one in ways("state_dict") if not one.fix_prefix] == [AS_IT_IS]


def test_sharded_parameters_come_and_go_by_dcp_alone():
    """torch.save would write one rank's part of them, and torch.load give whole tensors."""
    fsdp = Case(strategy="fsdp", ranks=2)
    assert [one.format for one in saves_of("n", fsdp, first=False)] == ["dcp"]
    assert ways("state_dict", loader="fsdp") == [] and [one.way for one in ways("dcp", loader="fsdp")] == [
        "in place"
    ]


def test_ranks_write_alone_and_together():
    """DDP saves by rank 0 and by every rank; one process has nobody to wait for; names are never used twice."""
    several = saves_of("n", DDP, first=False)
    assert {(one.format, one.writer) for one in several} == {
        ("state_dict", "rank 0"), ("state_dict", "every rank"), ("model", "rank 0"), ("model", "every rank"),
        ("dcp", "every rank"),
    }  # fmt: skip
    alone = saves_of("n", Case(), first=True)
    assert {one.writer for one in alone} == {"rank 0"}
    assert [one.made for one in alone] == ["", "", "", "location tag", "cut short"]
    assert len({one.id for one in (*several, *saves_of("m", DDP, first=False))}) == 10


def strategies(host, **fields):
    """Strategy, ranks and nodes of each suite."""
    asked = {"sets": (), "nproc": None, "nodes": 1, "quick": False} | fields
    return [(s.case["strategy"], s.case["ranks"], s.case["nodes"]) for s in suites(host, **asked)]


def test_what_the_host_has_decides_who_saves():
    """Two ranks where there are two slots, one of each strategy's own where there is one; nodes are one DDP more."""
    assert strategies(cpu_host()) == [("single", 1, 1), ("dp", 2, 1), ("ddp", 2, 1), ("fsdp", 2, 1)]
    assert strategies(gpu_host(), nproc=4)[1:] == [("dp", 4, 1), ("ddp", 4, 1), ("fsdp", 4, 1)]
    assert strategies(cpu_host(), nproc=1) == [("single", 1, 1), ("ddp", 1, 1)]
    assert strategies(cpu_host(), quick=True, nodes=2) == [("single", 1, 1), ("ddp", 2, 1), ("ddp", 1, 2)]


@pytest.mark.parametrize("text", ["strategy=dp", "ranks=4", "model=mlp,gpt2", "data=photos", "compile=true"])
def test_axes_that_it_sets_itself_are_refused(text):
    """One line names the axis, and what is allowed."""
    with pytest.raises(
        UsageError, match=rf"--set {text.partition('=')[0]}: checkpoint sets .*--set model=NAME"
    ):
        suites(cpu_host(), [text], None, 1, False)


def test_rows_come_back_as_they_were_written(tmp_path):
    """Written in two goes, read in order; a study without checkpoints has none."""
    assert read(tmp_path) == ((), 0)
    append(tmp_path, some()[:3])
    append(tmp_path, some()[3:])
    assert read(tmp_path) == (some(), 0)


def test_broken_lines_are_counted_and_the_rest_is_read(tmp_path):
    """A line cut short, one with a wrong type and one that is no JSON cost nothing but themselves."""
    append(tmp_path, [save(), load()])
    with (tmp_path / "checkpoints.jsonl").open("ab") as file:
        file.write(b'{"kind":"save","saver":3}\n\xff\n' + msgspec.json.encode(save())[:-20])
    rows, broken = read(tmp_path)
    assert (rows, broken) == ((save(), load()), 3)


def test_rows_of_a_newer_version_are_refused(tmp_path):
    """Its line is named, and what to do."""
    append(tmp_path, [save(), msgspec.structs.replace(save(), schema=2)])
    with pytest.raises(
        UsageError, match=r"checkpoints.jsonl:2: schema 2, and this scalemark reads up to 1; install"
    ):
        read(tmp_path)


def test_every_field_is_explained():
    """docs/checkpoints.md names each field of a row."""
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    assert set(CheckpointRow.__struct_fields__) <= set(re.findall(r"`([^`\n]+)`", page))


def test_every_finding_is_explained():
    """And each finding's code."""
    from bench.checks.checkpoints import TABLE

    page = (ROOT / "docs" / "checkpoints.md").read_text()
    assert {code for code, *_ in TABLE} <= set(re.findall(r"`([^`\n]+)`", page))
