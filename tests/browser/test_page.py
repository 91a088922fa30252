"""The page in a browser, without a network: it answers first, leads to each run, filters, fits a phone and paper."""

import base64
import csv
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pandas as pd
import pytest
from factory import Result, made_up, realistic
from scipy.stats import kruskal

from ddp_hpc.analysis import figures, tables
from ddp_hpc.analysis.report import page as report
from ddp_hpc.runs.schema import RUN

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: the Debian packages chromium and chromium-driver"
)

HEADINGS = ["What was found", "How sure that is", "What may be published"]
NULL = [name for name in RUN.names if "gpu" in name or "energy" in name or "bytes" in name]
CELLS = "#runs .dt-scroll-body tbody tr td:nth-child({})"


def train(spec):
    if spec.batch_size == 16:
        return Result("crashed", "rank 1: boom")
    environment = {"A_NAME_" * 9 + str(spec.world_size): "a,value,without,any,space," * 20}
    return replace(
        realistic(spec),
        provenance={
            "software": {"torch": "2.13.0"},
            "environment": environment,
            "null_columns": dict.fromkeys(NULL, "no GPU is used"),
        },
    )


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


def test_a_figure_opens_in_the_whole_window_zooms_moves_and_closes(browser):
    """By its button and keys, as by the wheel; what is beneath the pointer stays there, and Escape leads back."""
    button = browser.find_element("css selector", "#figure-speedup figcaption button")
    press_enter(browser, button)
    wait(lambda: browser.find_elements("css selector", "#zoom[open] .picture"))
    box = "const [w, s] = [document.querySelector('#zoom .picture'), document.querySelector('#zoom .stage')];"
    place = f"{box} const b = w.getBoundingClientRect(); return [b.left, b.top, b.width, s.clientWidth, s.clientHeight]"
    fitting = wait(lambda: (now := browser.execute_script(place))[2] > 100 and now)
    figure = browser.find_element("id", "figure-speedup").find_element("tag name", "img")
    ratio = float(figure.get_attribute("naturalHeight")) / float(figure.get_attribute("naturalWidth"))
    assert max(fitting[2] / fitting[3], ratio * fitting[2] / fitting[4]) == pytest.approx(0.94, abs=0.01)

    def pressed(keys):
        webdriver.ActionChains(browser).send_keys(keys).perform()
        return browser.execute_script(place)

    assert pressed("+++")[2] == pytest.approx(1.25**3 * fitting[2], abs=1)
    before = browser.execute_script(place)
    assert pressed("\ue014")[0] == pytest.approx(before[0] - 60, abs=1)  # arrow to the right
    assert pressed("0") == pytest.approx(fitting, abs=1)
    x, y = fitting[0] + 50, fitting[1] + 40
    wheel = "document.querySelector('#zoom .stage').dispatchEvent(new WheelEvent('wheel', {deltaY: -300, clientX: x, "
    browser.execute_script(f"const [x, y] = arguments; {wheel} clientY: y, cancelable: true}}))", x, y)
    larger = browser.execute_script(place)
    assert larger[2] == pytest.approx(2 * fitting[2], abs=1)
    assert [x - larger[0], y - larger[1]] == pytest.approx([2 * 50, 2 * 40], abs=1)
    webdriver.ActionChains(browser).send_keys("\ue00c").perform()
    assert not browser.find_element("id", "zoom").is_displayed()
    assert browser.execute_script("return document.activeElement.textContent") == "Enlarge"


