"""The page in a real browser: no console message, no request, and a ledger that filters and sorts.

Runs where Chromium and playwright are installed; on CI (`CI=true`) both must be.
"""

from __future__ import annotations

import os
import shutil

import pytest
import synthetic

from onepass.report.html import report_html

try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

EVIL = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser_path = next(filter(None, map(shutil.which, names)), None)
    if browser_path is None or sync_playwright is None:
        message = "needs Chromium on PATH and the Python package playwright"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    before, after = synthetic.small(EVIL)
    path = tmp_path_factory.mktemp("page") / "report.html"
    traces = (synthetic.trace(before), synthetic.trace(after))
    path.write_text(report_html(synthetic.outcome(before, after), before, after, traces, synthetic.machine()))
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        yield page
        browser.close()


@pytest.fixture(autouse=True)
def nothing_to_complain(page):
    yield
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


def visible(page) -> list[str]:
    return page.locator("#ledger-table tbody tr:visible").all_inner_texts()


def test_text_filters_the_ledger(page):
    everything = len(visible(page))
    page.fill("#ledger-text", "BN1")
    found = visible(page)
    assert 0 < len(found) < everything
    assert all("bn1" in row for row in found)
    assert page.inner_text("#ledger-count") == f"{len(found)} of {everything} edges shown"
    page.fill("#ledger-text", "")
    assert len(visible(page)) == everything


def test_homes_filter_the_ledger(page):
    page.uncheck("#ledger-homes input[value=memory]")
    assert {row.split()[0] for row in visible(page)} == {"register"}
    page.check("#ledger-homes input[value=memory]")


def test_kernels_sort_by_number_from_the_keyboard(page):
    table = page.locator("table[aria-label], .table[aria-label='Kernels before fusion'] table").first
    page.locator("summary").click()
    button = table.locator("th button", has_text="Predicted")
    column = button.evaluate("b => b.closest('th').cellIndex")
    button.focus()
    page.keyboard.press("Enter")
    read = "(t, c) => [...t.tBodies[0].rows].map(r => Number(r.cells[c].dataset.value))"
    down = table.evaluate(f"t => ({read})(t, {column})")
    assert down == sorted(down, reverse=True)
    page.keyboard.press("Enter")
    up = table.evaluate(f"t => ({read})(t, {column})")
    assert up == down[::-1] or up == sorted(up)
    assert button.evaluate("b => b.closest('th').ariaSort") == "ascending"


def test_the_page_fits_every_screen(page):
    for width in (1280, 420):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1280, "height": 900})


def test_names_are_text(page):
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert EVIL in page.inner_text("#ledger-table")


def test_drawn_texts_stay_inside_their_pictures_and_boxes(page):
    """The browser's own text widths never exceed the cautious ones, so nothing overlaps by surprise."""
    outside = page.evaluate("""() => [...document.querySelectorAll('svg')].flatMap(svg => {
        const frame = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(t => {
            const r = t.getBoundingClientRect();
            return r.left < frame.left - 1 || r.right > frame.right + 1 || r.bottom > frame.bottom + 1;
        }).map(t => t.textContent);
    })""")
    assert outside == []
