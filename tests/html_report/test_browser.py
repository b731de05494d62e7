"""What a browser draws of the pages: nothing leaves its place, is too faint, or needs a mouse."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusewright.html_report.render import page_text
from fusewright.html_report.roofline_plot import rates_of
from fusewright.suite.pages import suite_page
from fusewright.suite.row import totals
from fusewright.targets.target import TARGETS
from tests.support.html_reports import planned, problem_page
from tests.support.suite_rows import ROWS

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()), reason="there is no Chromium"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
VIEWS = [(width, scheme) for width in (400, 1280) for scheme in ("light", "dark")]
PAGES = ("problem", "suite")
LEAST_CONTRAST = 4.5  # of WCAG 2, level AA
# The colours of each text and of what lies behind it, as CSS has them.
TEXTS = """
const seen = (style) => style.visibility !== "hidden" && style.display !== "none";
const behind = (element) => {
  const box = element.closest("g.node");
  if (box) {
    const shape = element.classList.contains("mark") ? ".badge" : ".box";
    return getComputedStyle(box.querySelector(shape)).fill;
  }
  for (let one = element; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
  return getComputedStyle(document.documentElement).backgroundColor;
};
const found = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || ["SCRIPT", "STYLE", "title"].includes(element.tagName)) continue;
  const style = getComputedStyle(element);
  const inside = element.closest("details:not([open])");
  if (!seen(style) || (inside && !element.closest("summary"))) continue;
  const ink = element instanceof SVGElement ? style.fill : style.color;
  found.push([element.textContent.slice(0, 40), ink, behind(element)]);
}
return found;
"""
REACHABLE = """
const open = (e) => !e.closest("details:not([open])") || e.tagName === "SUMMARY";
const all = document.querySelectorAll("button, a[href], summary, [tabindex='0']");
return [...all].filter(open);
"""
BOXES = """
return [...document.querySelectorAll(arguments[0])].map((e) => {
  const box = e.getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom];
});
"""
MARKS = """
return [...document.querySelectorAll(arguments[0])].map((e) => {
  const box = (e.querySelector("use") ?? e.querySelector("path")).getBoundingClientRect();
  const said = e.querySelector("title, text").textContent;
  return [said.trim(), (box.left + box.right) / 2, (box.top + box.bottom) / 2];
});
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "problem": problem_page(measured={planned().kernels[0].name: 40.0}).page(),
        "suite": suite_page(ROWS, totals(ROWS), {"folder": "zoo"}, {"fast": "fast.html"}),
    }
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page_text(page), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    service = webdriver.ChromeService(str(DRIVER))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def show(browser: Any, texts: dict[str, Path]) -> Any:
    def opened(name: str, width: int = 1280, scheme: str = "light") -> Any:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        for log in ("performance", "browser"):
            browser.get_log(log)
        browser.get(texts[name].as_uri())
        return browser

    return opened


def channels(colour: str) -> list[float]:
    """`rgb(1, 2, 3)` -> numbers; alpha would have to be reckoned with, so there may be none."""
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")]
    assert colour.startswith("rgb(") or numbers[3:] == [1.0], colour
    return numbers[:3]