def test_two_fingers_a_drag_and_a_double_click_zoom_and_move_a_figure(browser):
    press_enter(browser, browser.find_element("css selector", "#figure-speedup figcaption button"))
    wait(lambda: browser.find_elements("css selector", "#zoom[open] .picture"))
    script = (
        "const b = document.querySelector('#zoom .picture').getBoundingClientRect(); return [b.left, b.top, b.width]"
    )
    _, _, width = wait(lambda: (now := browser.execute_script(script))[2] > 100 and now)

    def touch(kind, *places):
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(places)]
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", (400, 400))
    touch("touchStart", (400, 400), (500, 400))
    touch("touchMove", (400, 400), (600, 400))
    touch("touchEnd")
    pinched = wait(lambda: (now := browser.execute_script(script))[2] != width and now)
    assert pinched[2] == pytest.approx(2 * width, rel=0.01)

    stage = browser.find_element("css selector", "#zoom .stage")
    mouse = webdriver.ActionChains(browser).move_to_element(stage)
    mouse.click_and_hold().move_by_offset(25, -15).release().perform()
    dragged = wait(lambda: (now := browser.execute_script(script))[0] != pinched[0] and now)
    assert dragged == pytest.approx([pinched[0] + 25, pinched[1] - 15, pinched[2]], abs=1)

    webdriver.ActionChains(browser).move_to_element(stage).double_click().perform()
    doubled = wait(lambda: (now := browser.execute_script(script))[2] != dragged[2] and now)
    assert doubled[2] == pytest.approx(2 * dragged[2], abs=1)
    webdriver.ActionChains(browser).send_keys("\ue00c").perform()


def test_a_figure_that_was_closed_while_it_was_dragged_does_not_follow_the_pointer_when_it_is_opened_again(browser):
    press_enter(browser, browser.find_element("css selector", "#figure-speedup figcaption button"))
    stage = wait(lambda: browser.find_elements("css selector", "#zoom[open] .stage"))[0]
    webdriver.ActionChains(browser).move_to_element(stage).click_and_hold().move_by_offset(30, 0).perform()
    webdriver.ActionChains(browser).send_keys("\ue00c").perform()  # Escape
    webdriver.ActionChains(browser).release().perform()
    place = "return document.querySelector('#zoom .picture').getBoundingClientRect().left"
    press_enter(browser, browser.find_element("css selector", "#figure-speedup figcaption button"))
    wait(lambda: browser.find_elements("css selector", "#zoom[open] .picture"))
    before = wait(lambda: browser.execute_script(place))
    webdriver.ActionChains(browser).move_to_element(stage).move_by_offset(40, 0).perform()

    assert browser.execute_script(place) == pytest.approx(before, abs=1)
    webdriver.ActionChains(browser).send_keys("\ue00c").perform()


def test_a_line_of_a_figure_is_hidden_and_shown_again_by_its_entry_in_the_legend(browser):
    """By a click, which a drag that begins there is not, and by the keyboard; the other lines stay."""
    press_enter(browser, browser.find_element("css selector", "#figure-speedup figcaption button"))
    wait(lambda: browser.find_elements("css selector", "#zoom[open] .picture"))
    figure = browser.find_element("css selector", "#zoom .picture").shadow_root
    keys = wait(lambda: figure.find_elements("css selector", "[role=button]"))
    names = [key.get_attribute("aria-label").removeprefix("Show ").replace(" ", "-") for key in keys]
    series = [figure.find_elements("css selector", f"[id^='series.{name}.']") for name in names]
    first = webdriver.ActionChains(browser).move_to_element(keys[0])

    def shown():
        return [{one.value_of_css_property("visibility") for one in parts} for parts in series]

    visible = [{"visible"} for _ in names]
    assert len(names) > 1
    assert shown() == visible
    first.click().perform()
    assert shown() == [{"hidden"}, *visible[1:]]
    assert keys[0].get_attribute("aria-pressed") == "false"
    first.click_and_hold().move_by_offset(30, 0).release().perform()
    assert shown() == [{"hidden"}, *visible[1:]]
    press_enter(browser, keys[0])
    assert shown() == visible
    webdriver.ActionChains(browser).send_keys("\ue00c").perform()


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


def resize(driver, width, height=900):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wait(lambda: driver.execute_script("return innerWidth") == width)


