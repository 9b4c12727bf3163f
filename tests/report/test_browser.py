"""The HTML pages in a real browser: no network, no error, and all of them can be used."""

import shutil

import pytest
from installed import ENGINE, PAPERS, with_papers

import optsched
from optsched.policies import PriorityPolicy

if PAPERS:
    from optsched_papers import reproduce_into

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed"
    ),
    pytest.mark.xdist_group("browser"),
    pytest.mark.slow,
]

PHONE, DESKTOP = (390, 844), (1280, 900)
KINDS = ["compare", "clock", "cluster", "regret", *with_papers("reproduce")]
OTHERS = ["hostile", "optimum", "run"]
HOSTILE = "<script>document.title = 'taken over'</script>" + 4 * " and a name that goes on"

# Give what `look` says of every plot as soon as all are drawn.
DRAWN = """
const plots = [...document.querySelectorAll('.plot')], done = arguments[0];
const next = at => {
  if (at === plots.length) return done(plots.map(p =>
    [p.querySelectorAll('.trace, .bars').length, p.clientWidth]));
  if (plots[at].querySelector('.main-svg')) return next(at + 1);
  plots[at].scrollIntoView();  // until it stays: Chromium may still restore where it was
  setTimeout(() => next(at), 20);
};
next(0);
"""


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(600)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Write one page of each kind, and one of unexpected names."""
    folder = tmp_path_factory.mktemp("pages")
    instance = optsched.family("exponential", n=40, seed=1)
    optsched.compare(instance, ["fcfs", "area", "mc-sf"]).to_html(folder / "compare.html")
    policies = [PriorityPolicy(HOSTILE, HOSTILE, lambda given: given.areas)]
    policies += [
        PriorityPolicy(f"{HOSTILE} {number}", "", lambda given: given.peaks) for number in range(19)
    ]
    optsched.compare(instance, policies).to_html(folder / "hostile.html")
    timed = optsched.family("exponential", n=40, seed=1, rate=6, seconds_per_step=1e-3)
    known = {"clock": "llama-2-7b-a100", "intervals": "relative:0.5"}
    optsched.compare(timed, ["h-sf", "area-posterior", "a-min"], **known).to_html(
        folder / "clock.html"
    )
    optsched.solve(instance, time_limit=1).to_html(folder / "optimum.html")
    optsched.run(timed, ENGINE, clock="llama-2-7b-a100").to_html(folder / "run.html")
    cluster = optsched.Cluster(workers=4, slots=4)
    trace = optsched.family("lognormal", n=200, seed=1)
    optsched.compare(
        trace, ["fcfs", "bf-io"], cluster=cluster, steps=60, record_loads=True
    ).to_html(folder / "cluster.html")
    regret = optsched.regret(
        "family:exponential", ["fcfs", "area"], loads=[0.8], horizons=[100, 200], seeds=2
    )
    regret.to_html(folder / "regret.html")
    if PAPERS:
        targets = ["sorted-f-example-1", "robust-theorem-5-2", "bf-io-fig-5"]
        reproduce_into(targets, folder / "out", quick=True, jobs=1)
        (folder / "out" / "index.html").rename(folder / "reproduce.html")
    return folder


def open_page(browser, path, size):
    """Open a fresh page, and wait until it is there, for which `get` does not always wait."""
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get_log("browser"), browser.get_log("performance")
    browser.set_window_size(*size)
    browser.execute_script("window.before = true")
    browser.get(path.as_uri())
    opened = "return !window.before && document.readyState === 'complete'"
    WebDriverWait(browser, 600, 0.02).until(lambda _: browser.execute_script(opened))


def open_drawn(browser, pages, kind):
    """Open a page whose plots are all drawn, unless the test before has left it so."""
    path = pages / f"{kind}.html"
    if browser.current_url != path.as_uri() or not browser.execute_script("return window.drawn"):
        open_page(browser, path, DESKTOP)
        browser.execute_async_script(DRAWN)
        browser.execute_script("window.drawn = true")
    pick(browser, "")


def pick(browser, policy):
    from selenium.webdriver.support.select import Select

    Select(browser.find_element("id", "picker")).select_by_value(policy)


@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.long) for kind in OTHERS)]
)
def test_a_page_opens_on_a_phone_without_network_or_errors(browser, pages, kind):
    open_page(browser, pages / f"{kind}.html", PHONE)
    check_opened(browser)
    if kind in KINDS:
        check_names(browser)


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_a_page_opens_on_a_desktop_and_says_and_sorts_what_it_shows(browser, pages, kind):
    open_page(browser, pages / f"{kind}.html", DESKTOP)
    if kind in KINDS:  # what is drawn scrolls the table away
        check_sorting(browser)
    check_opened(browser)
    if kind in KINDS:
        check_spoken(browser)


def check_opened(browser):
    """Nothing is asked of a network, nothing fails, and every plot is drawn."""
    drawn = browser.execute_async_script(DRAWN)
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors
    requests = [
        entry["message"]
        for entry in browser.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
        and ('"url":"http' in entry["message"] or '"url":"ws' in entry["message"])
    ]
    assert not requests
    assert drawn
    assert all(traces > 0 and width > 250 for traces, width in drawn)
    # Nothing makes the page itself wider than the screen: wide tables scroll on their own.
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    assert "taken over" not in browser.title[:20]


def check_sorting(browser):
    """A click or a key on a title sorts the table."""
    from selenium.webdriver.common.keys import Keys

    values = (
        "return [...document.getElementById('policies').tBodies[0].rows]"
        ".map(row => Number(row.cells[2].dataset.value))"
    )
    head = browser.execute_script(
        "return document.getElementById('policies').tHead.rows[0].cells[2].firstElementChild"
    )
    head.click()
    upward = browser.execute_script(values)
    assert upward == sorted(upward)
    assert len(upward) > 1
    head.send_keys(Keys.ENTER)
    assert browser.execute_script(values) == sorted(upward, reverse=True)
    sort = "return document.getElementById('policies').tHead.rows[0].cells[2].ariaSort"
    assert browser.execute_script(sort) == "descending"


def check_spoken(browser):
    """A screen reader is told what everything is."""
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", "").strip())
        for node in nodes
        if not node["ignored"] and "role" in node
    ]
    spoken = {"button", "combobox", "link", "image", "figure", "region", "table", "columnheader"}
    assert {"button", "combobox", "table", "columnheader", "figure"} <= {role for role, _ in named}
    assert [role for role, name in named if role in spoken and not name] == []
    assert browser.execute_script("return document.documentElement.lang") == "en"
    plots = [name for role, name in named if role == "figure" and name.startswith("Plot, ")]
    assert len(plots) == browser.execute_script("return document.querySelectorAll('.plot').length")


def check_names(browser):
    """Names in tables do not break."""
    names = browser.execute_script(
        "return [...document.querySelectorAll('#policies tbody th .whole')]"
        ".map(name => [name.textContent, name.getClientRects().length])"
    )
    assert names
    assert {lines for _, lines in names} == {1}
    width = "return document.querySelector('#policies tbody th').getBoundingClientRect().width"
    assert browser.execute_script(width) < 0.6 * PHONE[0]


def test_plots_are_drawn_when_they_are_scrolled_into_view(browser, pages):
    open_page(browser, pages / "compare.html", PHONE)
    empty = "return document.querySelectorAll('.plot:empty').length"
    assert browser.execute_script(empty) > 0
    browser.execute_async_script(DRAWN)
    assert browser.execute_script(empty) == 0


def test_rows_without_a_value_come_last_in_either_order(browser, pages):
    open_page(browser, pages / "compare.html", DESKTOP)
    first = browser.execute_script(
        "const rows = document.getElementById('policies').tBodies[0].rows;"
        "rows[0].cells[2].dataset.value = ''; return rows[0].cells[0].dataset.value"
    )
    head = browser.find_element("css selector", "#policies th:nth-child(3) button")
    last = "return document.querySelector('#policies tbody tr:last-child th').dataset.value"
    for _ in range(2):
        head.click()
        assert browser.execute_script(last) == first


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *with_papers(("reproduce", "a-l")),
        ("cluster", "fcfs"),
        ("regret", "fcfs"),
        ("compare", "fcfs"),
    ],
)
def test_a_policy_that_is_picked_stands_out_in_all_plots(browser, pages, kind, policy):
    open_drawn(browser, pages, kind)
    lines = (
        "return [...document.querySelectorAll('.plot')].filter(p => !p.layout.meta?.only).map(p =>"
        " p.data.filter(t => t.type === 'scatter' && t.visible && t.x.length > 1).map(t => t.meta)"
        " .map((name, at) => [name, Number(getComputedStyle("
        "   p.querySelectorAll('.scatterlayer .trace')[at].querySelector('.js-line') ?? p"
        " ).strokeOpacity)]))"
    )
    pick(browser, policy)
    drawn = [line for plot in browser.execute_script(lines) for line in plot]
    assert {opacity for name, opacity in drawn if name == policy} == {1}
    others = {opacity for name, opacity in drawn if name not in (policy, None)}
    assert 0.2 in others
    pick(browser, "")
    drawn = [line for plot in browser.execute_script(lines) for line in plot]
    assert {opacity for _, opacity in drawn} == {1}


def test_the_schedule_is_that_of_the_picked_policy(browser, pages):
    open_drawn(browser, pages, "compare")
    shown = (
        "return document.getElementById('schedule').data.filter(t => t.visible).map(t => t.meta)"
    )
    best = set(browser.execute_script(shown))
    for policy in ("fcfs", "area"):
        pick(browser, policy)
        assert set(browser.execute_script(shown)) == {policy}
        marked = "return document.querySelector('.picked th').dataset.value"
        assert browser.execute_script(marked) == policy
    pick(browser, "")
    assert set(browser.execute_script(shown)) == best


def test_a_click_on_a_bar_picks_its_policy_and_another_lets_it_go(browser, pages):
    from selenium.webdriver.common.action_chains import ActionChains

    open_drawn(browser, pages, "compare")
    bars = browser.find_elements("css selector", "#latency .bars .point")
    browser.execute_script("document.getElementById('latency').scrollIntoView()")
    worst = browser.execute_script(
        "return document.getElementById('latency').data.find(t => t.type === 'bar').meta.at(-1)"
    )
    for expected in (worst, ""):
        ActionChains(browser).move_to_element(bars[2]).click().perform()
        found = browser.execute_async_script(
            "setTimeout(() => arguments[0](document.getElementById('picker').value), 500)"
        )
        assert found == expected
        label = browser.find_elements("css selector", "#latency .hoverlayer .hovertext")
        assert label  # numbers are shown below the pointer


def test_a_name_in_the_legend_hides_and_shows_its_line_by_key(browser, pages):
    from selenium.webdriver.common.keys import Keys

    open_drawn(browser, pages, "compare")
    name = browser.find_element("css selector", "section:has(#distribution) .legend button")
    shown = "return document.getElementById('distribution').data.map(t => t.visible)"
    for state in ("false", "true"):
        name.send_keys(Keys.SPACE)
        assert name.get_attribute("aria-pressed") == state
        assert browser.execute_script(shown) == [state == "true", True, True]
    name.click()
    pick(browser, "fcfs")
    assert browser.execute_script(shown) == [True, True, True]  # what is picked is seen
    name.click()
    assert browser.execute_script(shown) == [False, True, True]


def test_plots_over_time_zoom_together(browser, pages):
    open_drawn(browser, pages, "compare")
    ranges = browser.execute_async_script(
        "const [memory, schedule] = ['memory', 'schedule'].map(n => document.getElementById(n));"
        "const done = arguments[0], range = p => p.layout.xaxis.range.map(Math.round);"
        "Plotly.relayout(memory, {'xaxis.range[0]': 3, 'xaxis.range[1]': 9}).then(() => {"
        "  const zoomed = range(schedule);"
        "  return Plotly.relayout(memory, {'xaxis.autorange': true})"
        "    .then(() => done([zoomed, range(schedule)])); })"
    )
    assert ranges[0] == [3, 9]
    assert ranges[1][1] > 9


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("kind", ["compare", *with_papers("reproduce")])
def test_text_can_be_read_in_both_schemes(browser, pages, kind, scheme):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    open_page(browser, pages / f"{kind}.html", DESKTOP)
    browser.execute_async_script(DRAWN)
    contrasts = browser.execute_script(
        """
        const level = colour => {
          const [r, g, b] = colour.match(/[\\d.]+/g).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const page = level(getComputedStyle(document.body).backgroundColor);
        const shades = ['p', '.note', 'th button', '.answer', 'td', 'footer', '.legend button']
          .map(name => document.querySelector(name)).filter(Boolean)
          .map(each => getComputedStyle(each).color)
          .concat([...document.querySelectorAll('.xtick text')].map(t => getComputedStyle(t).fill));
        const ratio = l => (Math.max(l, page) + .05) / (Math.min(l, page) + .05);
        return [page, shades.map(level).map(ratio)];
        """
    )
    page, ratios = contrasts
    assert (page < 0.5) == (scheme == "dark")
    assert min(ratios) >= 4.5  # as WCAG 2 asks of text


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(browser, pages):
    from selenium.webdriver.common.keys import Keys

    def press_tab():
        browser.switch_to.active_element.send_keys(Keys.TAB)
        return browser.execute_script(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.tagName, s.outlineStyle, e.getBoundingClientRect().top]"
        )

    browser.get("about:blank")  # a page that is opened again begins where its reader was
    open_page(browser, pages / "regret.html", DESKTOP)
    assert press_tab()[0] == "SELECT"
    browser.execute_async_script(DRAWN)
    # Some versions of Chromium go on from what a script has scrolled into view; a click is heeded
    # by all of them.
    browser.execute_script("scrollTo({top: 0, behavior: 'instant'})")
    browser.find_element("css selector", "h1").click()
    controls = "return document.querySelectorAll('main button, main select').length"
    reached = []
    for _ in range(browser.execute_script(controls) + 10):
        kind, outline, top = press_tab()
        if kind == "BODY":
            break
        reached.append(kind)
        assert outline != "none"
        assert top > -1
    assert reached[0] == "SELECT"
    assert reached.count("BUTTON") + 1 >= browser.execute_script(controls)


def test_long_names_leave_room_for_the_numbers(browser, pages):
    open_page(browser, pages / "hostile.html", PHONE)
    width = browser.execute_script(
        "return document.querySelector('#policies tbody th').getBoundingClientRect().width"
    )
    assert width < 0.6 * PHONE[0]
    rows = browser.execute_async_script(DRAWN) and browser.execute_script(
        "return new Set([...document.getElementById('latency').querySelectorAll('.bars .point')]"
        ".map(p => p.getBoundingClientRect().top)).size"
    )
    assert rows == 20  # although their names begin alike


@pytest.mark.papers
def test_print_and_no_script_show_pictures(browser, pages):
    page = pages / "reproduce.html"
    pictures = "return [...document.images].filter(i => i.offsetWidth > 200 && i.complete).length"
    open_page(browser, page, DESKTOP)
    assert browser.execute_script(pictures) == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.execute_script(pictures) == 3
    assert not browser.execute_script(
        "return [...document.querySelectorAll('.plot')].some(p => p.offsetWidth)"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    open_page(browser, page, DESKTOP)
    assert browser.execute_script(pictures) == 3
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("kind", ["compare", *with_papers("reproduce")])
def test_a_page_prints_on_white_without_errors(browser, pages, kind):
    import base64

    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    open_page(browser, pages / f"{kind}.html", DESKTOP)
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert len(printed) > 20_000
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    if kind != "reproduce":  # whose pictures are printed
        empty = "return document.querySelectorAll('.plot:empty').length"
        assert browser.execute_script(empty) == 0
