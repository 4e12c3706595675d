"""What every format must do, run over every file in exporters/."""

import subprocess
import sys

import pytest

from bench import plugins
from bench.case import Case
from tests.simulate import simulate

NAMES = plugins.names("exporters")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two cells, two blocks."""
    cells = [Case(), Case(strategy="ddp", ranks=2)]
    return simulate(tmp_path_factory.mktemp("results") / "s", cells, blocks=2, write_steps=True)


def test_formats_import_without_torch_and_heavy_libraries():
    """Naming them needs neither torch nor pandas, pyarrow or pytest-benchmark."""
    code = (
        "import sys; absent = ['torch', 'pandas', 'pyarrow', 'scipy', 'pytest_benchmark']\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from bench import plugins\n"
        "print(*[plugins.load('exporters', name).summary for name in plugins.names('exporters')], sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_files_are_bytes_under_names_that_end_as_said(store, name):
    """Every file has a plain name with the format's suffix, and something in it."""
    exporter = plugins.load("exporters", name)
    files = exporter.files([store], False)
    assert files
    for file, data in files.items():
        assert file.endswith(exporter.suffix) and "/" not in file
        assert isinstance(data, bytes) and data


@pytest.mark.parametrize("name", NAMES)
def test_equal_studies_give_equal_bytes(store, name):
    """A file holds nothing of when and where it was written."""
    files = plugins.load("exporters", name).files
    assert files([store], False) == files([store], False)


@pytest.mark.parametrize("name", NAMES)
def test_steps_come_only_when_asked_for(store, name):
    """A format of tables has one more with --steps."""
    exporter = plugins.load("exporters", name)
    if exporter.tables:
        assert len(exporter.files([store], True)) == len(exporter.files([store], False)) + 1
