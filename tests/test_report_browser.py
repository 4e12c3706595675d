"""The report in headless Chromium: it loads nothing, sorts, filters, fits a phone and is readable in the dark."""

import pytest

from bench import report
from tests import analysis_samples as samples
from tests.browser import launched

pytestmark = pytest.mark.browser

CELLS = "#cells table"
# Contrast after WCAG 2: every element that holds text against the first background behind it that is painted.
CONTRAST = """() => {
  const part = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] !== 0) return c; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest('script, style, .skip')) continue;
    const svg = e.closest('svg');
    if (svg && (e.getAttribute('style') || '').match(/fill: (#|rgb)/)) continue; // stands on a fill of its own
    const style = getComputedStyle(e);
    const a = light(rgb(svg ? style.fill : style.color)), b = light(behind(svg ? svg.parentElement : e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(e.tagName + ' ' + e.textContent.slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests here."""
    with launched() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every sample as a page."""
    folder = tmp_path_factory.mktemp("reports")
    for name, sample in samples.SAMPLES.items():
        report.write(sample(), folder / f"{name}.html")
    return folder


@pytest.fixture
def open_page(browser, folder):
    """Open a sample's page; errors and requests are kept on it."""
    pages = []

    def opened(name="study", **options):
        page = browser.new_page(**options)
        page.errors, page.asked = [], []
        page.on("console", lambda said: page.errors.append(said.text))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto((folder / f"{name}.html").as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()


def column(page, title):
    """The texts of a column of the table of all cells, rows that are hidden left out."""
    return page.evaluate(
        """([table, title]) => {
          const found = document.querySelector(table);
          const at = [...found.tHead.rows[0].cells].findIndex(th => th.textContent === title);
          return [...found.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[at].textContent); }""",
        [CELLS, title],
    )


def heading(page, title):
    """The button of a column's heading."""
    return page.locator(f"{CELLS} th button", has_text=title).first


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_pages_load_without_error_or_request(open_page, name):
    """No page of any kind of study writes to the console or asks for anything but itself."""
    page = open_page(name)
    assert page.errors == []
    assert [url for url in page.asked if not url.startswith("data:")] == [page.url]


def test_a_click_sorts_numbers_as_numbers_and_missing_last(open_page):
    """The first click puts the largest on top, the second the smallest; what is missing stays below."""
    page = open_page()
    head = heading(page, "samples/s")
    head.click()
    first = column(page, "samples/s")
    assert first == ["52.0", "44.9", "44.7", "41.2", "36.8", "31.0", "25.4", "25.1", "25.0", "n/a"]
    head.click()
    assert column(page, "samples/s") == [*reversed(first[:-1]), "n/a"]


def test_sorting_is_told_to_those_who_cannot_see_it(open_page):
    """aria-sort is on the sorted column, in its direction, and on no other."""
    page = open_page()
    sorted_by = (
        "els => els.filter(e => e.hasAttribute('aria-sort')).map(e => e.textContent + ' ' + e.ariaSort)"
    )
    heading(page, "devices").click()
    assert page.locator(f"{CELLS} th").evaluate_all(sorted_by) == ["devices descending"]
    heading(page, "status").click()
    assert page.locator(f"{CELLS} th").evaluate_all(sorted_by) == ["status ascending"]


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_the_keyboard_sorts_too(open_page, key):
    """A heading can be reached and pressed without a mouse."""
    page = open_page()
    heading(page, "devices").focus()
    page.keyboard.press(key)
    assert column(page, "devices") == sorted(column(page, "devices"), reverse=True)


def test_the_filter_keeps_rows_that_hold_every_word(open_page):
    """Every word has to occur, in any order and case; the count is said."""
    page = open_page()
    page.get_by_label("Filter").fill("syncbn ddp")
    assert column(page, "cell") == ["DDP × 2 · 0 workers · SyncBN"]
    assert page.locator("#cells output").inner_text() == "1 of 10 cells"
    page.get_by_label("Filter").fill("")
    assert len(column(page, "cell")) == 10


def test_links_of_findings_reach_their_row(open_page):
    """A finding's link goes to the row of the cell that it speaks of."""
    page = open_page()
    page.locator(".findings a").first.click()
    assert page.locator("tr:target td").first.inner_text().startswith("DDP × 4")


@pytest.mark.parametrize("name", ["study", "hostile", "gpus", "large"])
def test_no_page_scrolls_sideways(open_page, name):
    """Wide tables and pictures scroll inside their own box, down to a phone's width."""
    page = open_page(name)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["study", "all-failed"])
def test_text_has_contrast(open_page, name, scheme):
    """All text reaches 4.5 to 1 against what is behind it, in light and in dark mode, pictures included."""
    page = open_page(name, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate(CONTRAST) == []


def test_dark_mode_is_dark(open_page):
    """The page follows the reader's colour scheme."""
    paint = "getComputedStyle(document.body).backgroundColor"
    assert open_page(color_scheme="light").evaluate(paint) != open_page(color_scheme="dark").evaluate(paint)


def test_texts_of_pictures_do_not_overlap(open_page):
    """In no picture do two texts cover each other, and none is cut off at its edge."""
    for name in ("study", "gpus"):
        page = open_page(name, viewport={"width": 1280, "height": 900})
        clashes = page.evaluate(
            """() => [...document.querySelectorAll('.drawing')].flatMap(drawing => {
              const frame = drawing.getBoundingClientRect();
              const boxes = [...drawing.querySelectorAll('text')].filter(t => t.textContent.trim())
                .map(t => [t.getBoundingClientRect(), t.textContent]);
              const cut = boxes.filter(([b]) => b.left < frame.left - 1 || b.right > frame.right + 1).map(b => b[1]);
              const over = boxes.flatMap(([a, x], i) => boxes.slice(i + 1)
                .filter(([b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                  && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3).map(b => x + ' | ' + b[1]));
              return cut.concat(over); })"""
        )
        assert clashes == []


def test_sections_are_landmarks_with_headings(open_page):
    """There is one main, one h1, and every section is named by a heading."""
    page = open_page()
    assert page.locator("main").count() == page.locator("h1").count() == 1
    nameless = "els => els.filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length"
    assert page.locator("section").evaluate_all(nameless) == 0
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
