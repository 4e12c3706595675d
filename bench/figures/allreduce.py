"""Bus bandwidth of all-reduces against their size, with the speeds of the links."""

from typing import TYPE_CHECKING, Any

from bench import ring
from bench.answers import Analysis
from bench.figures._canvas import MARKERS, MUTED, PAPER, SERIES, fastest, grouped, left_out, place
from bench.measures import format_value
from bench.plugins import Figure, Row, clip
from bench.wording import cell_labels, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MOST_CELLS = len(SERIES)
LEGEND_ROW = 18  # pixels
FAR = 30  # largest / smallest rate on a linear axis
LINK: Any = {"color": MUTED, "lw": 1.3, "ls": (0, (5, 3))}
BY = "busbw_bytes_per_s"


def frame(analysis: Analysis) -> list[Row]:
    """One row a cell and size."""
    labels = cell_labels(analysis.cells)
    return [
        {
            "cell": traffic.cell,
            "label": labels.get(traffic.cell, traffic.cell),
            "nodes": traffic.nodes,
            "ranks": traffic.ranks,
            "bytes": one.bytes,
            "seconds": one.seconds,
            "launches": one.launches,
            "algbw_bytes_per_s": one.algbw_bytes_per_s,
            "busbw_bytes_per_s": one.busbw_bytes_per_s,
            "link_bits_per_s": traffic.link_bits_per_s,
            "link_share": ring.link_share(one.busbw_bytes_per_s, traffic.link_bits_per_s)
            if one.busbw_bytes_per_s is not None and traffic.link_bits_per_s
            else None,
        }
        for traffic in (analysis.network.cells if analysis.network else ())
        for one in traffic.exchanges
    ]


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """One line a cell, a dashed one at the speed of every link that they lie on."""
    cells = grouped(fastest(rows, MOST_CELLS, by=BY), lambda row: row["cell"])
    legend = LEGEND_ROW * len(cells)
    axes = place(canvas, 920, 300 + legend, left=72, right=96, top=12, bottom=46 + legend)
    axes.grid(axis="y")
    for position, group in enumerate(cells.values()):
        known = [row for row in group if row[BY] is not None]
        axes.plot(
            [row["bytes"] / 1e6 for row in known],
            [row[BY] / 1e6 for row in known],
            color=SERIES[position],
            marker=MARKERS[position],
            ms=7,
            markeredgecolor=PAPER,
            label=clip(group[0]["label"], 80),
            zorder=4,
        )
    shown = [row for group in cells.values() for row in group]
    _links(axes, sorted({row["link_bits_per_s"] for row in shown if row["link_bits_per_s"]}))
    _scales(axes, shown)
    canvas.legend(
        *axes.get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(0.0, 0.0), frameon=False,
        handlelength=2.4, labelspacing=0.55, borderaxespad=0.2,
    )  # fmt: skip


def _links(axes: "Axes", links: list[float]) -> None:
    """Each link as a line at its speed in bytes, named at its right end in bits."""
    for bits_per_s in links:
        height = bits_per_s / 8e6
        axes.axhline(height, **LINK)
        text = format_value("link_bits_per_s", bits_per_s)
        axes.text(1.01, height, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED)


def _scales(axes: "Axes", rows: list[Row]) -> None:
    """Sizes logarithmic; rates from 0, or logarithmic too where they, or the links, lie far apart."""
    rates = [row[BY] / 1e6 for row in rows if row[BY]]
    rates += [row["link_bits_per_s"] / 8e6 for row in rows if row["link_bits_per_s"]]
    low, high = min(rates, default=1.0), max(rates, default=1.0)
    axes.set_xscale("log")
    if high > FAR * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.5, high * 1.5)
    else:
        axes.set_ylim(0, high * 1.08)
    axes.minorticks_off()
    sizes = sorted({row["bytes"] for row in rows})
    axes.set_xlim(sizes[0] / 1.5e6, sizes[-1] * 1.5 / 1e6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: tick(value))
    axes.set_xlabel("size of the all-reduce, MB")
    axes.set_ylabel("bus bandwidth, MB/s")


def nothing(analysis: Analysis) -> str:
    """Why there are no all-reduces to show."""
    if analysis.network is None:
        return "No cell ran on several nodes, so there is no network to look at."
    return "No launch on several nodes measured its all-reduces."


PLUGIN = Figure(
    question="How much of the link does an all-reduce reach?",
    how_to_read="One line a cell: bus bandwidth, which is what crosses each node's link one way, by size. A dashed "
    "line is a link's speed. Small exchanges wait for latency; large ones should come near the link.",
    frame=frame,
    draw=draw,
    nothing=nothing,
    note=lambda rows: left_out(rows, MOST_CELLS, "cells"),
    order=60,
    optional=True,
)
