"""Two sides judged: by allocations, by pairs of blocks, and not at all."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from scipy import stats as reference

from bench import stats
from bench.allocations import decide
from bench.answers import Interval
from bench.case import Case
from bench.compared import Measured, read
from bench.errors import UsageError
from bench.outcome import Row, exit_code
from bench.records import Member
from bench.store import Store
from tests.sides import allocation, drawn, interleaved
from tests.simulate import CPU_HOST, GPU_HOST, default_phases, each_rank, failed, simulate

CLAIMS = {"faster", "slower", "small change"}
CASES = [Case(), Case(strategy="ddp", ranks=2)]


def judged(base, new, paired=False, **given):
    return decide(base, new, **({"paired": paired, "delta": 0.02, "gate": True} | given))


def slower(factor):
    """Phases of steps that take `factor` times as long."""
    return lambda case: {
        name: None if value is None else value * factor for name, value in default_phases(case).items()
    }


def studies(folder, side, count=1, cases=CASES, **given):
    """Simulated studies of one side: equal but for their random numbers."""
    seeds = range(100 * (side == "new"), 100 * (side == "new") + count)
    return [simulate(folder / f"{side}{seed}", cases, seed=seed, **given) for seed in seeds]


def compared(base, new, paired=False, delta=0.02, **given):
    sides = ([read(store, delta) for store in side] for side in (base, new))
    return judged(*sides, paired=paired, delta=delta, **given)


def test_one_allocation_a_side_decides_nothing_however_large_the_difference(tmp_path):
    """20 % apart: shown, with what the launches alone say beside it, and inconclusive; what would decide is told."""
    base, new = studies(tmp_path, "base"), studies(tmp_path, "new", phases=slower(1.25))
    outcome = compared(base, new)
    assert {row.verdict for row in outcome.rows} == {"inconclusive"}
    assert outcome.exit_code == 5
    for row in outcome.rows:
        assert row.ratio.value == pytest.approx(0.8, rel=0.03)
        assert (row.ratio.low, row.smallest_visible, row.to_decide, row.p_adjusted) == (None,) * 4
        assert row.over_launches.high < 0.85
        assert row.note == "one allocation a side: no verdict"
    assert "scalemark ab" in outcome.note and "3 or more allocations a side" in outcome.note


def test_several_allocations_a_side_are_compared_by_their_means(tmp_path):
    """5 % more time a step is slower, by Welch's interval over one mean of logs an allocation, as scipy has it."""
    base, new = studies(tmp_path, "base", 4), studies(tmp_path, "new", 3, phases=slower(1.05))
    outcome = compared(base, new)
    assert {row.verdict for row in outcome.rows} == {"slower"}
    assert (outcome.exit_code, outcome.note) == (1, None)

    def means(stores, cell):
        rates = [[r.window.samples_per_s for r in s.records()[0] if r.cell == cell] for s in stores]
        return [np.log(one).mean() for one in rates]

    for row in outcome.rows:
        limits = reference.ttest_ind(
            means(new, row.cell), means(base, row.cell), equal_var=False
        ).confidence_interval()
        assert np.log([row.ratio.low, row.ratio.high]) == pytest.approx([limits.low, limits.high])
        assert (row.base_launches, row.new_launches, row.over_launches) == (20, 15, None)


def test_interleaved_sides_are_paired_by_the_number_of_the_block():
    """A block that one side lacks is no pair, and what drifts for both sides is in no difference."""
    random = np.random.default_rng(1)
    base, new = interleaved(random, blocks=8, drift=0.5, shift=-0.05)
    logs = {block: y for block, y in new.cells["a"].logs.items() if block not in (2, 3)}
    new = allocation("new", {"a": Measured("a", "the cell a", logs)})
    row = judged([base], [new], paired=True).rows[0]
    differences = [logs[block] - base.cells["a"].logs[block] for block in logs]
    limits = reference.ttest_1samp(differences, 0).confidence_interval()
    assert np.log([row.ratio.low, row.ratio.high]) == pytest.approx([limits.low, limits.high])
    assert (row.ratio.n, row.verdict) == (6, "slower")
    assert (row.base_launches, row.new_launches) == (6, 6)
    assert row.new_rate / row.base_rate == pytest.approx(row.ratio.value)
    assert row.note == "2 blocks left out: one side has no launch there"
    assert judged([base], [new]).rows[0].verdict == "inconclusive"  # the same two, as if they were run apart


