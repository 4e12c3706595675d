"""The report's word on whether all ways of training compute the same: a line a way, what differs and why."""

from collections.abc import Iterator

from bench.answers import Analysis
from bench.plugins import Row
from bench.tables import Column, Entry, Spec, Table, amount, build, number_column, word
from bench.verify_records import CHECKS, Check, Way
from bench.verify_words import summed_up

SIGNS = {"pass": "✓", "known": "known", "fail": "differs", "cannot tell": "?", "not applicable": "–"}
TONES = {
    "fail": "slower",
    "known": "small-change",
    "cannot tell": "inconclusive",
    "not applicable": "missing",
}
NAME = "The same computation"


def fact(analysis: Analysis) -> tuple[str, str]:
    """Its name, and what was found, in a sentence or two."""
    said = [text for one in analysis.verified for text in summed_up(one)]
    if said:
        return NAME, " ".join(f"{text[0].upper()}{text[1:]}." for text in said)
    if all(cell.case.devices == 1 for cell in analysis.cells):
        return NAME, "Every cell trains on one device: there is no other way of training to check it against."
    return (
        NAME,
        "Not checked: scalemark verify checks it, and so does scalemark run without --quick and --no-verify.",
    )


def tables(analysis: Analysis) -> list[Table]:
    """A line a way of training, a column a check; none where nothing was checked."""
    ways = [way for one in analysis.verified for way in one.ways]
    spec: Spec[Way] = [
        (Column("way of training"), lambda way: word(way.name, most=90)),
        *((Column(name), _reader(name)) for name in CHECKS),
        (number_column("largest difference", "of the largest value, over all checks that passed"), _largest),
    ]
    note = "In float64, a few steps, against one process on the same samples. known: it should differ, and verify.csv says why."
    return [build("Ways of training against one process", ways, spec, "verify.csv", note)] if ways else []


def files(analysis: Analysis) -> dict[str, list[Row]]:
    """verify.csv has a row a check."""
    return {"verify.csv": [row for one in analysis.verified for way in one.ways for row in _rows(way)]}


def _reader(name: str):  # type: ignore[no-untyped-def]
    def read(way: Way) -> Entry:
        check = next((one for one in way.checks if one.name == name), None)
        if check is None:
            return Entry("?", tone=TONES["cannot tell"], hint=(way.reason or "")[:400])
        return Entry(SIGNS[check.outcome], tone=TONES.get(check.outcome, ""), hint=check.detail[:400])

    return read


def _largest(way: Way) -> Entry:
    found = [check.relative for check in way.checks if check.outcome == "pass" and check.relative is not None]
    return amount(max(found), f"{max(found):.0e}" if max(found) else "0") if found else amount(None)


def _rows(way: Way) -> Iterator[Row]:
    checks = way.checks or (Check(name="all", outcome="cannot tell", detail=way.reason or ""),)
    for check in checks:
        yield {
            "way": way.name,
            "check": check.name,
            "outcome": check.outcome,
            "tensor": check.tensor,
            "step": check.step,
            "largest_difference": check.largest,
            "relative_difference": check.relative,
            "tolerance": check.tolerance,
            "detail": check.detail,
        }
