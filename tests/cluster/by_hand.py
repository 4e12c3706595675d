"""scalemark by hand on the nodes of a cluster in a box: node 0 is n0 and leads, node 1 is n1, ..."""

import os
from pathlib import Path

from tests.cluster.lab import Cluster
from tests.cluster.namespaces import until
from tests.e2e.nodes import Nodes

CACHES = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"


class ByHand(Nodes):
    """As on one machine, but each node has its own name, address, link and processes."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(folder, "n0:29400")
        self.cluster = cluster

    def popen(self, node, argv, env, **options):
        """A process on the node, with variables added; what was looked up once on this machine need not be again."""
        return self.cluster.popen(f"n{node}", argv, env={"XDG_CACHE_HOME": str(CACHES)} | env, **options)

    def nothing_left(self, *nodes: int) -> None:
        """Wait until nothing runs on these nodes, and no port is listened on."""
        for name in (f"n{node}" for node in nodes):
            until(lambda name=name: not self.cluster.strays(name), f"nothing left on {name}")
            assert not self.cluster.listening(name)