@pytest.mark.parametrize("blocks", [1, 2])
def test_fewer_than_three_blocks_decide_nothing(blocks):
    """No word that claims something, and the note counts them."""
    base = allocation("base", {"a": [6.0, 6.001][:blocks]})
    new = allocation("new", {"a": [5.0, 5.001][:blocks]})
    row = judged([base], [new], paired=True).rows[0]
    assert row.verdict == "inconclusive"
    assert row.note == {1: "one block: no verdict", 2: "two blocks: no verdict"}[blocks]


def test_identical_allocations_are_called_different_at_the_nominal_rate():
    """2 % between allocations: at most 7 % false claims of four a side, where pooled launches claim over 15 %."""
    random = np.random.default_rng(5)
    claims = pooled = 0
    for _ in range(600):
        base, new = ([drawn(random, f"{side}{at}") for at in range(4)] for side in ("b", "n"))
        claims += judged(base, new, delta=1e-9).rows[0].verdict in CLAIMS
        launches = [[y for one in side for y in one.cells["a"].logs.values()] for side in (base, new)]
        pooled += stats.welch(*launches).p_value < 0.05
    assert claims / 600 <= 0.07
    assert pooled / 600 > 0.15


def test_interleaved_sides_find_what_is_there_and_nothing_else():
    """At 1 % launch spread and ten blocks: a slow-down of 5 % is slower in 95 of 100, one of 2 % never faster."""
    random = np.random.default_rng(6)
    words = {
        shift: [
            judged(*([one] for one in interleaved(random, shift=shift)), paired=True).rows[0].verdict
            for _ in range(300)
        ]
        for shift in (0.0, math.log(0.98), math.log(0.95))
    }
    assert words[math.log(0.95)].count("slower") >= 285
    assert "faster" not in words[math.log(0.98)]
    assert len([word for word in words[0.0] if word in CLAIMS]) <= 0.07 * 300


def test_many_cells_are_one_family():
    """Of twelve equal cells a gate claims something in about 5 of 100 comparisons, not in half of them."""
    random = np.random.default_rng(7)
    cells = tuple("abcdefghijkl")
    families = alone = 0
    for _ in range(200):
        outcome = judged(*([one] for one in interleaved(random, cells)), paired=True, delta=1e-9)
        families += any(row.verdict in CLAIMS for row in outcome.rows)
        alone += any(row.p_value < 0.05 for row in outcome.rows)
    assert families / 200 <= 0.09
    assert alone / 200 > 0.3


def test_a_difference_that_only_the_family_hides_is_told():
    """A small p-value among many large ones: inconclusive, with the reason, and no number of blocks that decide."""
    base = allocation("base", {cell: [6.0, 6.0, 6.0, 6.0] for cell in "abcdefghijklmnopqrst"})
    near = {cell: [6.01, 5.99, 6.02, 5.98] for cell in "bcdefghijklmnopqrst"}
    new = allocation("new", {"a": [5.90, 5.93, 5.90, 5.95], **near})
    row = judged([base], [new], paired=True).rows[0]
    assert row.p_value < 0.05 < row.p_adjusted
    assert (row.verdict, row.note) == ("inconclusive", "not significant among 20 cells")
    assert row.to_decide is None


def test_an_undecided_cell_says_how_many_more_would_decide_and_what_could_be_seen():
    """More blocks than there are; a wider spread needs more of them and hides larger effects."""
    base = allocation("base", {"a": [6.0] * 4})

    def spread_by(width):
        new = allocation("new", {"a": [6.02 + width * step for step in (-1.5, -0.5, 0.5, 1.5)]})
        return judged([base], [new], paired=True).rows[0]

    narrow, wide = spread_by(0.02), spread_by(0.04)
    assert narrow.verdict == wide.verdict == "inconclusive"
    assert 4 < narrow.to_decide < wide.to_decide
    assert 2 * narrow.smallest_visible == pytest.approx(wide.smallest_visible, rel=0.1)


