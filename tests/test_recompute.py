"""Every verdict, interval and exclusion again from launches.jsonl alone, by a script that shares nothing with bench."""

import json
import math
from collections import defaultdict
from pathlib import Path

import msgspec
import numpy as np
import pytest
import scipy.stats

from bench.analysis import analyse
from bench.case import Case
from bench.records import LaunchRecord
from bench.store import Store
from tests.simulate import CPU_HOST, each_rank, failed, simulate

EXAMPLE = Path(__file__).parents[1] / "results" / "example"
MARGIN = math.log(1.02)


def cause(line: dict, replaced: set[str]) -> str | None:
    """Why a launch has no vote, in the words of the ledger; None where it has one."""
    ranks = line["ranks"]
    size = max((rank["effective"]["world_size"] for rank in ranks if rank["effective"]), default=0)
    if line["status"] != "ok":
        return line["reason"] or line["status"]
    if line["mismatches"]:
        return "not as requested"
    if {rank["rank"] for rank in ranks} < set(range(size)):
        return "rank missing"
    if line["launch"] in replaced:
        return "contaminated"
    return "unsteady" if line["window"]["cut"]["state"] == "unsteady" else None


def recompute(path: Path) -> tuple[dict, dict, dict]:
    """Launch -> cause of those left out; cell -> block -> ln(samples/s); cell -> what the ranks said they ran."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    again = [line for line in lines if line.get("retry_of") and line["status"] == "ok"]
    replaced = {line["launch" if line.get("disqualified") else "retry_of"] for line in again}
    why = {line["launch"]: cause(line, replaced) for line in lines}
    logs: dict = defaultdict(dict)
    facts: dict = defaultdict(lambda: defaultdict(set))
    for line in lines:
        told = facts[line["cell"]]
        told["cause"].add(why[line["launch"]])
        if why[line["launch"]] is not None:
            continue
        logs[line["cell"]][line["block"]] = math.log(line["window"]["samples"] / line["window"]["wall_s"])
        told["fingerprint"].add(line["fingerprint"])
        told["implementation"].add(line["implementation"])
        for rank in line["ranks"]:
            told["threads"].add(rank["effective"]["threads"])
            told["pinned"].add(rank["effective"]["pinned"])
    return {launch: word for launch, word in why.items() if word}, logs, facts


def interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """Student's t, of logs."""
    low, high = scipy.stats.t.interval(level, len(values) - 1, np.mean(values), scipy.stats.sem(values))
    return float(low), float(high)


def comparable(factor: str, a: dict, b: dict) -> bool:
    """Do the two sides differ in the factor only, as far as the ranks said?"""
    same = ["fingerprint", "implementation"] + ["threads"] * (factor != "threads")
    measured = bool(a["fingerprint"]) and bool(b["fingerprint"])
    return (
        measured and all(a[one] == b[one] for one in same) and (factor != "pin_memory" or True in b["pinned"])
    )


def word(d: list[float], adjusted: float) -> str:
    """The verdict's word from the differences of logs, one a block."""
    (low, high), (inner_low, inner_high) = interval(d), interval(d, 0.9)
    if inner_low > -MARGIN and inner_high < MARGIN:
        return "equivalent"
    if adjusted > 0.05 or low <= 0 <= high:
        return "inconclusive"
    return "faster" if low > MARGIN else "slower" if high < -MARGIN else "small change"


def holm(p: list[float]) -> list[float]:
    """Adjusted p-values, from the definition: the largest of what stands before, each times those not yet rejected."""
    return [min(1.0, max(sum(o >= other for o in p) * other for other in p if other <= one)) for one in p]