# what reaches beyond the page, or is squeezed to nothing; tables may scroll, each in its own box
MISPLACED = """
    const wide = document.documentElement.clientWidth;
    const box = element => element.getBoundingClientRect();
    const boxed = element => element.closest(arguments[0]);
    const row = ['DD', 'DT', 'P', 'LI'];
    const seen = [...document.querySelectorAll('header *, main *')].filter(e => e.checkVisibility() && !boxed(e));
    const outside = seen.filter(e => box(e).right > wide + 1 || box(e).left < -1);
    const squeezed = seen.filter(e => row.includes(e.tagName) && box(e).width < 60 && box(e).height > 120);
    return [...outside, ...squeezed].map(e => `${e.outerHTML.slice(0, 80)}: ${box(e).left} to ${box(e).right}`);
"""


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_nothing_is_beyond_its_box_but_in_tables_that_scroll(browser, width):
    resize(browser, width)

    assert wait(lambda: browser.execute_script("return document.documentElement.scrollWidth") <= width)
    assert browser.execute_script(MISPLACED, ".scroll, .dt-scroll, pre, .skip, details:not([open])") == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_first_screen_has_the_answer_how_sure_it_is_and_what_may_be_published(browser):
    resize(browser, 1280, 800)
    browser.execute_script("scrollTo(0, 0)")
    ends = browser.execute_script(
        "return [...document.querySelectorAll('#answer h2, #answer li')]"
        ".map(e => [e.innerText, e.getBoundingClientRect().bottom])"
    )

    assert [text for text, _ in ends if text in HEADINGS] == HEADINGS
    assert max(bottom for _, bottom in ends) <= 800
    said = " ".join(text for text, _ in ends)
    assert "2 ranks train in" in said
    assert "times as fast (95 %: " in said
    assert "wins: loss area" in said
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_every_link_goes_somewhere(browser, page):
    links = browser.execute_script("return [...document.links].map(link => link.getAttribute('href'))")
    ids = set(browser.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)"))

    within = {link[1:] for link in links if link.startswith("#")}
    assert {"run-1", "winners", "publish"} <= within
    assert within <= ids
    files = {link for link in links if not link.startswith("#")}
    assert {"../tables/winners.csv", "../tables/winners.tex", "../figures/speedup.pdf"} <= files
    assert [file for file in files if not (page.parent / file).is_file()] == []


def test_a_link_to_a_run_shows_its_spec_curve_phases_files_and_how_to_train_it_again(browser, page):
    cards = json.loads(browser.execute_script("return document.getElementById('run-cards').textContent"))
    winner = browser.find_element("css selector", "#winners td.of-runs a")
    number = int(winner.get_attribute("hash").removeprefix("#run-"))
    run = cards["runs"][number - 1]
    browser.execute_script("arguments[0].click()", winner)
    card = wait(lambda: browser.find_elements("css selector", "details.run[open]"))[0]

    assert card.get_attribute("id") == f"run-{number}"
    for text in (
        run["point"],
        f"ddp-hpc train {run['id']} --again",
        "learning_rate",
        "samples_per_s",
        f"{run['id']}.log",
    ):
        assert text in card.text
    assert card.find_element("css selector", "svg .curve").get_attribute("d").count("L") > 50
    assert "backward" in card.find_element("css selector", ".parts").text
    records = [link.get_attribute("href") for link in card.find_elements("css selector", "dd a")]
    assert [file.rpartition("/")[2] for file in records] == ["run.parquet", "steps.parquet"]
    assert all(Path(unquote(urlparse(file).path)).is_file() for file in records)
    webdriver.ActionChains(browser).send_keys("\ue00c").perform()  # Escape
    wait(lambda: not browser.find_elements("css selector", "details.run[open]"))


def test_a_run_that_crashed_has_its_reason_and_no_curve(browser):
    browser.execute_script("location.hash = 'run-1'")
    card = wait(lambda: browser.find_elements("css selector", "details.run[open]"))[0]

    assert "crashed: rank 1: boom" in card.text
    assert card.find_elements("css selector", "svg, dd a") == []
    browser.execute_script("location.hash = ''")