def test_a_cell_that_fails_on_the_new_side_is_not_comparable(tmp_path):
    """The other cell is judged; the first says which side has no number, and why."""
    broken = {"change": lambda r: failed(r) if r.requested.strategy == "ddp" else r}
    outcome = compared(studies(tmp_path, "base", 3), studies(tmp_path, "new", 3, **broken))
    single, ddp = outcome.rows
    assert single.verdict == "equivalent"
    assert (ddp.verdict, ddp.note, ddp.ratio) == ("not comparable", "new: no launch finished", None)
    assert outcome.exit_code == 3


def test_a_cell_that_fails_on_both_sides_is_not_comparable(tmp_path):
    """Planned and run on both, with no number on either: it has a row with both reasons, and the gate is not green."""
    broken = {"change": lambda r: failed(r) if r.requested.strategy == "ddp" else r}
    outcome = compared(studies(tmp_path, "base", 3, **broken), studies(tmp_path, "new", 3, **broken))
    single, ddp = outcome.rows
    assert (single.verdict, ddp.verdict, outcome.exit_code) == ("equivalent", "not comparable", 3)
    assert ddp.note == "base: no launch finished; new: no launch finished"
    assert "ddp" in ddp.label
    assert (ddp.base_rate, ddp.new_rate, ddp.base_launches, ddp.new_launches) == (None, None, 0, 0)


def test_a_cell_that_a_side_skips_and_none_measures_is_no_row():
    """What the host cannot run was told when it was planned: a gate is not red for it."""
    not_here = Measured("b", "b", {}, doubt="no NCCL", skipped=True)
    not_run = Measured("b", "b", {}, doubt="not run")
    good = [6.0, 6.001, 5.999]

    def rows(ours, theirs):
        sides = (allocation(name, {"a": good, "b": b}) for name, b in (("base", ours), ("new", theirs)))
        return [row.cell for row in judged(*([one] for one in sides), paired=True).rows]

    assert rows(not_here, not_here) == rows(not_run, not_here) == ["a"]
    assert rows(not_run, not_run) == ["a", "b"]


def test_an_allocation_in_which_a_cell_failed_counts_for_the_others(tmp_path):
    """Three of four allocations have the cell: it is judged from three, and the fourth is named with its reason."""
    broken = {"change": lambda r: failed(r) if r.requested.strategy == "ddp" else r}
    new = [*studies(tmp_path, "new", 3), simulate(tmp_path / "odd", CASES, seed=7, **broken)]
    single, ddp = compared(studies(tmp_path, "base", 4), new).rows
    assert (single.ratio.n, ddp.ratio.n) == (4, 3)
    assert ddp.new_launches == 15
    assert ddp.note == f"new: {tmp_path / 'odd'} left out: no launch finished"
    assert single.note is None


def test_cells_of_one_side_only_are_named_and_judge_nothing(tmp_path):
    """What both sides have is judged; with nothing in common the two are not comparable."""
    more = [*CASES, Case(num_workers=2)]
    outcome = compared(studies(tmp_path, "base", cases=CASES), studies(tmp_path, "new", cases=more[1:]))
    assert [row.cell for row in outcome.rows] == [CASES[1].id]
    assert [len(outcome.only_base), len(outcome.only_new)] == [1, 1]
    assert "num_workers 2" in outcome.only_new[0]
    apart = compared(
        studies(tmp_path / "apart", "base", cases=CASES[:1]),
        studies(tmp_path / "apart", "new", cases=CASES[1:]),
    )
    assert (apart.rows, apart.exit_code) == ((), 3)


def test_cells_that_read_the_same_are_told_apart(tmp_path):
    """The length of a run is in no name: where that is all that differs, it stands there, and no field that is equal."""
    short, long, other = Case(steps=20), Case(steps=40), Case(num_workers=2)
    outcome = compared(
        studies(tmp_path, "base", cases=[short, other]), studies(tmp_path, "new", cases=[long])
    )
    assert outcome.only_base[0].endswith(", steps 20") and outcome.only_new[0].endswith(", steps 40")
    assert "steps" not in outcome.only_base[1]
    assert "seed" not in "".join([*outcome.only_base, *outcome.only_new])