def luminance(colour: str) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (value / 255 for value in channels(colour))
    ]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_leaves_the_page(show: Any, name: str, width: int, scheme: str) -> None:
    page = show(name, width, scheme)
    wide, room = page.execute_script(
        "const d = document.documentElement; return [d.scrollWidth, d.clientWidth]"
    )
    assert wide <= room <= width
    blocks = page.execute_script(BOXES, ".tile, .scroll, .kernel, h1, h2, p, table.none")
    assert len(blocks) > 10
    for left, _, right, _ in blocks:
        assert left >= 0
        assert right <= room + 0.5
    # Boxes that are wider than their place scroll inside it.
    inside = page.execute_script(
        "return [...document.querySelectorAll('.scroll')]"
        ".filter((e) => e.scrollWidth > e.clientWidth)"
        ".map((e) => getComputedStyle(e).overflowX)"
    )
    assert set(inside) <= {"auto"}
    assert inside or width > 400
    tall = page.execute_script(BOXES, ".tall")
    assert all(bottom - top <= 800 for _, top, _, bottom in tall), "a large graph scrolls"


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_all_text_can_be_read(show: Any, name: str, width: int, scheme: str) -> None:
    found = show(name, width, scheme).execute_script(TEXTS)
    assert len(found) > 50
    faint = [(text, ink, behind) for text, ink, behind in found
             if contrast(ink, behind) < LEAST_CONTRAST]  # fmt: skip
    assert not faint
    paper = show(name, width, scheme).execute_script(
        "return getComputedStyle(document.documentElement).backgroundColor"
    )
    assert (luminance(paper) < 0.2) is (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kernels_have_colours_and_numbers_of_their_own(show: Any, scheme: str) -> None:
    found = show("problem", 1280, scheme).execute_script(
        "return [...document.querySelectorAll('g.node')].map((e) => ["
        "e.querySelector('.mark').textContent,"
        "getComputedStyle(e.querySelector('.box')).fill,"
        "getComputedStyle(e.querySelector('.badge')).fill])"
    )
    by_mark: dict[str, set[tuple[str, str]]] = {}
    for mark, fill, badge in found:
        by_mark.setdefault(mark, set()).add((fill, badge))
    assert {*by_mark} == {"in", "1", "Py", "2"}
    assert all(len(colours) == 1 for colours in by_mark.values())
    for which in (0, 1):
        assert len({next(iter(colours))[which] for colours in by_mark.values()}) == 4


def test_nodes_stand_apart_and_hold_their_text(show: Any) -> None:
    page = show("problem")
    boxes = page.execute_script(BOXES, "g.node .box")
    assert len(boxes) == 9
    tops = [box[1] for box in boxes]
    assert tops == sorted(tops), "what is read stands above what reads it"
    for words in page.execute_script(BOXES, "g.node text"):
        assert any(
            left <= words[0] and top <= words[1] and words[2] <= right and words[3] <= bottom
            for left, top, right, bottom in boxes
        )


def marks(page: Any, plot: str, of: str) -> list[tuple[str, float, float]]:
    """What is said of each mark of a plot, and the pixels of its middle."""
    found: list[tuple[str, float, float]] = page.execute_script(MARKS, f"{plot} g[class^={of}]")
    return found


UNITS = {"TFLOP/s": 1e12, "GFLOP/s": 1e9}


def number(text: str) -> float:
    """`10 GFLOP/s` or `0.5x` -> the number."""
    value, _, unit = text.removesuffix("x").partition(" ")
    return float(value) * UNITS.get(unit, 1.0)


def pixel_of(page: Any, plot: str, axis: str, value: float) -> float:
    """Where a number lies on a logarithmic axis, as its first and last tick say."""
    which = 1 if axis == "x" else 2
    ticks = sorted((number(mark[0]), mark[which]) for mark in marks(page, plot, f"{axis}tick_"))
    (low, begin), (high, end) = ticks[0], ticks[-1]
    return begin + (end - begin) * math.log(value / low) / math.log(high / low)


def test_the_roofline_has_its_points_where_the_numbers_say(show: Any) -> None:
    page, plot = show("problem"), "svg[aria-label^='Roofline']"
    found = marks(page, plot, "point-")
    assert len(found) == 4, "two kernels, a call of PyTorch's, and a whole call"
    known = {step.name: step for step in planned().kernels}
    first = planned().kernels[0].name
    machine = TARGETS["cpu"].machine
    for title, x, y in found:
        step = known.get(title.partition(":")[0].removesuffix(" of PyTorch's"))
        if step is None:
            assert title.startswith("a whole call: ")
            seconds, steps = 0.002, [*known.values()]
        else:
            seconds, steps = 40e-6 if step.name == first else step.predicted_s, [step]
        moved, computed = (sum(getattr(s, what) for s in steps) for what in ("bytes", "flops"))
        assert x == pytest.approx(pixel_of(page, plot, "x", computed / moved), abs=1.0)
        assert y == pytest.approx(pixel_of(page, plot, "y", computed / seconds), abs=1.0)
        if step is not None and step.name != first:  # what is predicted lies on a roof
            best = min(max(rates_of(machine)), computed / moved * machine.copy_bytes_per_s)
            assert y == pytest.approx(pixel_of(page, plot, "y", best), abs=1.0)


def test_ratios_lie_where_the_numbers_say(show: Any) -> None:
    page, plot = show("suite"), "svg[aria-label^='How many']"
    found = marks(page, plot, "ratio-")
    ratios = [number(title.partition(": ")[2].partition(",")[0]) for title, _, _ in found]
    assert ratios == [0.5, 1.0, 2.0, 12.0], "losses first"
    assert [y for _, _, y in found] == sorted(y for _, _, y in found)
    intervals = page.execute_script(BOXES, "g[class^=interval-] path")
    for ratio, (_, x, _), (left, _, right, _) in zip(ratios, found, intervals, strict=True):
        assert x == pytest.approx(pixel_of(page, plot, "x", ratio), abs=1.0)
        assert left == pytest.approx(pixel_of(page, plot, "x", ratio / 1.1), abs=2.5)
        assert right == pytest.approx(pixel_of(page, plot, "x", ratio * 1.1), abs=2.5)


@pytest.mark.parametrize("how", ["click", "Enter"])
def test_a_heading_sorts(show: Any, how: str) -> None:
    page = show("suite")

    def column(number: int) -> list[str]:
        rows = page.find_elements("css selector", "table.sortable tbody tr")
        return [row.find_elements("tag name", "td")[number].text for row in rows]

    def press(name: str) -> str:
        (heading,) = (
            one
            for one in page.find_elements("css selector", "table.sortable th")
            if one.text.rstrip(" ▲▼") == name
        )
        button = heading.find_element("tag name", "button")
        page.execute_script("arguments[0].scrollIntoView({inline: 'center'})", button)
        if how == "click":
            button.click()
        else:
            page.execute_script("arguments[0].focus()", button)
            webdriver.ActionChains(page).send_keys("\ue007").perform()
        return str(heading.get_attribute("aria-sort"))

    before = column(0)
    assert press("ratio") == "ascending"
    assert column(0) == ["slow", "same", "fast", "nets/fastest", *before[:2]]
    assert press("ratio") == "descending"
    assert column(0) == ["nets/fastest", "fast", "same", "slow", *before[:2]]
    assert press("problem") == "ascending"
    assert column(0) == sorted(column(0), key=str.casefold)
    said = page.find_elements("css selector", "th[aria-sort]")
    assert len(said) == 1, "of one column at a time"


@pytest.mark.parametrize("name", PAGES)
def test_a_keyboard_reaches_every_control(show: Any, name: str) -> None:
    page = show(name, 400)
    wanted = page.execute_script(REACHABLE)
    assert len(wanted) > 10
    reached = set()
    for _ in range(len(wanted) + 5):
        webdriver.ActionChains(page).send_keys("\ue004").perform()
        reached.add(page.switch_to.active_element.id)
    assert {element.id for element in wanted} <= reached


def test_a_node_leads_to_its_kernel(show: Any) -> None:
    page = show("problem")
    link = page.find_element("css selector", "g.hue1").find_element("xpath", "..")
    page.execute_script("arguments[0].focus()", link)
    webdriver.ActionChains(page).send_keys("\ue007").perform()
    assert page.current_url.endswith("#kernel-2")
    (box,) = page.execute_script(BOXES, "#kernel-2")
    assert 0 <= box[1] < 800


@pytest.mark.parametrize("name", PAGES)
def test_no_request_leaves_the_file(show: Any, name: str) -> None:
    page = show(name)
    asked = []
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert [url for url in asked if not url.startswith("data:")] == [page.current_url]
    assert page.get_log("browser") == []
