"""The report in a browser, at the width of a desktop and of a phone, in light and in dark colours.

Headless Chromium with a profile of its own opens the page from the disk. Whatever it says in its console
counts as a failure.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

for needed in ("numpy", "pyarrow", "plotly", "pyspark"):
    pytest.importorskip(needed, reason=f"needs pubsubd[analytics]: no {needed}")
pytest.importorskip("selenium", reason="needs selenium to open the page in a browser")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from analytics import report
from analytics.report_page.plots import LINES_MAX, LINES_SHOWN
from analytics.report_page.words import WORDS
from tests.analytics.report_tables import NASTY, PREFIX, Tables

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = [
    pytest.mark.skipif(
        not CHROMIUM or not DRIVER, reason="needs Chromium and its chromedriver to open the page"
    ),
    pytest.mark.timeout(300),  # a browser beside other work may be slow to start
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
MINUTES = 300
SECONDS_MAX = 90

_PLOTS = """
const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const boxes = (place, css) => [...place.querySelectorAll(css)]
  .filter((e) => e.textContent && e.getClientRects().length).map(box);
return [...document.querySelectorAll("[data-plot]")].map((place) => ({
  key: place.dataset.plot,
  box: box(place),
  area: box(place.querySelector(".bglayer, .plot > rect.bg, .nsewdrag")),
  x_ticks: boxes(place, ".xaxislayer-above text, .xaxislayer-below text"),
  y_ticks: boxes(place, ".yaxislayer-above text, .yaxislayer-below text"),
  titles: boxes(place, ".infolayer .xtitle, .infolayer .ytitle"),
  lines: [...place.querySelectorAll(".scatterlayer .trace path.js-line")].map(
    (path) => [path.getTotalLength(), path.getBBox().width, getComputedStyle(path).stroke]),
  points: [...place.querySelectorAll(".scatterlayer .trace path.point")].length,
  bars: [...place.querySelectorAll(".barlayer .point path")].map((path) => path.getBBox().height),
  visible: place.data.filter((trace) => trace.visible !== "legendonly").length,
  values: place.data.map((trace) => [...trace.y]),
}));
"""

_FIGURES = """
const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
return [...document.querySelectorAll("figure")].map((figure) => ({
  box: box(figure),
  parts: [...figure.children].filter((e) => e.offsetHeight).map(box),
}));
"""

# Every text that is visible, with its colour and what is behind it, both as the browser computes them.
_TEXTS = """
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const back = getComputedStyle(e).backgroundColor;
    if (!/, 0\\)$|transparent/.test(back)) return back;
  }
  return "none";
};
const found = {};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const e = node.parentElement;
  if (!node.data.trim() || e.closest("script, style") || !e.getClientRects().length) continue;
  const style = getComputedStyle(e);
  const front = e.closest("svg") ? style.fill : style.color;
  found[[front, behind(e), style.opacity].join("|")] = node.data.trim().slice(0, 60);
}
return found;
"""

Box = tuple[float, float, float, float]


@dataclass
class Opened:
    """The page in a browser that has drawn all plots."""

    driver: Any
    tables: Tables
    width: int
    console: list[dict[str, Any]]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def plots(self) -> dict[str, Any]:
        return {plot["key"]: plot for plot in self.run(_PLOTS)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tables]:
    tables = Tables(minutes=MINUTES)
    out = tables.write(tmp_path_factory.mktemp("out"))
    return Path(report.write(str(out))), tables


@pytest.fixture(
    scope="module",
    params=[1280, 390],
    ids=["desktop", "phone"],
)
def opened(request: pytest.FixtureRequest, page: tuple[Path, Tables]) -> Iterator[Opened]:
    width = request.param
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        try:
            yield _open(driver, page, width)
        finally:
            driver.quit()


def _open(driver: Any, page: tuple[Path, Tables], width: int) -> Opened:
    path, tables = page
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    use_scheme(driver, "light")
    driver.set_script_timeout(SECONDS_MAX)
    driver.get(path.as_uri())
    drawn = "return Number(document.documentElement.dataset.drawn || 0)"
    WebDriverWait(driver, SECONDS_MAX).until(lambda it: it.execute_script(drawn))
    assert driver.execute_script(drawn) == len(WORDS)
    return Opened(driver, tables, width, driver.get_log("browser"))


def use_scheme(driver: Any, scheme: str) -> None:
    """What the reader's system says it prefers: light or dark."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def overlap(one: Box, other: Box) -> bool:
    """More than a pixel of each other."""
    return (
        min(one[2], other[2]) - max(one[0], other[0]) > 1
        and min(one[3], other[3]) - max(one[1], other[1]) > 1
    )


def any_overlap(boxes: list[Box]) -> list[tuple[Box, Box]]:
    return [(a, b) for at, a in enumerate(boxes) for b in boxes[:at] if overlap(a, b)]


