"""The page in a browser, without a network: it loads without a complaint, sorts, filters, and fits a phone."""

import base64
import json
import shutil
import time
from dataclasses import replace

import pytest
from factory import Result, made_up, realistic

from ddp_hpc.analysis import figures, tables
from ddp_hpc.analysis.report import page as report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: the Debian packages chromium and chromium-driver"
)

CELLS = "#runs .dt-scroll-body tbody tr td:nth-child({})"


def train(spec):
    if spec.batch_size == 16:
        return Result("crashed", "rank 1: boom")
    environment = {"A_NAME_" * 9 + str(spec.world_size): "a,value,without,any,space," * 20}
    return replace(realistic(spec), provenance={"software": {"torch": "2.13.0"}, "environment": environment})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    study_runs = made_up(folder, train)
    for name in study_runs.study.table_names:
        tables.make(name, study_runs, folder / "tables")
    for name in study_runs.study.figure_names:
        figures.make(name, study_runs.study, folder / "tables", folder / "figures")
    return report.make(study_runs, folder)


@pytest.fixture(scope="module")
def browser(page):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    # the proxy is a port where nobody listens: whatever the page asks the network for, fails and is logged
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--proxy-server=127.0.0.1:9"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))  # nothing is downloaded
    driver.set_window_size(1280, 1000)
    driver.get(page.as_uri())
    wait(lambda: cells(driver, 1))
    yield driver
    driver.quit()


def wait(condition):
    """Wait until `condition` holds; fail after 20 s."""
    end = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < end, "waited for 20 s"
        time.sleep(0.05)
    return found


def cells(driver, column):
    script = "return [...document.querySelectorAll(arguments[0])].map(cell => cell.textContent)"
    return driver.execute_script(script, CELLS.format(column))


def column(driver, name):
    """Return the number of a column of the table of runs, from 1, and its sort button."""
    heads = driver.find_elements("css selector", "#runs .dt-scroll-head thead th")
    names = [head.get_attribute("textContent") for head in heads]
    return names.index(name) + 1, heads[names.index(name)].find_element("css selector", "[role=button]")


def press_enter(driver, element):
    driver.execute_script("arguments[0].focus()", element)
    webdriver.ActionChains(driver).send_keys("\ue007").perform()


def test_the_page_asks_nobody_and_complains_of_nothing(browser):
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    assert asked
    assert {url.split(":")[0] for url in asked} <= {"file", "data", "blob"}
    assert browser.get_log("browser") == []


def test_figures_are_seen(browser, page):
    sizes = browser.execute_script("return [...document.images].map(i => [i.naturalWidth, i.naturalHeight])")

    assert len(sizes) == len(list((page.parents[1] / "figures").glob("*.svg"))) == 6
    assert all(width > 100 and height > 50 for width, height in sizes)


def test_a_column_sorts_by_the_keyboard_and_as_numbers(browser):
    number, button = column(browser, "samples_per_s")
    before = cells(browser, number)
    press_enter(browser, button)
    rising = wait(lambda: (now := cells(browser, number)) != before and now)
    press_enter(browser, button)
    falling = wait(lambda: (now := cells(browser, number)) != rising and now)

    known = [float(cell) for cell in falling if cell]
    assert known == sorted(known, reverse=True)
    assert len(known) == 24
    assert "" in [*rising, *falling]  # crashed: blank, not 0


def test_a_column_filters_and_the_search_finds(browser):
    info = browser.find_element("css selector", "#runs .dt-info")
    filters = browser.find_elements("css selector", "#runs .dt-scroll-foot input")
    status = next(field for field in filters if field.get_attribute("placeholder") == "status")
    status.send_keys("crashed")
    wait(lambda: "of 12 entries (filtered from 36" in info.text)
    assert set(cells(browser, column(browser, "status")[0])) == {"crashed"}

    search = browser.find_element("css selector", "#runs input[type=search]")
    search.send_keys("none")
    wait(lambda: "of 3 entries" in info.text)
    for field in (status, search):
        field.send_keys("\b" * 10)
    wait(lambda: "of 36 entries" in info.text and "filtered" not in info.text)


@pytest.mark.parametrize("width", [390, 1280])
def test_only_tables_scroll_sideways(browser, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    wait(lambda: browser.execute_script("return document.documentElement.scrollWidth") <= width)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(browser, scheme):
    """Contrast of the text with the page, and of a cell of the table of runs with its row: at least 7 (WCAG AAA)."""
    wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
    is_dark = "return document.documentElement.classList.contains('dark')"
    wait(lambda: browser.execute_script(is_dark) == (scheme == "dark"))
    colours = browser.execute_script(
        """
        const behind = e => { while (e) { const c = getComputedStyle(e).backgroundColor;
            if (!/, 0\\)$|transparent/.test(c)) return c; e = e.parentElement } return 'rgb(255, 255, 255)' };
        return ['h2', 'main p', '#winners td', '.note', '#runs .dt-scroll-body td'].map(
            s => { const e = document.querySelector(s); return [s, getComputedStyle(e).color, behind(e)] })
        """
    )

    for selector, ink, paper in colours:
        enough = 4.5 if selector == ".note" else 7
        assert contrast(ink, paper) >= enough, (scheme, selector, ink, paper)


def contrast(one, other):
    def luminance(colour):
        channels = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_the_page_prints(browser):
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])

    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
