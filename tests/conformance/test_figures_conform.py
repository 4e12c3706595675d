"""What every figure must do, run over every file in figures/."""

import csv
import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import plugins, report
from bench.figures._canvas import VARIABLES, svg
from tests import analysis_samples as samples

NAMES = plugins.names("figures")
BARE = (samples.empty, samples.all_failed, samples.one_point)
HASHES = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from bench import plugins
from bench.figures._canvas import svg
from tests import analysis_samples
for name in plugins.names("figures"):
    figure = plugins.load("figures", name)
    rows = figure.frame(analysis_samples.study()) or figure.frame(analysis_samples.cluster())
    print(name, hashlib.sha256(svg(figure, rows, name).encode()).hexdigest())
"""


def figure(name):
    """The plug-in of this name."""
    return plugins.load("figures", name)


def full(name):
    """A sample that this figure has rows of: that of one node, or where it is about several, of these."""
    return samples.study if figure(name).frame(samples.study()) else samples.cluster


def drawn(name, sample):
    """A figure's SVG of a sample, or None where it has nothing to show."""
    rows = figure(name).frame(sample())
    return svg(figure(name), rows, name) if rows else None


def test_figures_import_without_torch_and_matplotlib():
    """Naming and reading figures needs neither torch nor matplotlib."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'matplotlib', 'pandas']))\n"
        "from bench import plugins\n"
        "print(*[plugins.load('figures', name).question for name in plugins.names('figures')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("?") == len(NAMES)


def test_svg_bytes_do_not_depend_on_the_process():
    """Two processes with different hash seeds draw the same bytes."""
    root = str(Path(__file__).parents[2])
    outputs = [
        subprocess.run(
            [sys.executable, "-c", HASHES, root],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].split()) == 2 * len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_texts_ask_and_explain(name):
    """The title is a question, and one line says how to read the picture."""
    assert figure(name).question.endswith("?")
    assert figure(name).how_to_read.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_a_table_of_plain_values(name):
    """All rows have the same keys and hold text, finite numbers, truth values or None."""
    rows = figure(name).frame(full(name)())
    assert rows
    assert len({tuple(row) for row in rows}) == 1
    for value in (value for row in rows for value in row.values()):
        assert value is None or isinstance(value, str | int | float | bool)
        assert not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("name", NAMES)
def test_rows_survive_their_csv(name):
    """What the CSV says is what the picture was drawn from, None as an empty field."""
    rows = figure(name).frame(full(name)())
    back = list(csv.DictReader(io.StringIO(report.csv_text(rows))))
    assert len(back) == len(rows)
    for row, read in zip(rows, back, strict=True):
        assert {key: "" if value is None else str(value) for key, value in row.items()} == read


@pytest.mark.parametrize("sample", BARE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_show_is_a_sentence(name, sample):
    """Where there are no rows a sentence says why; it is no empty frame."""
    if not figure(name).frame(sample()):
        said = figure(name).nothing(sample())
        assert said[0].isupper()
        assert said.endswith(".")
        assert len(said) > 20


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_study_has_no_rows(name):
    """A study without cells gives no picture."""
    assert figure(name).frame(samples.empty()) == []


@pytest.mark.parametrize("sample", samples.SAMPLES.values(), ids=samples.SAMPLES)
@pytest.mark.parametrize("name", NAMES)
def test_svg_is_well_formed_and_self_contained(name, sample):
    """Every sample gives XML whose ids are its own, whose colours are the page's, and that refers to nothing else."""
    text = drawn(name, sample)
    if text is None:
        return
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == figure(name).question
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert all(one.startswith(f"{name}-") for one in ids)
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    tags = "".join(re.findall(r"<[^>]+>", text))
    assert not [colour for colour in VARIABLES if colour in tags]
    assert not re.findall(r'(?:href|src)="(?!#)', text)
    assert "<script" not in text
    assert "<image" not in text


@pytest.mark.parametrize("name", NAMES)
def test_drawing_leaves_no_trace(name):
    """Drawing changes no setting of matplotlib and opens no window manager."""
    import matplotlib

    before = dict(matplotlib.rcParams)
    assert drawn(name, full(name))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_large_study_stays_a_small_picture(name):
    """200 cells are cut to what a reader can look at, and the note says so."""
    rows = figure(name).frame(samples.large()) or figure(name).frame(samples.many_nodes())
    assert len(svg(figure(name), rows, name)) < 200_000
    assert "Showing" in figure(name).note(rows)
