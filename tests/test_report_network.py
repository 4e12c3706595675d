"""The report's network: shown where there are several nodes, in units that can be divided by each other."""

import csv
import re

import msgspec
import pytest

from bench import plugins, report, report_network, wording
from bench.case import Case
from tests import analysis_samples as samples
from tests.networks import ddp, header, networked, pairs
from tests.simulate import simulate


def tables(analysis):
    """Caption -> heading -> the texts below it."""
    found = report_network.tables(analysis, wording.cell_labels(analysis.cells))
    return {
        table.caption: {
            column.title: [line.entries[place].text for line in table.lines]
            for place, column in enumerate(table.columns)
        }
        for table in found
    }


def test_one_node_has_no_such_section(tmp_path):
    """Neither section, nor picture, nor files where all ran on one node."""
    page, *files = report.write(samples.study(), tmp_path / "r.html")
    assert 'id="network"' not in page.read_text()
    assert 'id="allreduce"' not in page.read_text()
    assert not {"nodes.csv", "pairs.csv", "network.csv", "allreduce.csv"} & {file.name for file in files}


def test_nodes_and_pairs_say_what_is_not_known():
    """Speeds in Gbit/s, clocks in ms; what nobody measured is n/a and never 0."""
    found = tables(samples.cluster())
    nodes, between = found["Nodes"], found["Between nodes, before the first cell"]
    assert nodes["name"] == ["n0", "n1", "n2", "n3"]
    assert nodes["speed"] == ["1 Gbit/s"] * 3 + ["n/a"]
    assert nodes["clock"] == ["0 ms", "-2.10 ms", "-4.20 ms", "n/a"]
    assert between["nodes"][0] == "0 and 1"
    assert (between["bandwidth"][0], between["bandwidth"][-1]) == ("941 Mbit/s", "n/a")
    assert between["error"][-1] == "no route to host"


def test_what_was_measured_before_links_were_shaped_says_so():
    """This host's own 941 Mbit/s beside cells at 100 Mbit/s are no contradiction; without links nothing is said."""
    shaped = samples.cluster()
    plain = msgspec.structs.replace(shaped, cells=tuple(one for one in shaped.cells if one.case.link is None))
    for analysis, said in ((shaped, True), (plain, False)):
        (between,) = (one for one in report_network.tables(analysis, {}) if one.caption.startswith("Between"))
        assert ("before any link was shaped" in between.note) == said


def test_what_a_node_sent_stands_beside_bound_and_link():
    """4 MB of gradients over 2 ranks at 100 Mbit/s need 320 ms; a link that is not known needs no time."""
    sent = tables(samples.cluster())["What a node sends a step"]
    assert sent["sent a step"] == ["4.20 MB", "4.20 MB", "n/a"]
    assert sent["ring bound"] == ["4.00 MB", "4.00 MB", "6.00 MB"]
    assert sent["sent / bound"] == ["1.05", "1.05", "n/a"]
    assert sent["link"] == ["100 Mbit/s", "1 Gbit/s", "n/a"]
    assert sent["least, ms"] == ["320", "32.0", "n/a"]


def test_bandwidths_are_in_both_units_with_their_share_of_the_link(tmp_path):
    """4 MB in 0.3506 s over two ranks: 11.4 MB/s, 0.0913 Gbit/s, 91 % of 100 Mbit/s."""
    from bench.analysis import analyse

    store = simulate(
        tmp_path / "s",
        [ddp(link="100mbit")],
        header=header(pairs=pairs(2)),
        change=networked({4_000_000: 0.3506}),
    )
    found = tables(analyse([store]))["All-reduces after the window"]
    texts = [found[name][0] for name in ("S, MB", "t, ms", "algbw, MB/s", "busbw, MB/s", "busbw, Gbit/s")]
    assert texts == ["4.00", "351", "11.4", "11.4", "0.0913"]
    assert found["of the link"] == ["91\u00a0%"]


def test_the_page_prints_the_formula_and_links_its_files(tmp_path):
    """The section has its place in the list of sections, its formula, and four files beside the page."""
    page, *files = report.write(samples.cluster(), tmp_path / "r.html")
    text = page.read_text()
    assert '<a href="#network">' in text
    assert "busbw = algbw × 2 (N − 1) / N" in text
    names = {"nodes.csv", "pairs.csv", "network.csv", "allreduce.csv"}
    assert names <= {file.name for file in files}
    assert names <= set(re.findall(r'href="r/([^"]+)"', text))
    with (tmp_path / "r" / "network.csv").open(newline="") as lines:
        last = list(csv.DictReader(lines))[-1]
    assert (last["sent_bytes"], last["link_bits_per_s"], last["ring_bytes"]) == ("", "", "6000000.0")


def test_the_picture_draws_each_link_once():
    """Cells on two known links: a line at the speed of each, named in bits; lines for all three cells."""
    from bench.figures._canvas import svg

    figure = plugins.load("figures", "allreduce")
    rows = figure.frame(samples.cluster())
    text = svg(figure, rows, "allreduce")
    assert text.count("100 Mbit/s") == text.count("1 Gbit/s") == 1
    assert len({row["label"] for row in rows}) == 3
    assert [row["link_share"] for row in rows][-1] is None


@pytest.mark.parametrize("box", [True, False])
def test_agents_on_one_machine_are_said_to_share_it(box):
    """Their network is not that of several machines."""
    case = Case(strategy="ddp", nodes=2)
    analysis = samples.analysis(
        cells=(samples.cell(case, 20.0),), network=samples.network(samples.traffic(case), box=box)
    )
    page = report.render(analysis)
    assert ("share its CPUs" in page) == box


def test_several_studies_name_their_nodes_apart():
    """Two studies with nodes give two tables of nodes, each under its study's name."""
    import msgspec

    one = samples.network().clusters[0]
    both = msgspec.structs.replace(
        samples.network(), clusters=(one, msgspec.structs.replace(one, study="other"))
    )
    captions = list(tables(samples.analysis(network=both)))
    assert captions[:2] == ["Nodes of nodes", "Between nodes of nodes, before the first cell"]
    assert "Nodes of other" in captions
