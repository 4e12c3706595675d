"""Fixtures: a cluster in a box for the tests of a file, whole again after each of them."""

from collections.abc import Iterator

import pytest

from tests.cluster import needs, slurm, sshd
from tests.cluster.lab import Cluster


@pytest.fixture(scope="session")
def _namespaces() -> None:
    needs.require_namespaces()


@pytest.fixture(scope="module")
def cluster(_namespaces: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes n0, n1, n2, n3."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def ssh_cluster(cluster: Cluster) -> Cluster:
    """The same with sshd in each."""
    needs.require(*needs.SSH)
    sshd.up(cluster)
    return cluster


@pytest.fixture(scope="module")
def slurm_cluster(cluster: Cluster) -> Cluster:
    """The same with Slurm: n0 takes jobs, n1, n2, n3 run them."""
    needs.require(*needs.SLURM)
    slurm.up(cluster)
    return cluster


@pytest.fixture(autouse=True)
def _whole_again(request: pytest.FixtureRequest) -> Iterator[None]:
    used = request.fixturenames
    running = request.getfixturevalue("cluster") if "cluster" in used else None
    yield
    if running:
        running.heal()
        if "slurm_cluster" in used:
            slurm.clear(running)
