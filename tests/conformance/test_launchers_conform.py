"""What every launcher must do, run over every file in launchers/."""

import subprocess
import sys

import msgspec
import pytest

from bench import plugins
from bench.launchers._hosts import Host

NAMES = plugins.names("launchers")
TOLD = {
    "name": "ddp-1",
    "words": ("run", "mine.toml", "--set", "model=a b'c;$(d)"),
    "nodes": 3,
    "ngpu": 8,
    "hosts": tuple(Host(name=name) for name in ("n1", "n2", "n3")),
    "lead": ("n1", 29_400),
    "python": "/opt/py/bin/python",
}


def test_launchers_import_without_torch_and_heavy_libraries():
    """Naming them needs neither torch nor numpy, pandas or a YAML library."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'pandas', 'psutil', 'yaml']))\n"
        "from bench import plugins\n"
        "print(*[plugins.load('launchers', name).summary for name in plugins.names('launchers')], sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_equal_jobs_give_equal_texts(name):
    """What is started follows from what was asked, and from nothing else; it ends with a line's end."""
    launcher = plugins.load("launchers", name)
    text = launcher.text(launcher.job(**TOLD))
    assert text == launcher.text(launcher.job(**TOLD)) and text.endswith("\n")
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_the_words_are_in_the_text_and_more_nodes_change_it(name):
    """The suite and the number of nodes can be read there; settings of its own all have defaults."""
    launcher = plugins.load("launchers", name)
    job = launcher.job(**TOLD)
    assert "mine.toml" in launcher.text(job) and "3" in launcher.text(job)
    assert launcher.text(msgspec.structs.replace(job, nodes=2, hosts=job.hosts[:2])) != launcher.text(job)