def inside(box: Box, around: Box) -> bool:
    return (
        box[0] >= around[0] - 1
        and box[1] >= around[1] - 1
        and box[2] <= around[2] + 1
        and box[3] <= around[3] + 1
    )


def contrast(front: tuple[float, ...], back: tuple[float, ...]) -> float:
    """The ratio of luminances as WCAG 2 defines it, of colours with channels from 0 to 255."""

    def luminance(colour: tuple[float, ...]) -> float:
        shares = [c / 255 for c in colour]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(front), luminance(back)))
    return (high + 0.05) / (low + 0.05)


def rgb(css: str) -> tuple[float, ...]:
    """Red, green and blue of what `getComputedStyle` answers."""
    assert css.startswith(("rgb(", "rgba(")), css
    red, green, blue = (float(part) for part in css[css.index("(") + 1 : -1].split(",")[:3])
    return red, green, blue


def test_the_browser_has_nothing_to_complain_about(opened: Opened):
    assert opened.console == []


def test_no_name_became_code(opened: Opened):
    assert opened.driver.title == "Delivery report"
    assert opened.driver.find_elements(By.CSS_SELECTOR, "img, iframe, object") == []


def test_nothing_was_fetched(opened: Opened):
    fetched = opened.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []


def test_no_button_sends_the_data_away(opened: Opened):
    titles = opened.run("return [...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title)")
    assert set(titles) <= {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}