def test_a_table_can_be_taken_as_csv_and_latex(browser):
    browser.execute_script("window.save = (text, name) => { window.saved = [name, text]; }")
    buttons = browser.find_elements("css selector", "[data-table=winners-table] button")
    assert [button.text for button in buttons] == ["Copy", "CSV", "LaTeX"]
    browser.execute_script("arguments[0].click()", buttons[1])
    name, text = browser.execute_script("return saved")
    rows = list(csv.reader(text.splitlines()))

    assert name == "made_up-winners.csv"
    assert "winner" in rows[0]
    assert "runs" not in rows[0]
    assert len(rows) == 1 + len(browser.find_elements("css selector", "#winners-table tbody tr"))
    latex = browser.execute_script("return latexOf([['a_b', 'x'], ['1', '50 %']])")
    assert "\\begin{tabular}{rl}" in latex
    assert "a\\_b & x \\\\" in latex
    assert "50 \\%" in latex


def test_a_range_of_an_axis_filters_the_table_of_runs(browser):
    info = browser.find_element("css selector", "#runs .dt-info")
    axis = next(
        n
        for n, text in enumerate(browser.find_elements("css selector", "#search-plot .name"))
        if text.text == "learning_rate"
    )
    grip = browser.find_elements("css selector", "#search-plot .grip")[axis]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", grip)
    height = grip.size["height"]
    drag = webdriver.ActionChains(browser).move_to_element_with_offset(grip, 0, round(0.49 * height)).click_and_hold()
    drag.move_by_offset(0, round(-0.2 * height)).release().perform()  # from the end, 0.1, not to the middle, 0.5
    wait(lambda: "of 12 entries (filtered from 36" in info.text)

    assert browser.find_element("id", "search-kept").text == "12 of 36 runs kept."
    assert set(cells(browser, column(browser, "learning_rate")[0])) == {"0.1"}
    browser.find_element("css selector", "#search-axes button").click()
    wait(lambda: "of 36 entries" in info.text and "filtered" not in info.text)


def test_the_page_says_how_much_each_parameter_tells_of_the_result_that_decides(browser, page):
    """As Kruskal and Wallis have it, among the runs that are kept; those that diverged rank last."""
    runs = pd.read_parquet(page.parents[1] / "tables" / "runs.parquet")
    diverged = runs["status"] == "diverged"
    told = runs[runs["loss_area_loss_s"].notna() | diverged]
    areas = told["loss_area_loss_s"].mask(diverged, np.inf)

    def share(name):
        groups = [areas[rows.index] for _, rows in told.groupby(name)]
        return max(0, (kruskal(*groups).statistic - len(groups) + 1) / (len(told) - len(groups)))

    said = browser.find_element("id", "importance").text
    assert f"How much each parameter tells of loss_area_loss_s, in {len(told)} runs" in said
    rows = [row.text.split() for row in browser.find_elements("css selector", "#importance-rows tr")]
    shown = {name: float(percent) for name, percent, _ in rows}
    assert shown == pytest.approx({name: 100 * share(name) for name in shown}, abs=0.6)
    assert {"learning_rate", "world_size"} <= shown.keys()
    assert list(shown.values()) == sorted(shown.values(), reverse=True)
    assert max(shown.values()) > 10


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


def test_paper_has_whole_tables_and_nothing_to_press(browser):
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    resize(browser, 718)  # A4 between margins of a centimetre
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    wait(lambda: len(cells(browser, 1)) == 36)
    winners = browser.execute_script(
        "return [...document.querySelectorAll('#winners tbody tr')].filter(row => row.offsetHeight).length"
    )

    assert winners == len(browser.find_elements("css selector", "#winners tbody tr")) == 4
    assert browser.execute_script(MISPLACED, "pre, .skip, #cards") == []
    shown = browser.execute_script(
        "return [...document.querySelectorAll('input, button')].filter(e => e.checkVisibility()).length"
    )
    assert shown == 0
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert printed.startswith(b"%PDF")
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    wait(lambda: len(cells(browser, 1)) == 25)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
