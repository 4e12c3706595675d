"""Communication on a shaped link against what its rate and the gradients' bytes imply."""

import os

import pytest

from bench import netns
from bench.frame import steps
from bench.link import parse, tbf
from bench.ring import ring_bytes, shortest_s
from bench.store import Store
from tests.e2e.command import records, scalemark, suite

REASON = netns.why_not()
pytestmark = [pytest.mark.self_bench, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

SUITE = """
[case]
strategy = "ddp"
ranks = 1
model = "paced"
data = "device"
batch = 4
steps = 20
bucket_cap_mb = 1000
model_args = {{ forward_s_per_sample = 0.02, backward_s_per_sample = 0.0, layers = 1, parameters = {parameters} }}

[matrix]
nodes = [1, 2]
"""
FRAME = 1514 / 1448  # bytes on the link for each byte of a TCP stream: Ethernet, IP and TCP headers


def implied_s(gradient_bytes, link):
    """Seconds of an all-reduce over two nodes: the ring's bytes in frames at the link's rate, less the bytes that
    its token bucket has saved up while the ranks were in their forward pass."""
    burst_bytes = int(tbf(link)[1])
    return shortest_s(FRAME * ring_bytes(gradient_bytes, 2) - burst_bytes, link.rate_bits_per_s)


def backward_s(folder, launches):
    """Seconds of the backward phase: of each step the shorter of its ranks', which has not waited; of a launch the
    median over steps; of several launches the shortest, as other work of this host can only lengthen it."""
    frames = [steps(Store(folder), record.launch) for record in launches]
    return min(frame[frame.in_window].groupby("step").backward_s.min().median() for frame in frames)


@pytest.mark.parametrize(("text", "parameters"), [("100mbit", 1_250_000), ("1gbit", 7_500_000)])
def test_exposed_communication_is_what_rate_and_bytes_imply(benchmark, tmp_path, text, parameters):
    """`paced` on two nodes: what backward takes longer than on one rank is the link's time, within 10 %.

    Nothing hides the exchange. The backward pass is told to take no time, and all gradients are one parameter in one
    bucket, so the collective begins when the pass is over. One rank without a peer does all else: the gradient is
    written, and DDP copies it to its bucket. The optimizer is a phase of its own. Forward, 80 ms of sleep, is
    where the link rests and its token bucket fills up. Of two ranks the later one has not waited for the other:
    its backward is the collective's own time.
    """
    name = suite(tmp_path, SUITE.format(parameters=parameters))
    words = ("run", name, "--budget", "90s", "--nodes", "2", "--link", text, "-o", "results/l")
    code, output = benchmark.pedantic(scalemark, (tmp_path, *words), rounds=1)
    assert code == 0, output
    found = records(tmp_path / "results/l")
    alone, linked = ([record for record in found if record.requested.nodes == nodes] for nodes in (1, 2))
    gradient_bytes, link = linked[0].ranks[0].effective.gradient_bytes, parse(text)
    assert gradient_bytes == 4 * parameters
    base_s, linked_s = (backward_s(tmp_path / "results/l", launches) for launches in (alone, linked))
    exposed_s = linked_s - base_s
    error = exposed_s / implied_s(gradient_bytes, link) - 1
    bare = exposed_s / shortest_s(ring_bytes(gradient_bytes, 2), link.rate_bits_per_s) - 1
    benchmark.extra_info |= {"exposed_s": exposed_s, "error": error, "error_without_frames": bare}
    print(
        f"\n{text}, {gradient_bytes / 1e6:g} MB of gradients: {1e3 * exposed_s:.1f} ms exposed, {error:+.1%} of the ring's"
        f" bytes in frames less the burst, {bare:+.1%} of bytes / rate; backward without a peer {1e3 * base_s:.1f} ms;"
        f" {len(linked)} launches; load {os.getloadavg()[0]:.1f}"
    )
    assert abs(error) <= 0.10
