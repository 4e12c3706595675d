"""From a figure plug-in to inline SVG: colours as CSS variables, text as text, the same bytes every time."""

import html
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bench.plugins import Figure, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Key = TypeVar("Key", bound=Hashable)

# Stand-in colours: the page's style sheet says what each is in light and in dark mode.
INK, MUTED, GRID, PAPER, BAND = "#010203", "#010204", "#010205", "#010206", "#010207"
SERIES = ("#020101", "#020102", "#020103", "#020104", "#020105", "#020106")
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", BAND: "band"} | {
    colour: f"s{position}" for position, colour in enumerate(SERIES, 1)
}
# Fixed fills with the text colour that reads on them in both modes (Okabe-Ito).
FILLS = {
    "orange": ("#e69f00", "#111111"),
    "sky": ("#56b4e9", "#111111"),
    "blue": ("#0072b2", "#ffffff"),
    "green": ("#009e73", "#111111"),
    "purple": ("#cc79a7", "#111111"),
    "grey": ("#9a9a9a", "#111111"),
}
WIDE = 920  # pixels, of a picture across the page
LONG = 220  # pixels of names left of the axes: longer ones stand above their rows, so that a phone shows bars too
LOW = 0.2  # of a row: how far what is drawn moves down below a name
MARKERS = ("o", "s", "^", "D", "v", "P")
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "scalemark",
    "font.family": "DejaVu Sans",  # for the layout only: wider than the fonts that pages use
    "font.size": 11.0,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "path.simplify": False,
}


def svg(figure: Figure, rows: list[Row], name: str) -> str:
    """The picture of `rows` as an SVG element. `name` keeps its ids apart from other pictures' ids."""
    import io

    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    text = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing"
        )  # the browser has the glyphs, the layout font need not
        canvas = Canvas(dpi=72)
        canvas.patch.set_alpha(0)
        figure.draw(rows, canvas)
        FigureCanvasSVG(canvas).print_svg(text, metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue(), name, figure.question)


def _inline(text: str, name: str, title: str) -> str:
    """matplotlib's file as an element of a page: no prologue and style, own ids, colours by name."""
    opening, _, body = text[text.index("<svg") :].partition(">")
    box = re.findall(r'viewBox="([^"]+)"', opening)[0]
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)[\")]", body))
    body = re.sub(r"<[^>]+>", lambda tag: _tag(tag[0], name, used), body)
    head = (
        f'<svg role="img" aria-label="{html.escape(title)}" viewBox="{box}" style="width:{box.split()[2]}px"'
    )
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    body = re.sub(r">\s+<", "><", body)
    return f"{head} {spaces}>{body.strip()}"


def _tag(tag: str, name: str, used: set[str]) -> str:
    """One tag, rewritten; never the text between tags, which is the user's."""
    tag = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"font-family: [^;\"]+(; )?", "", tag)
    tag = re.sub(r"(\d\.\d{2})\d+", r"\1", tag)
    return re.sub("|".join(VARIABLES), lambda m: f"var(--{VARIABLES[m[0]]})", tag)


def place(
    canvas: "Canvas", width: int, height: int, *, left: int, right: int, top: int, bottom: int
) -> "Axes":
    """The one axes of a picture, its margins in pixels."""
    canvas.set_size_inches(width / 72, height / 72)
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    return tidy(canvas.add_axes(box))


def tidy(axes: "Axes") -> "Axes":
    """No box, the page's own background, grid behind the data."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.tick_params(length=3)
    return axes


def rows_of(axes: "Axes", names: Sequence[str], above: bool = False) -> None:
    """Horizontal rows 0, 1, ... from the top, named at the left, or each above what it holds."""
    axes.set_yticks(range(len(names)), [""] * len(names) if above else names)
    for height, name in enumerate(names if above else ()):
        axes.text(0.0, height - 0.27, name, transform=axes.get_yaxis_transform(), ha="left", va="center")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(names) - 0.5, -0.5)


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Rows by key, in the order in which the keys come."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def fastest(rows: Sequence[Row], count: int, by: str = "samples_per_s", key: str = "cell") -> list[Row]:
    """The rows of the `count` groups with the highest `by`, still in their own order."""
    best: dict[Any, float] = {}
    for row in rows:
        best[row[key]] = max(best.get(row[key], float("-inf")), row[by] or 0.0)
    chosen = set(sorted(best, key=lambda one: -best[one])[:count])
    return [row for row in rows if row[key] in chosen]


def left_out(rows: Sequence[Row], count: int, noun: str, key: str = "cell") -> str | None:
    """A sentence for a picture that shows only its fastest groups, or None."""
    total = len({row[key] for row in rows})
    if total <= count:
        return None
    return f"Showing the {count} fastest of {total:,} {noun}; all are in the table below and in the CSV."


def label_width(labels: Iterable[str]) -> int:
    """Pixels that the longest label needs left of the axes."""
    return int(6.5 * max((len(text) for text in labels), default=0)) + 16


def name_room(labels: Sequence[str]) -> tuple[int, bool]:
    """Pixels left of the axes, and whether the names are too long for that and stand above their rows."""
    width = label_width(labels)
    return (12, True) if width > LONG else (width, False)


def swatches(target: "Axes | Canvas", colours: dict[str, str], **where: Any) -> None:
    """One line of names with the fills that stand for them."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=FILLS[colour][0], label=name) for name, colour in colours.items()]
    plain: Any = {"frameon": False, "handlelength": 1.0, "columnspacing": 1.3, "borderaxespad": 0.2}
    target.legend(handles=handles, ncols=len(handles), **plain, **where)
