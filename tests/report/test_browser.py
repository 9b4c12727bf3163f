"""The HTML pages in a real browser: no network, no error, tables that sort, plots that draw."""

from __future__ import annotations

import shutil

import pytest

import optsched

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed"
    ),
    pytest.mark.xdist_group("browser"),
]

PHONE, DESKTOP = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write one page of each kind, with the number of plots that it draws."""
    folder = tmp_path_factory.mktemp("pages")
    instance = optsched.family("exponential", n=40, seed=1)
    optsched.compare(instance, ["fcfs", "area", "mc-sf"]).to_html(folder / "compare.html")
    cluster = optsched.Cluster(workers=4, slots=4)
    trace = optsched.family("lognormal", n=200, seed=1)
    optsched.compare_cluster(
        trace, cluster, ["fcfs", "bf-io"], steps=60, record_loads=True
    ).to_html(folder / "cluster.html")
    regret = optsched.regret(
        "family:exponential", ["fcfs", "area"], loads=[0.8], horizons=[100, 200, 400], seeds=3
    )
    regret.to_html(folder / "regret.html")
    optsched.reproduce_into(["sorted-f-example-1"], folder / "out", quick=True, workers=1)
    (folder / "out" / "index.html").rename(folder / "reproduce.html")
    return folder


def open_page(browser, path, size):
    """Open a page anew and wait until its plots are drawn."""
    browser.get_log("browser"), browser.get_log("performance")
    browser.set_window_size(*size)
    browser.get(path.as_uri())
    browser.execute_async_script(
        "const done = arguments[0];"
        "const wait = () => document.querySelectorAll('.plot:empty').length"
        " ? setTimeout(wait, 50) : requestAnimationFrame(() => done()); wait();"
    )


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("kind", ["compare", "cluster", "regret", "reproduce"])
def test_a_page_opens_without_network_or_errors(browser, pages, kind, size):
    open_page(browser, pages / f"{kind}.html", size)
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
        and ('"url":"http' in entry["message"] or '"url":"ws' in entry["message"])
    ]
    assert not requests
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(p => "
        "[p.querySelectorAll('.trace, .bars, .legendtoggle').length, p.clientWidth])"
    )
    if kind == "reproduce":
        assert browser.execute_script(
            "return [...document.images].every(i => i.complete && i.naturalWidth > 100)"
        )
    else:
        assert drawn
    assert all(traces > 0 and width > 250 for traces, width in drawn)
    # Nothing makes the page itself wider than the screen: wide tables scroll on their own.
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0


@pytest.mark.parametrize("kind", ["compare", "cluster", "regret"])
def test_a_click_or_a_key_sorts_the_table(browser, pages, kind):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, pages / f"{kind}.html", DESKTOP)
    values = (
        "return [...document.getElementById('policies').tBodies[0].rows]"
        ".map(row => Number(row.cells[1].dataset.value))"
    )
    head = browser.execute_script(
        "return document.getElementById('policies').tHead.rows[0].cells[1].firstElementChild"
    )
    head.click()
    upward = browser.execute_script(values)
    assert upward == sorted(upward)
    assert len(upward) > 1
    head.send_keys(Keys.ENTER)
    assert browser.execute_script(values) == sorted(upward, reverse=True)
    sort = "return document.getElementById('policies').tHead.rows[0].cells[1].ariaSort"
    assert browser.execute_script(sort) == "descending"


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_text_can_be_read_in_both_schemes(browser, pages, scheme):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    open_page(browser, pages / "compare.html", DESKTOP)
    colours = browser.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
    )
    ink, page = (sum(map(int, colour[4:-1].split(","))) / 3 for colour in colours)
    assert (ink > page) == (scheme == "dark")
    assert abs(ink - page) > 150


def test_every_control_has_a_name(browser, pages):
    open_page(browser, pages / "compare.html", DESKTOP)
    nameless = browser.execute_script(
        "return [...document.querySelectorAll('button, select, a')].filter(e => "
        "!(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.dataset.title)).length"
    )
    assert nameless == 0