def check(store: Store) -> set[str]:
    """Compare what the suite says with what the script says; returns the words that were compared."""
    analysis = analyse([store])
    out, logs, facts = recompute(store.launches_path)
    assert {one.launch: one.cause for one in analysis.exclusions} == out
    for cell in analysis.cells:
        y = list(logs.get(cell.cell, {}).values())
        if len(y) > 1:
            assert cell.samples_per_s is not None
            assert (cell.samples_per_s.low, cell.samples_per_s.high) == pytest.approx(np.exp(interval(y)))

    def differences(a: str, b: str) -> list[float]:
        return [logs[b][block] - logs[a][block] for block in sorted(logs[a].keys() & logs[b].keys())]

    twins = [(one, differences(one.cell, one.twin)) for one in analysis.twins]
    held = holm([scipy.stats.ttest_1samp(d, 0).pvalue for _, d in twins])
    for (one, d), adjusted in zip(twins, held, strict=True):
        assert one.verdict == word(d, adjusted)
    off = any(one.verdict in ("faster", "slower", "small change") for one, _ in twins)
    assert bool(analysis.off) == off

    family = [
        (one, differences(one.a_cell, one.b_cell))
        for one in analysis.comparisons
        if comparable(one.factor, facts[one.a_cell], facts[one.b_cell])
    ]
    judged = [(one, d) for one, d in family if len(d) > 2]
    adjusted_p = (
        scipy.stats.false_discovery_control([scipy.stats.ttest_1samp(d, 0).pvalue for _, d in judged])
        if judged
        else []
    )
    expected = {id(one): "inconclusive" for one, _ in family}
    for (one, d), adjusted in zip(judged, adjusted_p, strict=True):
        assert (one.ratio.low, one.ratio.high) == pytest.approx(np.exp(interval(d)))
        assert (one.p_adjusted, one.family) == (pytest.approx(adjusted), len(judged))
        expected[id(one)] = "inconclusive" if off else word(d, adjusted)
    said = {id(one): one.verdict for one in analysis.comparisons}
    assert said == {id(one): expected.get(id(one), "not comparable") for one in analysis.comparisons}
    return set(said.values()) | {one.verdict for one in analysis.twins}


def test_the_examples_verdicts_follow_from_its_launches() -> None:
    """The example that ships with the suite: every interval, word and exclusion comes out again."""
    assert {"inconclusive", "not comparable"} <= check(Store(EXAMPLE))  # more words: what its host allowed


CELLS = [
    Case(data="photos", num_workers=workers, sync_bn=sync_bn, strategy="ddp", ranks=2)
    for workers in (0, 1, 2, 4)
    for sync_bn in (False, True)
]
SPEED = {0: 0.1, 1: 0.1 / 1.05, 2: 0.1 / 1.001, 4: 0.1 / 1.03}


def spoilt(record: LaunchRecord) -> LaunchRecord:
    """Some launches fail, are unsteady, ran something else, or lost a rank; one cell has two threads a rank."""
    number, case = record.block, record.requested
    assert record.window is not None
    if case.sync_bn and case.num_workers == 4:
        record = each_rank(record, "effective", threads=2)
    if case.num_workers == 1 and number == 3:
        return failed(record)
    if case.num_workers == 2 and number == 4:
        cut = msgspec.structs.replace(record.window.cut, state="unsteady")
        return msgspec.structs.replace(record, window=msgspec.structs.replace(record.window, cut=cut))
    if case.num_workers == 4 and number == 5:
        return msgspec.structs.replace(record, mismatches=("threads: 1 asked for, 2 in effect",))
    if case.num_workers == 0 and number == 6:
        return msgspec.structs.replace(record, ranks=record.ranks[:1])
    return record


@pytest.mark.parametrize("longer", [1.0, 1.04])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_simulated_studys_verdicts_follow_from_its_launches(
    tmp_path: Path, seed: int, longer: float
) -> None:
    """Failures, repeats of contaminated launches, A/A pairs that hold or differ: the script finds the same."""
    store = simulate(
        tmp_path / "s", CELLS, blocks=9, spread=0.006, seed=seed, change=spoilt, host=CPU_HOST,
        step_s=lambda case: SPEED[case.num_workers] * (1.2 if case.sync_bn else 1.0), twins={CELLS[0].id: longer},
    )  # fmt: skip
    for at, record in enumerate(
        store.records()[0][:6]
    ):  # for a declared cause; run again, the last two no better
        if record.status == "ok" and not record.mismatches:
            changed = {"launch": f"{record.launch}-again", "retry_of": record.launch, "disqualified": at > 3}
            store.append(msgspec.structs.replace(record, **changed))
    words = check(store)
    assert (("not comparable" in words), ("faster" in words)) == (True, longer == 1.0)
