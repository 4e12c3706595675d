"""A small suite, and what a study left, for tests of launchers."""

import os
from pathlib import Path

from tests.e2e.command import records

ROOT = Path(__file__).resolve().parents[2]
SCALEMARK = str(ROOT / ".venv/bin/scalemark")
SUITE = """
[case]
strategy = "ddp"
ranks = 1
model = "mlp"
data = "device"
steps = {steps}
[matrix]
nodes = {nodes}
"""


def folder(cluster, name, nodes="[1, 2]", steps=20):
    """A working folder that all nodes see, with the suite in it."""
    made = cluster.folder / name
    made.mkdir()
    (made / "mine.toml").write_text(SUITE.format(nodes=nodes, steps=steps))
    return made


def shared_cache():
    """Every node's home is its own: what a probe found is kept in one place."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return {"XDG_CACHE_HOME": home, "COLUMNS": "200"}


def by_nodes(study):
    """The launches of a study by their number of nodes; the last of each."""
    return {record.requested.nodes: record for record in records(study)}


def check_two_nodes(study, hosts):
    """A launch on one node and one on two, the ranks of which ran on these hosts, over eth0."""
    found = by_nodes(study)
    assert {count: record.status for count, record in found.items()} == {1: "ok", 2: "ok"}, found
    assert [rank.host for rank in found[2].ranks] == hosts
    assert {rank.network.interfaces for rank in found[2].ranks} == {("eth0",)}
    assert not found[2].mismatches
