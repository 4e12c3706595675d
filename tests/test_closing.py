"""Why a cell had no further launch: the rule, and that a reader of the records comes to the same as the study."""

import msgspec
import pytest

from bench.case import Case
from bench.closing import Limits, why_closed
from bench.evidence import gather
from bench.plan import Plan
from bench.records import Cell
from bench.stopping import Rules, Stopping
from tests.simulate import failed, simulate

USUAL = Limits(min_launches=5, max_launches=10, target=0.02)
CASE = Case(steps=20)
OK, BAD = ("ok", None), ("failed", "signal")


@pytest.mark.parametrize(
    ("logs", "outcomes", "why"),
    [
        ([1.0] * 4, [OK] * 4, None),
        ([1.0, 1.01, 1.0, 0.99, 1.0], [OK] * 5, "converged"),
        ([1.0, 1.2, 0.9, 1.1, 1.0], [OK] * 5, None),
        ([1.0, 1.2] * 5, [OK] * 10, "cap"),
        ([1.0, 1.0], [OK, OK, BAD], None),
        ([1.0, 1.0], [OK, OK, BAD, BAD], "failing"),
        ([1.0, 1.0], [OK, BAD, OK, BAD], None),
        ([1.0, 1.2] * 3, [OK, OK, BAD] * 3 + [OK], "cap"),
        ([], [("failed", "oom_device")], "failing"),
    ],
)
def test_a_cell_closes_by_its_interval_its_launches_or_its_failures(logs, outcomes, why):
    """Five within ±2 %, ten tries whatever came of them, two failures in a row, or one that cannot get better."""
    assert why_closed(logs, outcomes, USUAL) == why


def stopped(tmp_path, blocks=5, spread=0.001, change=None, **header):
    """What a reader says of the one cell of a simulated study."""
    store = simulate(tmp_path / "s", [CASE], blocks=blocks, spread=spread, change=change, header=header)
    return gather([store]).cells[CASE.id].stopped


def test_a_reader_sees_why_cells_stopped(tmp_path):
    """From launches.jsonl and the limits in study.json alone."""
    assert stopped(tmp_path / "a") == "converged"
    assert stopped(tmp_path / "b", blocks=10, spread=0.2) == "cap"
    assert stopped(tmp_path / "c", blocks=3, budget_s=60.0) == "budget"
    assert stopped(tmp_path / "d", blocks=3) == "interrupted"
    assert stopped(tmp_path / "e", blocks=0) is None
    assert stopped(tmp_path / "f", blocks=2, change=failed) == "failing"


def test_a_launch_that_was_replaced_does_not_bring_a_cell_to_its_cap(tmp_path):
    """Ten records, one of which stands in the place of another, are nine launches."""

    def change(record):
        first = {"contaminated": ("busy host: ...",), "disqualified": True}
        again = {"block": 0, "retry_of": f"b00-000-{CASE.id}"}
        return msgspec.structs.replace(record, **({0: first, 9: again}.get(record.block, {})))

    assert stopped(tmp_path, blocks=10, spread=0.2, change=change, budget_s=60.0) == "budget"


@pytest.mark.parametrize(
    ("runs", "statuses", "why"),
    [
        ((0, 0), "bad bad", "failing"),
        ((0, 0, 1), "bad bad bad", None),  # one failure of the run that counts afresh
        ((0, 0, 1), "bad bad interrupted", None),
        ((0, 0, 1, 1), "ok bad bad bad", "failing"),
        ((0, 1, 1), "bad bad ok", None),
    ],
)
def test_reader_and_study_agree_on_what_failed_before_a_resumed_run(tmp_path, runs, statuses, why):
    """What failed in an earlier run was tried again: it closes no cell, for the study that goes on and for who reads it."""
    how = {"ok": {}, "interrupted": {"status": "interrupted", "reason": "interrupted", "window": None}}
    told = [
        how.get(word, {"status": "failed", "reason": "signal", "window": None}) for word in statuses.split()
    ]

    def change(record):
        return msgspec.structs.replace(record, run=runs[record.block], **told[record.block])

    store = simulate(tmp_path / "s", [CASE], blocks=len(runs), change=change)
    records = store.records()[0]
    cell = Cell(id=CASE.id, case=CASE, suite="s")
    plan = Plan(suites=("s",), cells=(cell,), factors={}, estimates={})
    stopping = Stopping(plan, Rules(**msgspec.structs.asdict(USUAL)))
    stopping.resume([record for record in records if record.run < runs[-1]])
    for record in records:
        if record.run == runs[-1]:
            stopping.take(record)
    assert stopping.why_closed(CASE.id) == why
    assert gather([store]).cells[CASE.id].stopped == (why or "interrupted")


def test_the_last_run_may_not_have_come_to_a_cell(tmp_path):
    """A cell that failed twice, in a study that was gone on with and cut off before it came to this cell: not failing."""
    other = msgspec.structs.replace(CASE, batch=32)

    def change(record):
        if record.requested == CASE:
            return (
                msgspec.structs.replace(record, status="failed", reason="signal", window=None)
                if record.block < 2
                else None
            )
        return msgspec.structs.replace(record, run=int(record.block > 1))

    store = simulate(tmp_path / "s", [CASE, other], blocks=3, change=change)
    assert gather([store]).cells[CASE.id].stopped == "interrupted"
