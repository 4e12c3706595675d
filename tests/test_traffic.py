"""What the analysis says of a network: bytes, bandwidths, the link, and where each is known from."""

from pathlib import Path
from typing import Any

import pytest

from bench.analysis import analyse
from bench.answers import Finding, Network, Traffic
from bench.case import Case
from tests.networks import DOCKER, ETH0, GRADIENT_BYTES, IB0, PORT, ddp, header, member, networked, pairs
from tests.simulate import simulate

MB = 1e6
FAST = {"step_s": lambda case: 0.4, "spread": 0.0}


def study(root: Path, *cells: Case, **fields: Any) -> Network:
    """The network of a simulated study of two nodes."""
    fields = FAST | {"header": header()} | fields
    found = analyse([simulate(root / "s", cells or (ddp(),), blocks=3, **fields)]).network
    assert found is not None
    return found


def only(root: Path, *cells: Case, **fields: Any) -> Traffic:
    """Its only cell on several nodes."""
    (one,) = study(root, *cells, **fields).cells
    return one


def findings(root: Path, *cells: Case, **fields: Any) -> dict[str, Finding]:
    """Code -> finding."""
    fields = FAST | {"header": header()} | fields
    found = analyse([simulate(root / "s", cells or (ddp(),), blocks=3, **fields)]).findings
    return {one.code: one for one in reversed(found)}


def test_one_node_has_no_network(tmp_path: Path) -> None:
    """A study of one node says nothing of a network."""
    assert analyse([simulate(tmp_path / "s", [Case(), Case(strategy="ddp", ranks=4)])]).network is None


def test_a_collectives_time_is_that_of_the_rank_that_came_last(tmp_path: Path) -> None:
    """4 MB in 0.3506 s on the quickest of two ranks: 11.4 MB/s; the others' longer times are waiting."""
    (one,) = only(tmp_path, change=networked({4_000_000: 0.3506})).exchanges
    assert one.seconds == 0.3506
    assert one.launches == 3
    assert one.algbw_bytes_per_s == one.busbw_bytes_per_s == pytest.approx(11.4 * MB, rel=0.002)


def test_bus_bandwidth_counts_all_ranks(tmp_path: Path) -> None:
    """Two nodes of two ranks are a ring of four: 17.1 MB/s in the same time."""
    traffic = only(tmp_path, ddp(ranks=2), change=networked({4_000_000: 0.3506}))
    assert traffic.ranks == 4
    assert traffic.exchanges[0].busbw_bytes_per_s == pytest.approx(17.1 * MB, rel=0.002)


def test_what_a_node_sent_stands_beside_the_ring_bound(tmp_path: Path) -> None:
    """4.4 MB a step on node 1's interface, and 2 (N - 1) / N times the gradients; nobody counted on node 0."""
    traffic = only(tmp_path, change=networked(sent_bytes=4.4 * MB))
    assert (traffic.sender, traffic.sent_bytes) == (1, pytest.approx(4.4 * MB))
    assert traffic.sent_bytes_per_s == pytest.approx(11 * MB)
    assert traffic.ring_bytes == GRADIENT_BYTES
    assert only(tmp_path / "four", ddp(ranks=2)).ring_bytes == 1.5 * GRADIENT_BYTES


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"comm_hook": "fp16"}, GRADIENT_BYTES / 2),
        ({"comm_hook": "powersgd"}, None),
        ({"strategy": "fsdp"}, None),
    ],
)
def test_the_bound_is_that_of_what_is_exchanged(
    tmp_path: Path, fields: dict[str, Any], bound: float | None
) -> None:
    """A hook that halves gradients halves it; where something else is exchanged there is none."""
    case = Case(**({"strategy": "ddp", "nodes": 2} | fields))
    assert only(tmp_path, case, change=networked()).ring_bytes == bound


@pytest.mark.parametrize(
    ("case", "seen", "fields", "expected"),
    [
        (ddp(link="100mbit,0.2ms"), networked(), {}, (100e6, "link 100mbit,0.2ms")),
        (ddp(), networked(speed_mbit=2500), {}, (2.5e9, "speed of eth0")),
        (
            ddp(),
            networked(speed_mbit=None),
            {"pairs": pairs(2)},
            (941e6, "a TCP stream before the first cell"),
        ),
        (ddp(), networked(speed_mbit=None), {}, (None, None)),
        (ddp(), networked(), {"box": True, "pairs": pairs(2)}, (None, None)),
        (ddp(link="1gbit"), networked(), {"box": True}, (1e9, "link 1gbit")),
    ],
)
def test_a_links_speed_says_where_it_is_from(
    tmp_path: Path, case: Case, seen: Any, fields: dict[str, Any], expected: tuple[float | None, str | None]
) -> None:
    """The cell's own link first, then the interface's speed, then what was measured; none on one machine alone."""
    traffic = only(tmp_path, case, change=seen, header=header(**fields))
    assert (traffic.link_bits_per_s, traffic.link_source) == expected


