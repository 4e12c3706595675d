"""Bars of memory a rank: a panel for the device, one for the host, which are never mixed."""

from typing import TYPE_CHECKING

from bench.figures._canvas import FILLS, LOW, WIDE, grouped, name_room, rows_of, swatches, tidy
from bench.plugins import Row, clip
from bench.wording import size, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

BAR = 22  # pixels a rank
HEAD, FOOT = 52, 50  # pixels above and below the bars of a panel
# kind: (field, where, colour, thickness). Device kinds lie over each other, since allocated is part of
# reserved and reserved part of used; host kinds share no page and stand one after the other.
KINDS = {
    "device used": ("device_used_bytes", "device", "grey", 0.8),
    "reserved by torch": ("peak_reserved_bytes", "device", "sky", 0.56),
    "allocated by torch": ("peak_allocated_bytes", "device", "blue", 0.3),
    "rank process": ("rank_pss_bytes", "host", "green", 0.7),
    "loader workers": ("workers_pss_bytes", "host", "orange", 0.7),
}
TITLES = {"device": "Device memory, peak", "host": "Host memory (proportional set size)"}


def draw(rows: list[Row], canvas: "Canvas") -> None:
    """A panel for the device and one for the host, where there is something to show."""
    panels = grouped(rows, lambda row: row["where"])
    room = {where: name_room(_names(group)) for where, group in panels.items()}
    heights = {
        where: (BAR + 18 * room[where][1]) * len(by_rank(group)) + HEAD + FOOT
        for where, group in panels.items()
    }
    width, below = WIDE, sum(heights.values())
    canvas.set_size_inches(width / 72, below / 72)
    total = below
    for where, group in panels.items():
        below -= heights[where]
        left, above = room[where]
        box = (left, below + FOOT, width - left - 90, heights[where] - HEAD - FOOT)
        axes = tidy(canvas.add_axes((box[0] / width, box[1] / total, box[2] / width, box[3] / total)))
        _panel(axes, group, _names(group), above)
        _title(axes, where, group)


def _panel(axes: "Axes", rows: list[Row], names: list[str], above: bool) -> None:
    ranks = list(by_rank(rows).values())
    longest = max(_extent(rank) for rank in ranks)
    for at, rank in enumerate(ranks):
        start, height = 0.0, at + LOW * above
        for row in rank:
            _, where, colour, thickness = KINDS[row["kind"]]
            thickness *= BAR / (BAR + 18 * above)
            axes.barh(height, float(row["bytes"]), left=start, height=thickness, color=FILLS[colour][0], lw=0)
            start += row["bytes"] if where == "host" else 0
        total = rank[0]["device_total_bytes"]
        text = size(_extent(rank)) + (f" of {size(total)}" if total else "")
        axes.text(_extent(rank) + longest * 0.012, height, text, va="center")
    rows_of(axes, names, above)
    axes.set_xlim(0, longest or 1)
    unit, word = (2**30, "GiB") if longest >= 2**30 else (2**20, "MiB")
    axes.xaxis.set_major_locator(_steps(unit))
    axes.xaxis.set_major_formatter(lambda value, _: tick(value / unit))
    axes.set_xlabel(word)


def _steps(unit: int) -> "MaxNLocator":
    """Ticks at round numbers of the unit, not of bytes."""
    from matplotlib.ticker import MaxNLocator

    class Locator(MaxNLocator):
        def tick_values(self, vmin: float, vmax: float) -> list[float]:
            return [value * unit for value in super().tick_values(vmin / unit, vmax / unit)]

    return Locator(nbins=6, steps=[1, 2, 2.5, 5, 10])


def _title(axes: "Axes", where: str, rows: list[Row]) -> None:
    """The panel's name and its legend, above the bars."""
    found = {row["kind"] for row in rows}
    colours = {kind: KINDS[kind][2] for kind in KINDS if kind in found}
    axes.annotate(TITLES[where], (0, 1), (0, 30), "axes fraction", textcoords="offset points", weight="bold")
    swatches(axes, colours, loc="lower left", bbox_to_anchor=(-0.012, 1.0))


def by_rank(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows by cell and rank."""
    return grouped(rows, lambda row: (row["cell"], row["rank"]))


def _names(rows: list[Row]) -> list[str]:
    """Names of the ranks in order; a cell's own name stands at its first one."""
    names = []
    for ranks in grouped(rows, lambda row: row["cell"]).values():
        own = list(dict.fromkeys(row["rank"] for row in ranks))
        names += [f"{clip(ranks[0]['label'], 60)} · rank {own[0]}", *(f"rank {rank}" for rank in own[1:])]
    return names


def _extent(rank: list[Row]) -> int:
    """Bytes up to which a rank's bar reaches."""
    sizes = [row["bytes"] for row in rank]
    return sum(sizes) if rank[0]["where"] == "host" else max(sizes)
