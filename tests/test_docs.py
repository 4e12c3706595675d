"""The documentation says what the code says: names, defaults, classes, layers, commands, examples."""

import ast
import re
import shlex
from pathlib import Path
from typing import get_args

import pytest

from bench import plugins, suite
from bench.answers import Verdict
from bench.case import Case
from bench.comparisons import FACTORS
from bench.failures import HOPELESS, PATTERNS, REMEDIES
from bench.records import (
    PHASES,
    Cut,
    Effective,
    Exchange,
    LaunchRecord,
    Member,
    Pair,
    RankMemory,
    RankNetwork,
    RankSummary,
    Samples,
    StudyHeader,
    Window,
)
from tests.hosts import cpu_host, gpu_host

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def text(name):
    return (DOCS / name).read_text()


def blocks(page, language):
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.S | re.M)


def prose(page):
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)


def section(page, heading):
    """What stands below a heading, up to the next one of its level or above."""
    level = heading.split()[0]
    return re.split(rf"^#{{1,{len(level)}}} ", page.split(f"\n{heading}\n")[1], flags=re.M)[0]


def rows(part):
    """Lines of the first table as lists of cells, without its heading."""
    table = re.search(r"(?:^\|.*\n)+", part, re.M)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def named(part):
    """Everything in code spans."""
    return set(re.findall(r"`([^`]+)`", part))