def test_launches_that_cannot_be_read_are_counted_by_side(tmp_path):
    """A cell whose lines are all broken did not fail to run: it says so, and the number of lines is told."""
    base, [new] = studies(tmp_path, "base", 3), studies(tmp_path, "new")
    lines = new.launches_path.read_text().splitlines()
    broken = [line[:-1] if CASES[1].id in line else line for line in lines]
    new.launches_path.write_text("\n".join(broken) + "\n")
    outcome = compared(base, [new])
    assert (outcome.base_unreadable, outcome.new_unreadable) == (0, 5)
    assert outcome.rows[1].note.startswith("new: no launch that can be read")
    assert "read" not in outcome.rows[0].note


def test_marks_of_launches_are_in_the_row_of_their_cell(tmp_path):
    """By side, each once: what was said of a launch, what contaminated it, a steady state that was assumed."""

    def marked(record):
        if record.requested.strategy != "ddp":
            return record
        cut = msgspec.structs.replace(record.window.cut, state="assumed")
        window = msgspec.structs.replace(record.window, cut=cut)
        busy = ("busy host: other processes used 0.8 of 2 CPUs",)
        return msgspec.structs.replace(record, marks=("clock drift",), contaminated=busy, window=window)

    single, ddp = compared(studies(tmp_path, "base"), studies(tmp_path, "new", change=marked)).rows
    assert (single.base_marks, single.new_marks, ddp.base_marks) == ((), (), ())
    said = (
        "clock drift",
        "busy host: other processes used 0.8 of 2 CPUs (and 4 more)",
        "steady state assumed",
    )
    assert ddp.new_marks == said


def team(*hosts):
    """The nodes of a study."""
    return tuple(
        Member(node=at, hostname=f"n{at}", speed_mbit=1000, host=host) for at, host in enumerate(hosts)
    )


def test_what_only_several_nodes_have_concerns_no_other_cell(tmp_path):
    """Nodes of one box against machines, and against nodes of two kinds: refused for the cell on two nodes alone."""
    cases = [Case(), Case(strategy="ddp", ranks=2, nodes=2)]
    other = CPU_HOST | {"cpu_model": "other"}
    base = studies(tmp_path, "base", cases=cases, header={"nodes": team(CPU_HOST, CPU_HOST), "box": True})
    new = studies(tmp_path, "new", cases=cases, header={"nodes": team(CPU_HOST, other)})
    outcome = compared(base, new)
    assert [row.verdict for row in outcome.rows] == ["inconclusive", "not comparable"]
    assert {one.cells for one in outcome.refusals} == {(cases[1].id,)}
    assert [one.words for one in outcome.refusals] == [
        "nodes_on_one_machine: on against off",
        "mixed_nodes: none against cpu_model none / other",
    ]
    [alone] = studies(tmp_path / "alone", "base", cases=cases[:1])
    assert compared([alone], new).refusals == ()


def test_an_allocation_whose_own_twins_differ_takes_all_verdicts_away():
    """The same cell twice, and different: every cell is inconclusive and says which study it was."""
    base, new = interleaved(np.random.default_rng(9), shift=-0.2)
    off = allocation("new", {"a": list(new.cells["a"].logs.values())}, off="A/A pair differs: by 7 %")
    outcome = judged([base], [off], paired=True)
    assert outcome.rows[0].verdict == "inconclusive"
    assert outcome.off == outcome.rows[0].note == "new: A/A pair differs: by 7 %"
    assert outcome.exit_code == 5


def test_twins_of_a_study_are_no_cells_to_compare(tmp_path):
    """A cell that repeats another judges its own study: a pair that differs by 10 % takes the verdicts away."""
    twin = {"id": f"{CASES[0].id}-again", "case": CASES[0], "suite": "s", "twin_of": CASES[0].id}
    for side in ("base", "new"):
        store = studies(tmp_path, side)[0]
        header = store.header()
        again = msgspec.convert({**twin, "case": msgspec.to_builtins(twin["case"])}, type(header.cells[0]))
        store.create(msgspec.structs.replace(header, cells=(*header.cells, again)), resume=True)
        for record in store.records()[0]:
            if record.cell == CASES[0].id:
                rate = record.window.samples_per_s * (0.9 if side == "new" else 1.0)
                window = msgspec.structs.replace(record.window, samples_per_s=rate)
                store.append(
                    msgspec.structs.replace(record, cell=again.id, launch=f"{record.launch}-2", window=window)
                )
    outcome = compared([Store(tmp_path / "base0")], [Store(tmp_path / "new100")])
    assert len(outcome.rows) == 2
    assert "A/A pair differs" in outcome.off
    assert compared([Store(tmp_path / "base0")], [Store(tmp_path / "new100")], delta=0.3).off is None


