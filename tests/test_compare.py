"""`scalemark compare`: what it takes, what it prints, and what it writes."""

import dataclasses
import html
import json
import re

import msgspec
import pytest
from typer.testing import CliRunner

from bench import ab_file, outcome_markdown, outcome_page
from bench.ab_side import Side
from bench.allocations import decide
from bench.case import Case
from bench.cli import app
from bench.compared import Measured
from bench.errors import UsageError
from bench.stopping import Rules
from bench.verbs.compare import as_text, parse_margin
from tests.browser import launched
from tests.sides import allocation
from tests.simulate import CPU_HOST, default_phases, simulate

CASES = [Case(), Case(strategy="ddp", ranks=2)]
HOSTILE = (
    "a|b`c`<script>alert(1)</script> [x](http://evil.example) @somebody #1 *b* ~~s~~ \n## h\x1b[31m"
    + "n" * 5000
)


def run(*words):
    """The exit code and what was printed; an error is raised."""
    done = CliRunner().invoke(app, ["compare", *map(str, words)])
    if isinstance(done.exception, UsageError):
        raise done.exception
    return done.exit_code, done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Three studies a side, the new ones 8 % slower with two ranks, and one of another torch."""
    folder = tmp_path_factory.mktemp("results")

    def slow(case):
        factor = 1.08 if case.strategy == "ddp" else 1.0
        return {
            name: None if value is None else value * factor for name, value in default_phases(case).items()
        }

    for at in range(3):
        simulate(folder / f"base{at}", CASES, seed=at, spread=0.004)
        simulate(folder / f"new{at}", CASES, seed=50 + at, spread=0.004, phases=slow)
    simulate(folder / "other", CASES, seed=99, host=CPU_HOST | {"torch": "2.10.0"}, blocks=2)
    return folder


def sides(folder):
    return [",".join(str(folder / f"{side}{at}") for at in range(3)) for side in ("base", "new")]


def test_commas_name_several_allocations_and_the_changes_stand_on_top(results):
    """Three a side: the slower cell first, the equal one below, and exit code 1."""
    code, out = run(*sides(results))
    assert code == 1
    assert out.startswith("slower: 1 of 2 cells; equivalent: 1\n3 allocations against 3, Welch's t")
    changed, rest = out.split("the rest:")
    assert "ddp on 2 ranks" in changed and "single on 1 device" not in changed
    assert "single on 1 device" in rest


def test_json_holds_everything_that_was_judged(results):
    """One object with a row a cell, the verdict, the interval and the exit code."""
    code, out = run(*sides(results), "--json", "--margin", "3 %")
    found = json.loads(out)
    assert (code, found["exit_code"], found["delta"], found["family"]) == (1, 1, 0.03, "Holm")
    row = next(row for row in found["rows"] if row["verdict"] == "slower")
    assert row["ratio"]["low"] < row["ratio"]["value"] < row["ratio"]["high"] < 1
    assert row["cell"] == CASES[1].id


def test_one_study_a_side_is_undecided_and_another_torch_not_comparable(results):
    """Exit codes 5 and 3, and the option that would let the difference through."""
    code, out = run(results / "base0", results / "new0")
    assert code == 5
    assert "from launches alone" in out and "not judged: one allocation on a side" in out
    code, out = run(results / "base0", results / "other")
    assert code == 3
    assert "torch: none against 2.10.0 (if that is what is under test: --allow torch)" in out
    code, out = run(results / "base0", results / "other", "--allow", "torch")
    assert code == 5
    assert "allowed: torch: none against 2.10.0" in out


@pytest.fixture
def both(tmp_path):
    """A folder as scalemark ab leaves it: two checkouts, one Python."""
    simulate(tmp_path / "both/base", CASES, seed=1, spread=0.004)
    simulate(tmp_path / "both/new", CASES, seed=1, spread=0.004)
    side = Side(
        python="/env/bin/python", folder="/old", python_version="3.11.4", torch="2.9.0", git="3f2a91c"
    )
    newer = msgspec.structs.replace(side, folder="/young", torch="2.10.0", git="77aa01b with changes")
    header = ab_file.AbHeader(version="0.1.0", suites=("s",), command=("scalemark",), created_at="", margin=0.04,
        rules=Rules(budget_s=None, seed=0), base=side, new=newer)  # fmt: skip
    ab_file.write(tmp_path / "both", header)
    return tmp_path / "both"


def everywhere(*words, folder):
    """What a comparison says on the console, as a page, as Markdown and as JSON; characters as a reader sees them."""
    page, comment = folder / "page.html", folder / "comment.md"
    console = run(*words, "-o", page, "--markdown", comment)[1]
    read = [html.unescape(text).replace("\u200b", "") for text in (page.read_text(), comment.read_text())]
    return [console, *read, run(*words, "--json")[1]]


def test_a_folder_with_both_sides_is_compared_with_itself_by_block(results, both):
    """One argument: blocks are paired, and the margin is the one that was asked for then."""
    code, out = run(both)
    assert code == 0
    assert "paired by block; margin 4 %" in out
    assert run(both, "--margin", "1%")[1].count("margin 1 %") == 1
    with pytest.raises(UsageError, match="holds both sides"):
        run(both, results / "new0")


def test_both_sides_are_named_with_their_environment(both, tmp_path):
    """Which Python, in which folder, which torch and which commit each side was, wherever the verdicts are shown."""
    for text in everywhere(both, folder=tmp_path):
        assert "/env/bin/python in /old (torch 2.9.0, git 3f2a91c)" in text
        assert "/env/bin/python in /young (torch 2.10.0, git 77aa01b with changes)" in text


def test_what_was_allowed_is_said_wherever_the_verdicts_are(results, tmp_path):
    """Each field with both values and the word, and in JSON with its role."""
    console, page, comment, json_ = everywhere(
        results / "base0", results / "other", "--allow", "torch", folder=tmp_path
    )
    assert "allowed: torch: none against 2.10.0" in console
    assert "<strong>allowed</strong>: torch: none against 2.10.0" in page
    assert "**allowed**: torch: none against 2.10.0" in comment
    assert [(one["field"], one["role"]) for one in json.loads(json_)["differences"]] == [("torch", "allowed")]


def test_marks_and_broken_lines_stand_beside_the_numbers(results, tmp_path):
    """By name in a column, in full where a page has room; lines that are no records are counted by side."""

    def busy(record):
        marked = ("busy host: other processes used 0.8 of 2 CPUs",) if record.block == 1 else ()
        return msgspec.structs.replace(record, contaminated=marked, marks=("oversubscribed: @many on #1",))

    store = simulate(tmp_path / "busy", CASES, seed=8, change=busy)
    with store.launches_path.open("a") as file:
        file.write("{cut\n{again\n")
    console, page, comment, json_ = everywhere(results / "base0", tmp_path / "busy", folder=tmp_path)
    for text in (console, page, comment):
        assert "new: oversubscribed; new: busy host" in text
        assert "new: 2 lines of its launches" in text
    assert (
        'title="new: oversubscribed: @many on #1; new: busy host: other processes used 0.8 of 2 CPUs"' in page
    )
    found = json.loads(json_)
    assert (found["base_unreadable"], found["new_unreadable"]) == (0, 2)
    assert found["rows"][0]["new_marks"][1] == "busy host: other processes used 0.8 of 2 CPUs"
    assert "marks" not in run(results / "base0", results / "new0")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing", "base0"], "no such study"),
        (["base0"], "against what?"),
        (["base0,base0", "new0"], "stands there twice"),
        (["base0", ","], "a side is empty"),
        (["base0", "new0", "--margin", "2"], "write a share such as 2%"),
        (["base0", "new0", "--margin", "0%"], "above 0"),
        (["base0", "new0", "-o", "page.txt"], "ends in .html"),
        (["base0", "new0", "--json", "--markdown", "-"], "both print"),
        (["base0", "notes.txt"], "neither a study nor a file ending in .json"),
        (["base0", "run.json"], "measure different things"),
    ],
)
def test_bad_input_is_told_in_one_line(results, monkeypatch, words, says):
    """What, where, what is allowed."""
    monkeypatch.chdir(results)
    (results / "notes.txt").write_text("x")
    (results / "run.json").write_text('{"benchmarks": [{"fullname": "t", "stats": {"mean": 1.0}}]}')
    given = [
        f"./{word}" if word in ("base0", "new0") else word.replace("base0,base0", "./base0,./base0")
        for word in words
    ]
    with pytest.raises(UsageError) as error:
        run(*given)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), (" 0.5 % ", 0.005), ("50%", 0.5)])
def test_a_margin_is_a_share(text, value):
    """Per cent, with or without a space."""
    assert parse_margin(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "2", "-1%", "nan%", "51%", "1e9%", "٢%"])
def test_what_is_no_margin_is_refused(text):
    """Nothing is guessed."""
    with pytest.raises(UsageError, match="write a share"):
        parse_margin(text)


def hostile():
    """A slower and an equal cell, with names, notes and facts that want to be markup."""
    logs = {0: 6.0, 1: 6.01, 2: 5.99, 3: 6.0}

    def side(name, shift, torch):
        cells = {
            "a": Measured("a", HOSTILE, {at: y + shift for at, y in logs.items()}, notes=(HOSTILE,)),
            "b": Measured("b", f"{HOSTILE[::-1]}", logs),
        }
        return allocation(name, cells, {"torch": torch})

    sides = [side(f"{HOSTILE}-base", 0.0, HOSTILE)], [side("new", -0.2, "2.10")]
    return decide(*sides, paired=True, delta=0.02, gate=True)


def test_markdown_folds_what_did_not_change(results, tmp_path):
    """The changes as a table on top, the other cells in a folded one, written to a file or printed alone."""
    path = tmp_path / "made/comment.md"
    code, out = run(*sides(results), "--markdown", path)
    text = path.read_text()
    assert code == 1
    assert str(path) in out
    top, folded = text.split("<details><summary>1 other cell</summary>")
    assert "| <code>ddp on 2 ranks</code> | slower |" in top and "single" not in top
    assert "| <code>single on 1 device</code> | equivalent |" in folded
    assert folded.rstrip().endswith("</details>")
    assert run(*sides(results), "--markdown", "-")[1].rstrip() == text.rstrip()


def test_names_are_no_markup_in_markdown():
    """Nothing of a name opens a tag, a link, a cell of the table, code, a mention or another line."""
    text = outcome_markdown.render(hostile())
    bare = re.sub(r"</?(details|summary|code)>", "", text)
    assert not set("`<>@*~") & set(
        bare.replace("**base**", "").replace("**new**", "").replace("**under test**", "")
    )
    assert "http:" not in text and "\x1b" not in text
    assert "#" not in bare.replace("### scalemark", "").replace("&#", "")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in tables}) == 1
    assert len(tables) == 6
    assert max(map(len, text.splitlines())) < 8000


@pytest.mark.parametrize(
    "name", ["www.evil.example", "WWW.evil", "a@evil.example", "@team/all", "#12", "o/r#12", "GH-12"]
)
def test_nothing_in_a_name_is_what_github_would_link(name):
    """Entities are characters again when it looks for links, mentions and references: these are cut in two besides."""
    text = html.unescape(outcome_markdown.escape(f"x {name} y"))
    assert text.replace("\u200b", "") == f"x {name} y"
    assert not re.search(r"(?i)www\.\w|@\w|#\d|gh-\d", text)
    assert "www." not in outcome_markdown.escape(name).lower()
    assert outcome_markdown.escape("2.10.0 of resnet-18, gh-pages") == "2.10.0 of resnet-18, gh-pages"


@pytest.mark.parametrize(
    ("name", "slow", "equal", "torches", "says"),
    [
        ("x", 3, 3, 1, None),
        ("x" * 500, 30, 2000, 1, "rows are left out"),
        ("<|>" * 200, 30, 300, 1, "rows are left out"),
        ("<|>" * 200, 300, 3, 1, "rows are left out"),
        ("<|>" * 200, 3, 3, 80, "remarks are left out"),
    ],
)
def test_a_comment_holds_what_github_takes(name, slow, equal, torches, says):
    """What did not change goes first, then what did, and remarks last; what is left out is counted, and the rest is used up."""
    shifts = {f"{at:04}{name}": 0.2 * (at < slow) for at in range(slow + equal)}
    sides = [
        allocation(
            side,
            {
                cell: [6.0 - side * shift, 6.01 - side * shift, 5.99 - side * shift]
                for cell, shift in shifts.items()
            },
            {f"fact{at}": f"{side}{name}" for at in range(torches - 1)},
        )
        for side in (0, 1)
    ]
    sides = [dataclasses.replace(side, name=str(side.name)) for side in sides]
    allowed = sides[0].facts.keys()
    outcome = decide(*([side] for side in sides), paired=True, delta=0.02, gate=True, allow=allowed)
    text = outcome_markdown.render(outcome)
    assert len(text) <= 65_536
    told = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) more rows? (?:is|are) left out", text)]
    gone = sum(told)
    lines = [line for line in text.splitlines() if line.startswith("| <code>")]
    assert len(lines) == slow + equal - gone
    shown_slow = sum("| slower |" in line for line in lines)
    assert shown_slow == slow or len(lines) == shown_slow
    assert says is None or (says in text and len(text) > 60_000)


def test_an_outcome_without_cells_can_be_shown_everywhere():
    """Nothing in common: text, Markdown and page say so."""
    outcome = decide(
        [allocation("x", {"a": [6.0]})], [allocation("y", {"b": [6.0]})], paired=False, delta=0.02, gate=True
    )
    for text in (as_text(outcome), outcome_markdown.render(outcome), outcome_page.render(outcome)):
        assert "o cell was measured on both sides" in text


def test_the_console_shows_names_in_one_line():
    """No control character reaches the terminal, and no line grows without end."""
    text = as_text(hostile())
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 2000


@pytest.mark.browser
def test_the_page_stands_alone_in_a_browser(tmp_path):
    """No request, no script error, names as text, and the changed cell's verdict has its colour."""
    path = outcome_page.write(hostile(), tmp_path / "page.html")
    asked, errors = [], []
    with launched() as browser:
        page = browser.new_page(viewport={"width": 420, "height": 800})
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append("dialog"))
        page.goto(path.as_uri())
        assert page.locator("#changes td.slower").inner_text() == "slower"
        assert page.locator("#rest td.equivalent").count() == 1
        assert "<script>alert(1)" in page.locator("#changes li").first.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert errors == []
