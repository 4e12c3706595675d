"""A link so slow that a launch cannot end in its time: called a time-out, and no rank is blamed for it."""

import pytest

from tests.cluster.needs import require_namespaces
from tests.e2e.command import ours, records, scalemark, suite

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SLOW = """
[case]
strategy = "ddp"
ranks = 1
nodes = 2
model = "mlp"
data = "device"
steps = 20
timeout_s = 15.0
model_args = {inputs = 1024, width = 1024, depth = 3}
"""


def test_a_link_slower_than_the_time_limit_is_a_timeout_of_no_rank(tmp_path):
    """Both nodes wait for 12 MB at 1 Mbit/s: time-out, the rank cannot be named, both end, nothing is left."""
    require_namespaces()
    name = suite(tmp_path, SLOW)
    code, out = scalemark(
        tmp_path, "run", name, "--nodes", "2", "--link", "1mbit", "--quick", "-o", "results/s"
    )
    assert code == 4, out
    (record,) = records(tmp_path / "results/s")
    assert (record.status, record.reason, record.first_rank, record.first_node) == (
        "timeout",
        "hang",
        None,
        None,
    )
    assert "the rank cannot be named" in record.detail
    assert record.wall_s < 60
    assert ours(tmp_path) == []
    code, out = scalemark(
        tmp_path, "run", name, "--nodes", "2", "--set", "steps=5", "--quick", "-o", "results/fast"
    )
    assert code == 0, out