def test_hosts_that_differ_are_refused_by_the_name_of_the_field(tmp_path):
    """Each field with both values; allowed by name, they are said and nothing is refused."""
    fields = ("cpu_model", "cpu_quota", "driver", "torch", "nccl")
    base = studies(tmp_path, "base", host=CPU_HOST | dict.fromkeys(fields, "old"), blocks=2)
    new = studies(tmp_path, "new", host=CPU_HOST | dict.fromkeys(fields, "new"), blocks=2)
    outcome = compared(base, new)
    assert [one.words for one in outcome.refusals] == [f"{field}: old against new" for field in fields]
    assert {row.verdict for row in outcome.rows} == {"not comparable"}
    assert {row.note for row in outcome.rows} == {"cpu_model: old against new"}
    assert outcome.exit_code == 3
    outcome = compared(base, new, allow=fields[:-1])
    assert [one.field for one in outcome.refusals] == ["nccl"]
    outcome = compared(base, new, allow=fields)
    assert [(one.field, one.role) for one in outcome.differences] == [(field, "allowed") for field in fields]
    assert (outcome.refusals, outcome.exit_code) == ((), 5)


def test_other_devices_are_named_with_their_number(tmp_path):
    """Eight of one kind against four of another."""
    four = GPU_HOST | {"devices": [{"name": "Simulated A"}] * 4}
    outcome = compared(
        studies(tmp_path, "base", host=GPU_HOST, blocks=2), studies(tmp_path, "new", host=four, blocks=2)
    )
    assert "devices: 8 × Simulated H against 4 × Simulated A" in [one.words for one in outcome.refusals]


def test_ranks_that_ran_otherwise_are_refused_cell_by_cell(tmp_path):
    """What was read back in the ranks of one cell differs: it is not comparable, and the other cell is judged."""
    other = {"threads": 4, "precision": "tf32", "backend": "mpi", "affinity": (0,)}

    def changed(record):
        ddp = record.requested.strategy == "ddp"
        return each_rank(record, "effective", **other) if ddp else record

    outcome = compared(
        studies(tmp_path, "base", blocks=2), studies(tmp_path, "new", blocks=2, change=changed)
    )
    assert [row.verdict for row in outcome.rows] == ["inconclusive", "not comparable"]
    assert {one.words for one in outcome.refusals} == {
        "threads: 1 against 4",
        "precision: float32 against tf32",
        "backend: gloo against mpi",
        "cpus_a_rank: 2 against 1",
    }
    assert {one.cells for one in outcome.refusals} == {(CASES[1].id,)}


@pytest.mark.parametrize(("name", "refused"), [("NCCL_ALGO", True), ("CUDA_VISIBLE_DEVICES", False)])
def test_variables_that_change_speed_are_compared(tmp_path, name, refused):
    """One that is set on one side is named; which devices a scheduler gave is no difference."""
    base = studies(tmp_path, "base", blocks=2)
    new = studies(
        tmp_path, "new", blocks=2, change=lambda r: msgspec.structs.replace(r, environment={name: "Ring"})
    )
    outcome = compared(base, new)
    assert [one.words for one in outcome.refusals] == [f"{name}: unset against Ring"] * refused
    assert compared(base, new, allow=["NCCL_ALGO"]).refusals == ()


def test_what_differs_within_a_side_is_refused_too(tmp_path):
    """Two torches on the new side: their mean is that of neither."""
    odd = simulate(tmp_path / "odd", CASES, host=CPU_HOST | {"torch": "2.10.0"}, seed=3)
    same = {"host": CPU_HOST | {"torch": "2.9.0"}}
    outcome = compared(studies(tmp_path, "base", 2, **same), [*studies(tmp_path, "new", 1, **same), odd])
    assert outcome.refusals[0].words == "torch: 2.9.0 against 2.9.0 | 2.10.0"


