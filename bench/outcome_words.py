"""An Outcome in words and tables: the same for console, Markdown and page."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bench import stats, wording
from bench.answers import Verdict
from bench.differences import Difference
from bench.measures import MISSING, format_change, number, size
from bench.outcome import Outcome, Row
from bench.plugins import clip

ORDER: tuple[Verdict, ...] = (
    "slower",
    "not comparable",
    "small change",
    "faster",
    "inconclusive",
    "equivalent",
)
MOST = 10  # names in a line, and notes
LEFT = ("cell", "verdict", "marks")  # headings of columns that hold text

Column = tuple[str, Callable[[Row], str]]


def headline(outcome: Outcome) -> str:
    """`slower: 1 of 3 cells; equivalent: 2`, or why there is nothing to judge."""
    if not outcome.rows:
        return "not comparable: no cell was measured on both sides"
    counted = Counter(row.verdict for row in outcome.rows)
    first, *rest = [(word, counted[word]) for word in ORDER if counted[word]]
    of_all = f"{first[0]}: {first[1]} of {wording.plural(len(outcome.rows), 'cell')}"
    return "; ".join([of_all, *(f"{word}: {count}" for word, count in rest)])


def method(outcome: Outcome) -> str:
    """How it was judged, in one line."""
    if outcome.method == "blocks":
        how = "both sides in one allocation, paired by block"
    else:
        ours, theirs = len(outcome.base), len(outcome.new)
        how = f"{wording.plural(ours, 'allocation')} against {theirs}"
        how += ", Welch's t of their means" if min(ours, theirs) >= stats.DECIDABLE else ""
    judged = sum(row.p_adjusted is not None for row in outcome.rows)
    corrected = f", {outcome.family} over {judged} cells" if judged > 1 else ""
    return f"{how}; margin {outcome.delta * 100:.3g} %{corrected}"


def remarks(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """What has to be said besides the cells: a word, and a sentence."""
    yield "base", _side(outcome.base, outcome.base_environment)
    yield "new", _side(outcome.new, outcome.new_environment)
    unreadable = {"base": outcome.base_unreadable, "new": outcome.new_unreadable}
    for side, count in unreadable.items():
        if count:
            yield "unreadable", f"{side}: {wording.plural(count, 'line')} of its launches, in no number here"
    for one in outcome.refusals:
        yield "not comparable", f"{_told(outcome, one)} (if that is what is under test: --allow {one.field})"
    for one in outcome.differences:
        yield one.role, _told(outcome, one)
    for word, names in (("only in base", outcome.only_base), ("only in new", outcome.only_new)):
        if names:
            yield word, _names(names, "; ")
    if outcome.off:
        yield "no verdict", outcome.off
    if outcome.note:
        yield "not judged", outcome.note


def _side(names: Sequence[str], environment: str | None) -> str:
    """`results/ab/base: /env/bin/python in /checkout (torch 2.9.1, git 3f2a91c)`."""
    return _names(names, ", ") + (f": {clip(environment, 400)}" if environment else "")


def _names(names: Sequence[str], between: str) -> str:
    more = f"{between}and {len(names) - MOST} more" if len(names) > MOST else ""
    return between.join(clip(name, 160) for name in names[:MOST]) + more


def notes(outcome: Outcome, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """What has to be said beside some cells: how many, or which one, and the note. `remarks` has the refusals."""
    said = {one.words for one in outcome.refusals}
    by_note: dict[str, list[Row]] = {}
    for row in rows:
        if row.note and row.note not in said:
            by_note.setdefault(row.note, []).append(row)
    for note, concerned in by_note.items():
        one = clip(concerned[0].label, 160)
        who = (
            one
            if len(concerned) == 1
            else "all cells"
            if len(concerned) == len(rows)
            else f"{one} and {len(concerned) - 1} more"
        )
        yield who, clip(note, 400)


def split(outcome: Outcome) -> tuple[list[Row], list[Row]]:
    """The cells that changed or cannot be compared, worst first, and the rest in the order of the plan."""
    words = {row.verdict for row in outcome.rows}
    top = {*stats.CLAIMS, *(["not comparable"] if len(words) > 1 else [])}
    changed = [row for row in outcome.rows if row.verdict in top]
    changed.sort(key=lambda row: (ORDER.index(row.verdict), row.ratio.value if row.ratio else 0.0))
    return changed, [row for row in outcome.rows if row.verdict not in top]


def columns(outcome: Outcome, names: dict[str, str]) -> list[Column]:
    """Headings and what stands below them; columns that would be empty are left out. `names`: by cell."""
    rows = outcome.rows
    decide = "blocks that decide" if outcome.method == "blocks" else "allocations a side that decide"
    found: list[Column] = [
        ("cell", lambda row: names[row.cell]),
        ("verdict", lambda row: row.verdict),
        ("change", lambda row: format_change(row.ratio.value if row.ratio else None)),
        ("95 % interval", lambda row: wording.change_bounds(row.ratio)),
    ]
    if any(row.over_launches and row.over_launches.low is not None for row in rows):
        found.append(("from launches alone", lambda row: wording.change_bounds(row.over_launches)))
    found += [
        (f"base ({outcome.unit})", lambda row: wording.number(row.base_rate)),
        (f"new ({outcome.unit})", lambda row: wording.number(row.new_rate)),
        ("launches", lambda row: f"{row.base_launches} / {row.new_launches}"),
    ]
    if any(row.smallest_visible is not None for row in rows):
        found.append(("smallest visible", _visible))
    if any(row.to_decide for row in rows):
        found.append((decide, lambda row: str(row.to_decide or "–")))
    if any(row.memory_source for row in rows):
        found.append(("memory", memory))
    if any(row.base_marks or row.new_marks for row in rows):
        found.append(("marks", lambda row: clip("; ".join(_marks(row, _word)), 160)))
    return found


def marks(row: Row) -> str:
    """What has to be said beside the numbers, in full: `steady state assumed; new: busy host: ...`."""
    return "; ".join(_marks(row, str))


def _word(mark: str) -> str:
    """What a mark is called: `busy host`, of `busy host: other processes used 0.8 of 2 CPUs`."""
    return mark.partition(":")[0]


def _marks(row: Row, show: Callable[[str], str]) -> Iterator[str]:
    """Those of both sides, then those of one."""
    ours, theirs = (dict.fromkeys(map(show, side)) for side in (row.base_marks, row.new_marks))
    yield from (mark for mark in ours if mark in theirs)
    yield from (f"base: {mark}" for mark in ours if mark not in theirs)
    yield from (f"new: {mark}" for mark in theirs if mark not in ours)


def memory(row: Row) -> str:
    """`412 MiB`, with the change where there is one worth the name."""
    ours, theirs = row.base_memory_bytes, row.new_memory_bytes
    if ours is None or theirs is None:
        return MISSING
    change = f" ({format_change(theirs / ours)})" if ours and abs(theirs / ours - 1) >= 0.0005 else ""
    return f"{size(theirs)}{change}"


def short_names(rows: Sequence[Row]) -> tuple[dict[str, str], str]:
    """A name for each cell without what all of them have in common, and that."""
    short, common = wording.without_common([row.label for row in rows])
    counted = Counter(short)
    names = [name if counted[name] == 1 else row.cell for name, row in zip(short, rows, strict=True)]
    return {row.cell: clip(name, 120) for row, name in zip(rows, names, strict=True)}, clip(common, 300)


def _visible(row: Row) -> str:
    return MISSING if row.smallest_visible is None else f"±{number(row.smallest_visible * 100)} %"


def _told(outcome: Outcome, one: Difference) -> str:
    count = len(one.cells)
    return one.words + (
        f" (in {count} of {len(outcome.rows)} cells)" if 0 < count < len(outcome.rows) else ""
    )