def test_counters_that_nodes_share_are_no_nodes_own(tmp_path: Path) -> None:
    """Agents on one machine without links: what its interface carried is null, not somebody's."""
    assert only(tmp_path, change=networked(sent_bytes=MB), header=header(box=True)).sent_bytes is None


# Findings


SLOW = networked({65536: 0.01, 4_000_000: 0.3506}, speed_mbit=100)


def test_a_full_link_is_named_with_its_share(tmp_path: Path) -> None:
    """The measured case: 11.4 MB/s is 91 % of 100 Mbit/s, and the gradients need 0.32 s of a step of 0.4 s there."""
    found = findings(tmp_path, change=SLOW)["link-saturated"]
    assert found.message.startswith(
        "network-bound: 11.4 MB/s is 91 % of 100 Mbit/s (bus bandwidth of an all-reduce"
    )
    assert found.evidence["link"] == "100 Mbit/s (speed of eth0)"
    assert found.evidence["gradients over that link"] == "320 ms"


@pytest.mark.parametrize(
    ("change", "step_s", "seen"),
    [
        (networked({4_000_000: 0.3506}, speed_mbit=1000), 0.4, False),  # a tenth of the link
        (SLOW, 4.0, False),  # full while it lasts, which is not long
        (networked(sent_bytes=40.1 * MB), 0.4, True),  # 802 of 1000 Mbit/s all through the window
        (networked(sent_bytes=39 * MB), 0.4, False),
        (networked({4_000_000: 0.3506}, speed_mbit=None), 0.4, False),  # no link is known
    ],
)
def test_a_link_is_full_where_it_decides(tmp_path: Path, change: Any, step_s: float, seen: bool) -> None:
    """From 80 % on, of an all-reduce where the gradients need a good part of the step, or of the whole window."""
    found = findings(tmp_path, change=change, step_s=lambda case: step_s)
    assert ("link-saturated" in found) == seen


def test_the_chosen_interface_and_the_used_one_are_compared(tmp_path: Path) -> None:
    """Both nodes' ranks took docker0 where eth0 was chosen; behind a link of ours names differ by nature."""
    change = networked(interfaces=("docker0",), speed_mbit=None)
    message = findings(tmp_path, change=change)["wrong-interface"].message
    assert message == "ranks of node 0 (n0) talked to other nodes over docker0, not eth0"
    assert "wrong-interface" not in findings(tmp_path / "link", ddp(link="1gbit"), change=change)


@pytest.mark.parametrize(("other", "seen"), [(IB0, True), (DOCKER, False), (ETH0, False)])
def test_a_faster_interface_with_an_address_is_named(tmp_path: Path, other: Any, seen: bool) -> None:
    """ib0 at 100 Gbit/s beside eth0; a bridge of containers is no way to other nodes."""
    nodes = [member(i, host={"nics": [ETH0, other]}) for i in range(2)]
    found = findings(tmp_path, change=networked(), header=header(*nodes))
    assert ("wrong-interface" in found) == seen
    if seen:
        message = found["wrong-interface"].message
        assert message == "node 0 (n0) talks over eth0 (1 Gbit/s); ib0 (100 Gbit/s) is up too"


@pytest.mark.parametrize(
    ("change", "ports", "seen"),
    [
        (networked(backend="gloo"), [PORT], True),
        (networked(backend="nccl"), [PORT], False),  # nobody read the ports: it may have used them
        (networked(sent_bytes=0.0, subject="mlx5_0 port 1", backend="nccl"), [PORT], True),
        (networked(sent_bytes=4 * MB, subject="mlx5_0 port 1", backend="nccl"), [PORT], False),
        (networked(backend="gloo"), [], False),
    ],
)
def test_infiniband_is_unused_where_its_counters_stand_still(
    tmp_path: Path, change: Any, ports: list[Any], seen: bool
) -> None:
    """A port that is ACTIVE on every node and carried nothing, or a backend that cannot use it."""
    nodes = [member(i, host={"ports": ports}) for i in range(2)]
    assert ("ib-unused" in findings(tmp_path, change=change, header=header(*nodes))) == seen


def test_fields_in_which_nodes_differ_are_named(tmp_path: Path) -> None:
    """Driver and CPU model, with their values; equal nodes are no finding."""
    odd = member(1, host={"driver": "570.1", "cpu_model": "Other C"})
    message = findings(tmp_path, header=header(member(0), odd))["nodes-differ"].message
    assert "cpu_model Simulated C | Other C; driver None | 570.1" in message
    assert "nodes-differ" not in findings(tmp_path / "same")