def test_software_is_under_test_where_two_environments_run_side_by_side(tmp_path):
    """Another torch is why there are two sides; another CPU model cannot be."""
    base = studies(tmp_path, "base", host=CPU_HOST | {"torch": "2.9.0"})
    new = studies(tmp_path, "new", host=CPU_HOST | {"torch": "2.10.0"})
    outcome = compared(base, new, paired=True)
    assert [(one.field, one.role) for one in outcome.differences] == [("torch", "under test")]
    assert outcome.refusals == ()
    odd = studies(tmp_path / "odd", "new", host=CPU_HOST | {"torch": "2.9.0", "cpu_model": "other"})
    assert compared(base, odd, paired=True).exit_code == 3


def test_another_commit_is_said_and_not_refused(tmp_path):
    """The code is what most comparisons are about."""
    base, new = (studies(tmp_path, side, header={"git": side}) for side in ("base", "new"))
    outcome = compared(base, new)
    assert [(one.words, one.role) for one in outcome.differences] == [
        ("code: base against new", "under test")
    ]


def test_a_field_to_allow_that_does_not_exist_is_answered_with_the_nearest(tmp_path):
    """A typo lets nothing through."""
    with pytest.raises(UsageError, match=r"--allow: unknown name 'tourch'.*did you mean 'torch'"):
        compared(studies(tmp_path, "base"), studies(tmp_path, "new"), allow=["tourch"])


def test_a_study_does_not_stand_on_both_sides(tmp_path):
    """However its path is written."""
    [store] = studies(tmp_path, "base")
    again = type(store)(tmp_path / ".." / tmp_path.name / store.name)
    with pytest.raises(UsageError, match="stands there twice"):
        compared([store], [again])


def test_memory_stands_beside_the_rates(tmp_path):
    """The fullest rank's peak of the allocator, where there is one; a change is seen without any verdict."""

    def fuller(record):
        return each_rank(record, "memory", peak_allocated_bytes=3 * 2**30)

    base, new = (
        studies(tmp_path, "base", host=GPU_HOST),
        studies(tmp_path, "new", host=GPU_HOST, change=fuller),
    )
    row = compared(base, new).rows[0]
    known = max(
        rank.memory.peak_allocated_bytes
        for r in base[0].records()[0]
        if r.cell == row.cell
        for rank in r.ranks
    )
    assert (row.base_memory_bytes, row.new_memory_bytes) == (known, 3 * 2**30)
    assert row.memory_source == "peak allocated"


def row_of(word, ratio=1.0):
    interval = Interval(value=ratio, low=ratio, high=ratio, n=3)
    return Row(cell="c", label="c", verdict=word, ratio=interval, base_rate=1.0, new_rate=ratio, base_launches=3,
        new_launches=3)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["equivalent", "faster"], 0),
        (["equivalent", "inconclusive"], 5),
        (["inconclusive", "not comparable"], 3),
        (["inconclusive", "not comparable", "slower"], 1),
        ([], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_cell(words, code):
    """Slower beats not comparable beats undecided beats the rest."""
    assert exit_code([row_of(word) for word in words]) == code


def test_a_small_change_for_the_worse_is_undecided():
    """It is real and may be larger than the margin; one for the better is better."""
    assert exit_code([row_of("small change", 0.97)]) == 5
    assert exit_code([row_of("small change", 1.03)]) == 0


def test_a_copy_is_no_allocation_of_its_own() -> None:
    """The same launches in another folder would make three allocations of one: refused by name, on either side."""
    random = np.random.default_rng(3)
    kept, other = drawn(random, "kept"), drawn(random, "other")
    copy = dataclasses.replace(kept, name="copy")
    for base, new in (([kept, copy], [other]), ([other], [kept, copy])):
        with pytest.raises(UsageError, match=r"^copy: holds launches of kept, to the last digit"):
            decide(base, new, paired=False, delta=0.02, gate=True)
