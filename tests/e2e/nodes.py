"""Several nodes by hand: the same command on each, every node in a folder of its own."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.records import StudyHeader
from tests.e2e.command import HERE, records, wait_for

SECRET = "a secret for tests"
CASE = """
[case]
strategy = "ddp"
ranks = 1
batch = 4
"""
FAULTY = """
model = "faulty:build"
data = "own"
"""


class Nodes:
    """Processes of `scalemark run` that take each other for nodes; node 0 leads the study results/s of its folder."""

    def __init__(self, folder, lead=None):
        self.folder, self.lead = folder, lead or free_address()
        self.started, self._temporary = [], {}

    def place(self, node):
        """The node's working folder."""
        return self.folder / f"node{node}"

    def write(self, text, count=2):
        """The suite, and the model that fails as asked, on so many nodes. `text` goes on where CASE ends."""
        for node in range(count):
            self.place(node).mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / "faulty.py", self.place(node))
            (self.place(node) / "mine.toml").write_text(CASE + text)

    def start(self, node, *words, count=2, out="out", lead=None, env=None):
        """The node's command, its output in the file `out` of its folder. Node 0's study is a quick one."""
        where = ["--nodes", str(count), "--node-rank", str(node), "--lead", lead or self.lead]
        study = ["--quick", "-o", "results/s"] if node == 0 else []
        self._temporary[node, out] = tempfile.mkdtemp()
        own = {"COLUMNS": "200", "SCALEMARK_SECRET": SECRET, "TMPDIR": self._temporary[node, out]}
        with (self.place(node) / out).open("ab") as stream:
            process = self.popen(
                node,
                [sys.executable, "-P", "-m", "bench", "run", "mine.toml", *where, *study, *words],
                cwd=self.place(node),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=own | (env or {}),
            )
        self.started.append(process)
        return process

    def popen(self, node, argv, env, **options):
        """A process on the node, with variables added."""
        return subprocess.Popen(argv, env=os.environ | env, start_new_session=True, **options)

    def start_all(self, *words, count=2):
        """All nodes, 0 first."""
        return [self.start(node, *(words if node == 0 else ()), count=count) for node in range(count)]

    def out(self, node, out="out"):
        """What the node has said so far."""
        return (self.place(node) / out).read_text()

    def stepping(self, node):
        """Wait until a rank of a node that follows is in the steps of a "patient" launch."""
        logs = Path(self._temporary[node, "out"])
        wait_for(
            lambda: any("patient in step" in log.read_text() for log in logs.glob("scalemark-*/logs/*.log")),
            120,
        )

    def temporary(self, node):
        """Names in the node's folder for temporary files."""
        return [path.name for path in Path(self._temporary[node, "out"]).iterdir()]

    def records(self):
        """All launches of the study, in order."""
        return records(self.place(0) / "results/s")

    def header(self):
        """The study's own facts."""
        data = (self.place(0) / "results/s/study.json").read_bytes()
        return msgspec.json.decode(data, type=StudyHeader)

    def close(self):
        """End what still runs."""
        for process in self.started:
            process.kill()
            process.wait()
        for folder in self._temporary.values():
            shutil.rmtree(folder)


def free_address():
    """HOST:PORT on loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"
