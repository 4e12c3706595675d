"""From suites and a host to the cells that run."""

import pytest

from bench import estimate
from bench.case import Case
from bench.errors import UsageError
from bench.legal import Brought
from bench.plan import Nodes, make_plan
from bench.stopping import limits
from tests.hosts import cpu_host, gpu_host


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working directory without earlier results."""
    monkeypatch.chdir(tmp_path)


def test_cells_of_several_suites_run_once():
    """The base that ddp and dp share is one cell."""
    plan = make_plan(["ddp", "dp"], cpu_host())
    ids = [cell.id for cell in plan.cells]
    assert len(ids) == len(set(ids))
    assert sum(cell.case.strategy == "single" for cell in plan.cells) == 1


def test_the_default_suite_fits_the_time_and_says_what_it_left_out():
    """Within six minutes on two CPUs the default suite has 8 to 12 cells; the rest is named with its reason."""
    plan = make_plan(["default"], cpu_host(), budget_s=360)
    assert 8 <= len(plan.runnable) <= 12
    assert any("pin_memory has no effect without an accelerator" in text for text in plan.left_out)
    assert any("kept for: scalemark run dp" in text for text in plan.left_out)


def test_nodes_of_one_box_have_no_more_ranks_than_cpus_in_the_default_suite():
    """Two nodes of a two-CPU box run one rank each there; two each are left to the suite of several nodes, in words."""
    plan = make_plan(["default"], cpu_host(), budget_s=360, team=Nodes(count=2, box=True))
    assert 8 <= len(plan.runnable) <= 12
    assert {c.case.devices for c in plan.runnable if c.case.nodes == 2} == {2}
    assert any("4 ranks on the 2 CPUs that the nodes of one box share" in text for text in plan.left_out)
    plan = make_plan(["multinode"], cpu_host(), team=Nodes(count=2, box=True))
    assert {c.case.devices for c in plan.runnable if c.case.nodes == 2} == {2, 4}


def test_less_time_means_fewer_cells_and_words_for_them():
    """With a minute only the first cells of the default suite stay; each of the others is left out by name."""
    long, short = (make_plan(["default"], cpu_host(), budget_s=s) for s in (360, 60))
    assert 0 < len(short.runnable) < len(long.runnable)
    gone = {c.id for c in long.runnable} - {c.id for c in short.runnable}
    assert all(any(cell in text for text in short.left_out) for cell in gone)


def test_a_named_suite_is_never_cut():
    """Only a suite of parts is fitted to the time: who asks for ddp gets all of it."""
    plan = make_plan(["ddp"], cpu_host(), nproc=8, budget_s=1)
    assert [c.case.ranks for c in plan.runnable if c.case.strategy == "ddp"] == [1, 2, 4, 8]


def test_skipped_cells_keep_their_reason():
    """An illegal cell is in the plan, skipped, with its reason, and takes no time."""
    plan = make_plan(["dp"], cpu_host(), sets=["sync_bn=true"])
    reasons = {cell.skipped for cell in plan.cells if cell.case.strategy == "dp"}
    assert reasons == {"sync_bn needs ddp: dp has no process group to synchronise over"}
    assert [c.case.strategy for c in plan.runnable] == ["single"]


def test_cpu_ranks_are_said_once_with_what_they_mean():
    """On a CPU host the plan says that device slots are CPU ranks, and that they cannot outgrow the CPUs."""
    (note,) = make_plan(["ddp"], cpu_host(2), nproc=4).notes
    assert "every device slot is a CPU rank with gloo and one thread" in note
    assert "cannot scale beyond the CPUs" in note


def test_cells_that_are_skipped_are_not_counted_among_the_ranks():
    """Three nodes asked for and two to be had: nothing runs on three CPUs."""
    team = Nodes(count=2, box=True)
    plan = make_plan(["ddp"], cpu_host(2), sets=["nodes=1,3"], nproc=1, team=team)
    assert any(cell.skipped for cell in plan.cells)
    assert any("one thread; 1 rank on 2 usable CPUs" in text for text in plan.notes)


@pytest.mark.parametrize(
    ("host", "devices", "says"),
    [
        (cpu_host(), (0,), "--devices 0: no accelerator here"),
        (gpu_host(2), (0, 5), "no device 5; there are 0, 1"),
    ],
)
def test_devices_that_are_not_there_are_named(host, devices, says):
    """--devices is answered with what there is."""
    with pytest.raises(UsageError) as error:
        make_plan(["ddp"], host, devices=devices)
    assert says in str(error.value)


def test_chosen_devices_limit_the_ranks():
    """With --devices 1,3 `auto` goes to two ranks."""
    plan = make_plan(["ddp"], gpu_host(4), devices=(1, 3))
    assert max(cell.case.ranks for cell in plan.cells) == 2


def test_a_host_without_torch_is_told_so():
    """Nothing can run without torch: one line, before anything is planned."""
    import msgspec

    host = msgspec.structs.replace(cpu_host(), torch=None, device_error="No module named 'torch'")
    with pytest.raises(UsageError, match=r"torch cannot be imported here \(No module named 'torch'\)"):
        make_plan(["single"], host)


def test_estimates_come_from_earlier_launches_of_this_host(tmp_path):
    """A cell that ran here before is expected to take what it took; others are guessed."""
    from bench.machine import fingerprint
    from tests.simulate import simulate

    host = cpu_host()
    first = make_plan(["single"], host)
    cells = [cell.case for cell in first.runnable]
    import msgspec

    def here(record):
        return msgspec.structs.replace(record, fingerprint=fingerprint(host), wall_s=33.0)

    simulate(tmp_path / "results" / "before", cells[:1], change=here)
    again = make_plan(["single"], host)
    assert again.estimates[cells[0].id].seconds == 33.0
    assert again.estimates[cells[0].id].measured
    assert not again.estimates[cells[1].id].measured


@pytest.mark.parametrize(
    ("has_dataset", "sets", "data", "skipped"),
    [
        (False, [], {"synthetic"}, False),
        (False, ["data=own"], {"own"}, True),
        (True, [], {"own"}, False),
    ],
)
def test_samples_are_made_for_a_model_without_a_data_set(monkeypatch, has_dataset, sets, data, skipped):
    """Where the suite leaves the data open, that is said in a note; who asks for `own` is told what is missing."""
    brought = Brought(has_dataset=has_dataset, dataset_len=5000 if has_dataset else None, has_sample=True)
    monkeypatch.setattr("bench.plan.brought_by", lambda case: brought)
    plan = make_plan(["ddp"], cpu_host(), sets=["model=mine:build", *sets])
    assert {cell.case.data for cell in plan.cells} == data
    assert all(bool(cell.skipped) is skipped and cell.id == cell.case.id for cell in plan.cells)
    assert any("mine:build brings no data set" in note for note in plan.notes) is (data == {"synthetic"})


def test_a_model_by_name_is_guessed_by_what_it_brings():
    """Its weights and the places that they are applied at; the import of the library is in every launch."""
    host, brought = cpu_host(), Brought(has_sample=True, products=2 * estimate.PRODUCTS_PER_S)
    cases = [Case(model="hf:any", batch=1, steps=n) for n in (10, 20)]
    short, long = (estimate.guess(case, host, brought) for case in cases)
    assert long - short == pytest.approx(10 * (2 + estimate.STEP_FLOOR_S))
    assert 2 * short - long == pytest.approx(estimate.LAUNCH_S + estimate.IMPORT_S["hf"])


def sample_s(model, **options):
    """The guess of what a sample costs."""
    return estimate._compute_s(Case(model=model, model_args=options), cpu_host(), None)


@pytest.mark.parametrize(
    ("model", "options", "low", "high"),
    [
        ("resnet18", {"image_size": 112}, 1 / 4, 1 / 4),
        ("resnet-small", {"classes": 7}, 1, 1),
        ("gpt2", {"sequence": 256}, 0.2, 0.25),
        ("gpt-small", {"depth": 6}, 1.5, 2),
        ("vit", {"width": 64, "depth": 2, "heads": 4, "image_size": 32}, 0, 1e-4),
        ("vit", {"patch": 32}, 0.2, 0.25),
        ("mlp", {"width": 2048, "depth": 6}, 8, 16),
    ],
)
def test_guesses_follow_the_options_of_a_model(model, options, low, high):
    """Images by their area, transformers by weights and tokens, layers by their weights."""
    assert low <= sample_s(model, **options) / sample_s(model) <= high


def test_cells_that_cannot_end_in_their_time_are_said_and_counted_once():
    """Each launch ends at its limit, such a cell runs once, and no less than the first block is expected."""
    from bench.verbs.plan import expected_s

    sets = ["model=gpt2", "batch=2", "data=device", "steps=60,1"]
    plan = make_plan(["single"], cpu_host(), sets=sets)
    slow, fast = map(plan.launch_s, plan.runnable)
    assert fast < slow == 180
    (note,) = [note for note in plan.notes if "time limit" in note]
    assert note.startswith("1 of 2 cells is expected to hit the time limit of 180 s a launch (")
    assert plan.block_s == slow + fast + estimate.BLOCK_S
    assert plan.blocks_s(5) == pytest.approx(plan.block_s + 4 * (fast + estimate.BLOCK_S))
    assert expected_s(plan, 60.0, limits()) == (plan.block_s, plan.block_s)


def test_the_budget_limits_what_is_expected():
    """Between the fewest and the most launches, and at most the budget."""
    from bench.verbs.plan import expected_s

    plan = make_plan(["single"], cpu_host(), sets=["data=device"])
    assert not [note for note in plan.notes if "time limit" in note]
    assert plan.blocks_s(5) == pytest.approx(5 * plan.block_s)
    assert expected_s(plan, None, limits()) == (plan.blocks_s(5), plan.blocks_s(10))
    assert expected_s(plan, plan.block_s * 7, limits()) == (plan.blocks_s(5), plan.block_s * 7)
    assert expected_s(plan, None, limits(strict=True)) == (plan.blocks_s(5), plan.blocks_s(20))


def test_a_plan_with_nothing_to_run_says_so(capsys):
    """Every cell is skipped: no table, no time, in words and in JSON."""
    from bench.verbs.plan import as_dict, show

    plan = make_plan(["single"], cpu_host(), sets=["fused=true"])
    show(plan, 600.0, limits())
    out = capsys.readouterr().out
    assert out.endswith("nothing to run: every cell is skipped\n")
    assert "expected" not in out
    told = as_dict(plan, 600.0, limits())
    assert (told["block_s"], told["expected_s"]) == (None, None)


@pytest.mark.parametrize(
    ("brought", "data"),
    [
        (Brought(has_sample=True, tokens=True), {"device", "synthetic", "tokens"}),
        (Brought(has_sample=True, image=True), {"device", "synthetic", "photos"}),
        (Brought(has_sample=True), {"device", "synthetic"}),
    ],
)
def test_auto_data_of_another_librarys_model_is_what_it_takes(monkeypatch, brought, data):
    """Built first, an hf: model says what its samples are; each cell is there once."""
    monkeypatch.setattr("bench.plan.brought_by", lambda case: brought)
    plan = make_plan(["single"], cpu_host(), sets=["model=hf:any"])
    assert {cell.case.data for cell in plan.runnable} == data
    assert len(plan.cells) == len(data) == len({cell.id for cell in plan.cells})


@pytest.mark.parametrize(
    ("formats", "said"), [(["bf16"], True), ([], True), (["bf16", "fp16"], False), (None, False)]
)
def test_emulated_precisions_are_said(formats, said):
    """fp16 on a CPU that does not compute it; not where it does, nor where that is not known."""
    import msgspec

    host = msgspec.structs.replace(cpu_host(), cpu_formats=formats)
    notes = make_plan(["single"], host, sets=["precision=fp16"]).notes
    assert any("precision fp16: this CPU does not compute fp16 in hardware" in note for note in notes) is said
    assert not any("in hardware" in note for note in make_plan(["single"], host).notes)


@pytest.mark.parametrize(
    ("model", "option", "says"),
    [
        ("vit", "heads=7", "width = 768 does not divide by heads = 7"),
        ("vit", "image_size=65", "image_size = 65 does not divide by patch = 16"),
        ("gpt-small", "heads=3", "width = 128 does not divide by heads = 3"),
        ("paced", "parameters=2", "parameters = 2 for 8 layers"),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_the_plan(model, option, says):
    """Before anything is built, in one line."""
    with pytest.raises(UsageError, match=f"model_args of '{model}': {says}"):
        make_plan(["single"], cpu_host(), sets=[f"model={model}", f"model_args.{option}"])


def test_an_aa_pair_is_the_base_twice():
    """The first cell that can run stands in the plan once more, with an id of its own and the same expected time."""
    plan = make_plan(["ddp"], cpu_host(), sets=["data=synthetic"], aa=True)
    first, twin = plan.cells[0], plan.cells[-1]
    assert first.case.strategy == "single"
    assert (twin.id, twin.twin_of, twin.case) == (f"{first.id}-aa", first.id, first.case)
    assert plan.launch_s(twin) == plan.launch_s(first)
    assert [cell.twin_of for cell in plan.cells[:-1]] == [None] * (len(plan.cells) - 1)
    usual = make_plan(["ddp"], cpu_host(), sets=["data=synthetic"])
    assert plan.cells[:-1] == usual.cells
    assert (plan.factors, plan.notes) == (usual.factors, usual.notes)


def test_a_cell_that_cannot_run_has_no_twin():
    """The first runnable one is taken; with none there is no pair."""
    plan = make_plan(["ddp"], cpu_host(), sets=["data=device", "fused=true"], aa=True)
    assert not plan.runnable
    assert all(cell.twin_of is None for cell in plan.cells)


@pytest.mark.parametrize("other", ["strict", "aa"])
def test_one_launch_a_cell_goes_with_nothing_that_takes_several(other):
    """--quick with --strict or --aa is one line that names both; each alone, and the other two together, are fine."""
    from bench.verbs._options import check_limits

    with pytest.raises(UsageError, match=rf"^--quick --{other}: .*; give one of the two$"):
        check_limits(quick=True, **{"strict": False, other: True})
    check_limits(quick=False, strict=True, aa=True)
    check_limits(quick=True, strict=False)


def test_a_plan_says_its_target_and_its_pair(capsys):
    """--strict and --aa are in the words and in the JSON."""
    from bench.verbs.plan import as_dict, show

    plan = make_plan(["single"], cpu_host(), sets=["data=device"], aa=True)
    show(plan, 600.0, limits(strict=True))
    assert "5 to 20 launches a cell until ±1 %" in capsys.readouterr().out
    told = as_dict(plan, 600.0, limits(strict=True))
    assert (told["target"], told["launches"]) == (0.01, (5, 20))
    assert [cell["twin_of"] for cell in told["cells"]] == [None, plan.cells[0].id]