def anchors(page):
    """GitHub's anchors of the headings."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_lead_somewhere(page):
    """Every link to a file, and to a heading in it, has its target in the repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_relative_to(ROOT) and file.exists(), target
        assert not anchor or anchor in anchors(file.read_text()), target


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_shown_are_understood(page):
    """Every scalemark command in a block of shell has a verb that takes these arguments."""
    from typer.main import get_command

    from bench.cli import app

    verbs = get_command(app).commands
    for line in "".join(blocks(page.read_text(), "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words and Path(words[0]).name == "scalemark" and len(words) > 1 and not words[1].startswith("-"):
            verbs[words[1]].make_context(words[1], words[2:])


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_targets_named_exist(page):
    """`make TARGET`, in a block or in a line, is a target that `make help` lists."""
    listed = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    content = page.read_text()
    spans = [*named(prose(content)), *"".join(blocks(content, "sh")).splitlines()]
    for span in spans:
        if span.startswith("make "):
            targets = [word for word in shlex.split(span, comments=True)[1:] if "=" not in word]
            assert set(targets) <= listed, span


def test_the_examples_shown_are_the_examples_that_run():
    """The code in bring-your-own.md is that in examples/, to the letter."""
    names = ("my_model", "my_training", "train_ddp", "from_train")
    shown = blocks(text("bring-your-own.md"), "python")
    assert shown == [(ROOT / f"examples/{name}.py").read_text() for name in names]


def after(change, source):
    """A file with a block of diff applied; every part of it must stand there exactly once."""
    for hunk in change.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def test_the_change_shown_fits_the_script_shown():
    """The lines that watch a loop go into examples/train_ddp.py, and the result compiles."""
    (change,) = blocks(text("bring-your-own.md"), "diff")
    changed = after(change, (ROOT / "examples/train_ddp.py").read_text())
    compile(changed, "train_ddp.py", "exec")
    assert "watched.loader(loader)" in changed


def test_workload_fields_are_all_explained():
    """bring-your-own.md has a row for every field of a Workload."""
    tree = ast.parse((ROOT / "bench/workload.py").read_text())
    (workload,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Workload")
    fields = [node.target.id for node in workload.body if isinstance(node, ast.AnnAssign)]
    table = rows(section(text("bring-your-own.md"), "## What a Workload holds"))
    assert [row[0].strip("`").partition("(")[0] for row in table] == fields


@pytest.mark.parametrize("number", range(len(blocks(text("suites.md"), "toml"))))
def test_suites_shown_expand(tmp_path, number):
    """Every suite in suites.md loads, and it or its parts give cells on a CPU host and on one with accelerators."""
    path = tmp_path / "shown.toml"
    path.write_text(blocks(text("suites.md"), "toml")[number])
    shown = suite.load(str(path))
    for one in map(suite.load, shown.parts) if shown.parts else [shown]:
        assert suite.expand(one, cpu_host()) and suite.expand(one, gpu_host())


def test_first_suite_gives_the_cells_that_the_page_names(tmp_path):
    """Base with 0 and 1 workers, DDP on 1 rank with 0, DDP on 2 ranks with 0 and 1."""
    path = tmp_path / "workers.toml"
    path.write_text(blocks(text("suites.md"), "toml")[0])
    cases = suite.expand(suite.load(str(path)), cpu_host(), 2)
    assert [(c.strategy, c.ranks, c.num_workers) for c in cases] == [
        ("single", 1, 0), ("single", 1, 1), ("ddp", 1, 0), ("ddp", 2, 0), ("ddp", 2, 1),
    ]  # fmt: skip


def test_every_axis_is_listed_with_its_default():
    """suites.md has a row for each field of a case, in order, with the default that the code has."""
    toml = {"True": "true", "False": "false", "None": "null"}
    defaults = {}
    for field in Case.__struct_fields__:
        value = getattr(Case(), field)
        defaults[field] = f'"{value}"' if isinstance(value, str) else toml.get(str(value), str(value))
    shown = {row[0].strip("`"): row[2].strip("`") for row in rows(section(text("suites.md"), "## Axes"))}
    assert list(shown.items()) == list(defaults.items())


def test_every_table_of_a_suite_is_explained():
    """suites.md has a row for each key at the top of a suite."""
    shown = {row[0].strip("`[]") for row in rows(section(text("suites.md"), "## Tables"))}
    assert shown == set(suite.TABLES)


def test_every_failure_class_is_explained_in_order():
    """failures.md lists the classes in the order in which they are tried, and then the rest."""
    tried = [name for name, _ in PATTERNS]
    shown = [row[0].strip("`") for row in rows(section(text("failures.md"), "## Classes of failure"))]
    assert shown[: len(tried)] == tried
    assert sorted(shown) == sorted(REMEDIES)
    part = section(text("failures.md"), "## Classes of failure")
    assert set(re.findall(r"`(\w+)`", part.split("stands first.")[1])) == HOPELESS


def test_every_verdict_is_explained():
    """method.md has a row for each word that a comparison can say."""
    shown = [row[0].strip("`") for row in rows(section(text("method.md"), "## Comparing settings"))]
    assert shown == list(get_args(Verdict))


def test_every_factor_that_is_compared_is_named():
    """method.md names the settings that make a pair, all of them and in the code's order."""
    part = section(text("method.md"), "## Comparing settings").split("and in nothing else")[0]
    assert tuple(re.findall(r"`(\w+)`", part)) == FACTORS


@pytest.mark.parametrize("page", ["method.md", "numbers.md"])
def test_every_phase_is_explained(page):
    """Both pages have a row for each phase, in the order of a step."""
    table = re.search(r"\| phase \|(?:.*\n)(?:\|.*\n)+", text(page))[0]
    assert tuple(row[0].strip("`") for row in rows(table)) == PHASES


@pytest.mark.parametrize(
    ("heading", "structs"),
    [
        ("## Memory of a rank", [RankMemory]),
        ("## The network", [Pair]),
        ("## study.json", [StudyHeader, Member]),
        (
            "## launches.jsonl",
            [LaunchRecord, Window, Cut, RankSummary, RankNetwork, Exchange, Samples, Effective],
        ),
    ],
)
def test_every_field_on_disk_is_explained(heading, structs):
    """numbers.md names each field of the files under results/."""
    shown = named(section(text("numbers.md"), heading))
    for struct in structs:
        assert set(struct.__struct_fields__) <= shown, struct.__name__


def test_every_column_of_the_tables_of_cells_is_explained():
    """numbers.md has each column of the report's table, in its order, and each of cells.csv that is no setting."""
    from bench.report_facts import cell_rows
    from bench.report_tables import cells
    from tests.analysis_samples import gpus

    analysis = gpus()
    part = section(text("numbers.md"), "## The table of all cells")
    titles = [column.title for column in cells(analysis, {c.cell: c.cell for c in analysis.cells}).columns]
    shown = [title for row in rows(part) for title in re.split(r", (?!ms|reason)", row[0]) if title]
    assert shown == titles
    columns = set(cell_rows(analysis.cells, PHASES)[0])
    assert columns - set(Case.__struct_fields__) - {f"{phase}_s" for phase in PHASES} <= named(part)


def layers():
    """Module or folder of bench -> the row of the architecture's table that it stands in."""
    table = rows(section(text("architecture.md"), "## Parts"))
    return {name.rstrip("/"): place for place, row in enumerate(table) for name in named(row[1])}


def imported(path):
    """Modules and folders of bench that a file imports, also inside functions, but not for types only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bench":
            inner = node.module.split(".")[1:2]
            yield from inner or [alias.name for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("bench."))


def test_every_module_has_its_layer_and_imports_go_down():
    """architecture.md names each file and folder of the package, and none imports from a row above its own."""
    place = layers()
    files = [path for path in (ROOT / "bench").rglob("*.py") if path != ROOT / "bench/__init__.py"]
    parts = {path: path.relative_to(ROOT / "bench").parts[0].removesuffix(".py") for path in files}
    folders = {path.name for path in (ROOT / "bench").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert set(parts.values()) | folders == set(place)
    upward = [(str(p), name) for p, own in parts.items() for name in imported(p) if place[name] < place[own]]
    assert upward == []


def test_every_kind_of_plug_in_has_a_paragraph():
    """architecture.md says how to add one of each kind, and which arguments it must give."""
    part = section(text("architecture.md"), "## Adding a plug-in")
    assert {f"{kind}/" for kind in plugins.KINDS} <= {path.partition("/")[0] + "/" for path in named(part)}


def test_decisions_are_numbered_without_gaps():
    """docs/adr holds 0001, 0002, ..., each with context, decision and consequences, on one page."""
    pages = sorted((DOCS / "adr").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        content = page.read_text()
        assert content.startswith(f"# {page.name[:4]}: ")
        assert re.findall(r"^## (.+)$", content, re.M) == ["Context", "Decision", "Consequences"]
        assert len(content.splitlines()) <= 40