@pytest.mark.parametrize(("ahead_s", "seen"), [(0.9, False), (-1.5, True), (3.0, True), (None, False)])
def test_clocks_apart_are_told(tmp_path: Path, ahead_s: float | None, seen: bool) -> None:
    """More than a second between any two, in either direction; an unknown clock is not 0."""
    nodes = member(0), member(1, clock_ahead_s=ahead_s)
    assert ("clocks-differ" in findings(tmp_path, header=header(*nodes))) == seen


def test_a_loopback_name_is_told_with_the_interface_to_set(tmp_path: Path) -> None:
    """gloo alone would offer 127.0.1.1; who has set the variable knows."""
    loop = {"hostname_address": "127.0.1.1"}
    found = findings(tmp_path, header=header(member(0), member(1, host=loop)))["hostname-loopback"]
    assert found.level == "info"
    assert "the host name of node 1 (n1) resolves to 127.0.1.1" in found.message
    assert "GLOO_SOCKET_IFNAME=eth0" in found.remedy
    told = loop | {"variables": {"GLOO_SOCKET_IFNAME": "eth0"}}
    codes = findings(tmp_path / "told", header=header(member(0), member(1, host=told)))
    assert not {"hostname-loopback", "interface-variables"} & codes.keys()


def test_nodes_on_loopback_have_no_others_to_offer_an_address(tmp_path: Path) -> None:
    """By hand on one machine: lo would lead nowhere, and nothing is wrong."""
    loop = {"hostname_address": "127.0.1.1"}
    nodes = [member(i, host=loop, address="127.0.0.1", interface="lo") for i in range(2)]
    assert "hostname-loopback" not in findings(tmp_path, header=header(*nodes))


def test_a_gloo_variable_in_nccls_words_is_told_once(tmp_path: Path) -> None:
    """`^docker` on both nodes is one finding, with what to set."""
    nodes = [member(i, host={"variables": {"GLOO_SOCKET_IFNAME": "^docker"}}) for i in range(2)]
    found = analyse([simulate(tmp_path / "s", [ddp()], header=header(*nodes))]).findings
    (one,) = [f for f in found if f.code == "interface-variables"]
    assert "GLOO_SOCKET_IFNAME=^docker: this is NCCL's way" in one.message
    assert one.remedy == "set GLOO_SOCKET_IFNAME to eth0"


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (
            {"bits_per_s": 100e6},
            "between node 0 (n0) and node 1 (n1): 100 Mbit/s, 941 Mbit/s between the median pair",
        ),
        (
            {"latency_s": 2e-4},
            "between node 0 (n0) and node 1 (n1): 0.2 ms one way, 0.05 ms between the median",
        ),
        ({"bits_per_s": 500e6}, None),
        ({"latency_s": 1.4e-4}, None),
        ({"bits_per_s": None, "latency_s": None}, None),
    ],
)
def test_a_pair_far_from_the_median_is_named(tmp_path: Path, odd: dict[str, Any], text: str | None) -> None:
    """Less than half the bandwidth, or more than three times the latency; what was not measured is no fault."""
    import msgspec

    every = pairs(3)
    some = (msgspec.structs.replace(every[0], **odd), *every[1:])
    nodes = header(*(member(i) for i in range(3)), pairs=some)
    found = findings(tmp_path, ddp(nodes=3), header=nodes).get("slow-pair")
    assert (found is None) if text is None else (found is not None and found.message.startswith(text))


@pytest.mark.parametrize(("sent_bytes", "seen"), [(4.3 * MB, False), (12 * MB, True)])
def test_more_bytes_than_a_ring_needs_are_told(tmp_path: Path, sent_bytes: float, seen: bool) -> None:
    """Headers are no finding; three times the bound is."""
    found = findings(tmp_path, change=networked(sent_bytes=sent_bytes))
    assert ("more-bytes-than-ring" in found) == seen
    if seen:
        message = found["more-bytes-than-ring"].message
        assert message.startswith("node 1 sent 12.0 MB a step, 3.0 times the 4.00 MB of a ring all-reduce")


def test_steps_that_grow_with_devices_are_a_loss_though_each_is_a_step(tmp_path: Path) -> None:
    """2.46 s a step on 2 devices and 8.68 s on 4, batch a device equal: 0.567 times the throughput."""
    cells = [Case(strategy="ddp", ranks=ranks) for ranks in (2, 4)]
    store = simulate(tmp_path / "s", cells, spread=0.0, step_s=lambda c: {2: 2.46, 4: 8.68}[c.devices])
    (curve,) = analyse([store]).curves
    assert curve.points[-1].speedup.value == pytest.approx(0.567, abs=0.0005)