def test_the_page_does_not_scroll_sideways(opened: Opened):
    wide, seen = opened.run(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= seen <= opened.width


def test_every_plot_shows_lines_or_bars_in_a_box_of_some_size(opened: Opened):
    plots = opened.plots()
    assert set(plots) == set(WORDS)
    for key, plot in plots.items():
        left, top, right, bottom = plot["box"]
        assert right - left > 250 and bottom - top > 200, key
        if key == "attempts":
            assert len(plot["bars"]) >= 5 and min(plot["bars"]) > 0
            continue
        assert len(plot["lines"]) == plot["visible"] > 0, key
        for length, width, _ in plot["lines"]:
            assert length > 50 and width > 50, key


def test_titles_and_ticks_are_inside_their_plot_and_over_nothing_else(opened: Opened):
    for key, plot in opened.plots().items():
        assert len(plot["x_ticks"]) >= 2 and len(plot["y_ticks"]) >= 2, key
        assert len(plot["titles"]) == 2, key
        texts = [*plot["x_ticks"], *plot["y_ticks"], *plot["titles"]]
        assert any_overlap(texts) == [], key
        for text in texts:
            assert inside(text, plot["box"]), key


def test_figures_and_their_parts_do_not_overlap(opened: Opened):
    figures = opened.run(_FIGURES)
    assert len(figures) == len(WORDS)
    assert any_overlap([figure["box"] for figure in figures]) == []
    for figure in figures:
        assert len(figure["parts"]) >= 3
        assert any_overlap(figure["parts"]) == []
        assert all(inside(part, figure["box"]) for part in figure["parts"])


def check_contrast(opened: Opened) -> set[str]:
    """Of all texts with what is behind them, and of lines with the page; the answer is the lines' colours."""
    page = rgb(opened.run("return getComputedStyle(document.body).backgroundColor"))
    poor = []
    texts = opened.run(_TEXTS)
    assert len(texts) >= 6  # different looks
    for looks, text in texts.items():
        front, back, opacity = looks.split("|")
        if float(opacity) < 1 or contrast(rgb(front), rgb(back)) < 4.5:
            poor.append((looks, text))
    assert poor == []
    strokes = {stroke for plot in opened.plots().values() for _, _, stroke in plot["lines"]}
    assert all(contrast(rgb(stroke), page) >= 3 for stroke in strokes)
    assert len(strokes) >= LINES_SHOWN
    return strokes


def test_texts_and_lines_have_the_contrast_of_wcag_aa_in_both_schemes(opened: Opened):
    page = "return getComputedStyle(document.body).backgroundColor"
    stroke = "return getComputedStyle(document.querySelector('[data-plot=left] path.js-line')).stroke"
    wait = WebDriverWait(opened.driver, SECONDS_MAX)
    assert contrast(rgb(opened.run(page)), (0, 0, 0)) > 15
    light, before = check_contrast(opened), opened.run(stroke)
    use_scheme(opened.driver, "dark")
    wait.until(lambda _: opened.run(stroke) != before)  # the last plot was painted anew
    assert contrast(rgb(opened.run(page)), (255, 255, 255)) > 15
    assert not check_contrast(opened) & light
    use_scheme(opened.driver, "light")
    wait.until(lambda _: opened.run(stroke) == before)


def test_the_values_that_are_drawn_are_those_of_the_table(opened: Opened):
    rows = opened.tables.rows["health_minute"]
    first = rows[0]["minute"]
    sums = [0] * MINUTES
    for row in rows:
        sums[(row["minute"] - first) // 60_000_000] += row["published"]
    drawn = opened.plots()["rates"]["values"][0]
    assert drawn == pytest.approx([value / 60 for value in sums], rel=1e-6)


def test_a_click_on_a_heading_sorts_the_table(opened: Opened):
    expected = sorted((row["messages"] for row in opened.tables.rows["audit_summary"]), reverse=True)
    shown = """return [...document.querySelectorAll("#subscription-table tbody tr")].map(
        (row) => Number(row.cells[6].dataset.value))"""
    button = "document.querySelectorAll('#subscription-table thead button')[6].click()"
    opened.run(button)
    assert opened.run(shown) == expected
    opened.run(button)
    assert opened.run(shown) == expected[::-1]
    states = "return [...document.querySelectorAll('#subscription-table th[aria-sort]')].length"
    assert opened.run(states) == 1


def test_names_that_are_typed_leave_only_their_rows(opened: Opened):
    field = opened.driver.find_element(By.CSS_SELECTOR, "[data-filters]")
    visible = """return [...document.querySelectorAll('#subscription-table tbody tr')]
        .filter((row) => !row.hidden).length"""
    field.send_keys("MAIL-")
    wanted = sum("mail-" in name for name in opened.tables.names)
    assert opened.run(visible) == wanted > 0
    field.clear()
    field.send_keys("x\b")
    assert opened.run(visible) == len(opened.tables.names)


def test_the_legend_has_every_name_as_it_is_and_switches_lines(opened: Opened):
    names = """return [...document.querySelector('[data-plot=backlog]').parentElement
        .querySelectorAll('.legend button')].map((one) => [one.title, one.textContent])"""
    assert [PREFIX + NASTY[0], NASTY[0]] in opened.run(names)

    state = """const place = document.querySelector('[data-plot=deliveries]');
        const buttons = [...place.parentElement.querySelectorAll('.legend button')];
        return [buttons.length, buttons.filter((b) => b.getAttribute('aria-pressed') === 'true').length,
            place.querySelectorAll('.scatterlayer path.js-line').length];"""
    press = """const done = arguments[1];
        const place = document.querySelector('[data-plot=deliveries]');
        place.once('plotly_afterplot', () => done(true));
        place.parentElement.querySelectorAll('.legend button')[arguments[0]].click();"""
    assert opened.run(state) == [LINES_MAX, LINES_SHOWN, LINES_SHOWN]
    opened.driver.execute_async_script(press, LINES_MAX - 1)
    assert opened.run(state) == [LINES_MAX, LINES_SHOWN + 1, LINES_SHOWN + 1]
    opened.driver.execute_async_script(press, LINES_MAX - 1)
    assert opened.run(state) == [LINES_MAX, LINES_SHOWN, LINES_SHOWN]


def test_hovering_shows_hostile_names_as_text(opened: Opened):
    opened.run(
        """const place = document.querySelector('[data-plot=backlog]');
        place.scrollIntoView();
        Plotly.Fx.hover(place, [0, 1].map((line) => ({ curveNumber: line, pointNumber: 160 })));"""
    )
    text = opened.run("return document.querySelector('[data-plot=backlog] .hoverlayer').textContent")
    assert NASTY[0][:20] in text
    assert opened.driver.title == "Delivery report"
    opened.run("Plotly.Fx.unhover(document.querySelector('[data-plot=backlog]'))")


def test_zooming_into_one_plot_moves_all_plots_over_time_and_back(opened: Opened):
    wait = WebDriverWait(opened.driver, SECONDS_MAX)
    starts = """return [...document.querySelectorAll('[data-plot]')]
        .filter((p) => p.layout.xaxis.type === 'date')
        .map((p) => String(p.layout.xaxis.range[0]).slice(0, 16))"""
    before = opened.run(starts)
    assert len(before) == len(WORDS) - 2 and len(set(before)) == 1
    middle, end = before[0][:11] + "13:00", before[0][:11] + "14:00"
    opened.run(
        """Plotly.relayout(document.querySelector('[data-plot=rates]'),
        {'xaxis.range[0]': arguments[0], 'xaxis.range[1]': arguments[1]})""",
        middle,
        end,
    )
    wait.until(lambda _: set(opened.run(starts)) == {middle})
    opened.run("Plotly.relayout(document.querySelector('[data-plot=backlog]'), {'xaxis.autorange': true})")
    wait.until(lambda _: opened.run(starts)[1:] == before[1:])


def test_the_browser_had_nothing_to_complain_about_all_along(opened: Opened):
    assert opened.driver.get_log("browser") == []
