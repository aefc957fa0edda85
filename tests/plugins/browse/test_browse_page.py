"""The page of lmk browse in a real browser: Chromium, driven by selenium."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import lmkcli
from tests import tiny

webdriver = pytest.importorskip("selenium.webdriver")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium and chromium-driver of Debian are not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
Lmk = Callable[..., Any]
HOSTILE = (
    "<script>alert(1)</script> <img src=x onerror=alert(2)> "
    "\u202eevil\u2066 \u05e9\u05dc\u05d5\u05dd \U0001f44b"
)
LONG = "word " * 20_000
CONTROLS = ("button", "link", "textbox", "searchbox", "combobox", "listbox", "checkbox", "image")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def report(lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of three runs over a collection with hostile texts; the first has passages."""
    monkeypatch.chdir(tmp_path)
    folder = tiny.collection(tmp_path / "small", 40, 12)
    queries = [
        json.loads(line) for line in (folder / "queries.jsonl").read_text().strip().split("\n")
    ]
    queries[1]["text"], queries[2]["text"] = f"{HOSTILE} landmark", LONG
    tiny.write_jsonl(folder / "queries.jsonl", queries)
    docs = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().strip().split("\n")]
    docs[0] |= {"title": HOSTILE, "text": f"{HOSTILE} landmark. {LONG}"}
    tiny.write_jsonl(folder / "corpus.jsonl", docs)
    lmk("index", folder, "--kind", "bm25", "--unit", "chunk", "--gran", "sentence", "-o", "bm25")
    lmk("search", "bm25", folder, "-k", 30, "--tag", "bm25", "-o", "bm25.trec")
    rankings = lmkcli.read_run("bm25.trec").rankings
    for name, step in (("back", -1), ("odd", 2)):
        lines = [
            f"{query} Q0 {doc} 0 {99 - rank} {name}\n"
            for query, ranking in rankings.items()
            for rank, doc in enumerate(ranking.doc_ids[::step])
        ]
        Path(f"{name}.trec").write_text("".join(lines))
    words = ["--qrels", folder, "-k", 10, "-m", "nDCG@10", "-m", "R@100"]
    lmk("browse", "bm25.trec", "back.trec", "odd.trec", *words, "-o", "report.html")
    return tmp_path / "report.html"


class View:
    """What the tests read of the open page, and what they do with it."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver, self.address = driver, path.as_uri()

    def open(self, fragment: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(self.address + fragment)

    def js(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def texts(self, selector: str) -> list[str]:
        return [each.text for each in self.all(selector)]

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def choose(self, name: str, value: str) -> None:
        self.driver.execute_script(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event('change'))", name, value,
        )  # fmt: skip

    def press(self, key: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(key).perform()

    def order(self) -> list[str]:
        return self.texts("#queries .id")

    def differences(self) -> list[float]:
        return [
            float(text.replace("−", "-").replace("±", ""))
            for text in self.texts("#queries .line > span:last-child")
        ]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the page: it follows a change of its address a moment later."""
        from selenium.common import exceptions
        from selenium.webdriver.support.ui import WebDriverWait

        between = (exceptions.StaleElementReferenceException, IndexError)  # an element is replaced
        WebDriverWait(self.driver, 300, 0.02, between).until(lambda _: condition())

    def shows(self, query_id: str) -> None:
        """Wait until the page shows a query."""
        self.until(lambda: f"query {query_id} ·" in self.texts("#detail .facts")[0])

    def check(self) -> None:
        """No message in the console, no alert, and a name for every control."""
        assert self.driver.get_log("browser") == []
        tree = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        controls = [node for node in tree if node.get("role", {}).get("value") in CONTROLS]
        assert len(controls) > 10
        assert [node for node in controls if not node.get("name", {}).get("value")] == []

    def fits(self) -> bool:
        return bool(self.js("document.documentElement.scrollWidth <= innerWidth"))


@pytest.fixture
def view(browser: Any, report: Path) -> View:
    browser.set_window_size(1300, 900)
    view = View(browser, report)
    view.open()
    return view


def test_sorting_filters_and_links(view: View) -> None:
    losses = view.differences()
    assert losses == sorted(losses)
    assert min(losses) < 0 < max(losses)
    view.choose("sort", "gain")
    assert view.differences() == sorted(losses, reverse=True)
    view.choose("show", "worse")
    assert view.differences() == sorted((each for each in losses if each < 0), reverse=True)
    assert f"{sum(each < 0 for each in losses)} of 12 queries" in view.texts("#count")[0]
    here = view.js("location.hash")
    view.open(here)  # the address has the whole view
    assert view.differences() == sorted((each for each in losses if each < 0), reverse=True)
    view.choose("show", "all")
    view.choose("property", "length")
    view.choose("group", "0")
    grouped = view.order()
    assert 0 < len(grouped) < 12
    view.all("#reset")[0].click()
    assert len(view.order()) == 12
    view.all("#text")[0].send_keys("q7")
    assert view.order() == ["q7"]
    view.open("#q=q5")
    view.shows("q5")
    view.all("#queries a")[3].click()
    view.shows(view.order()[3])
    view.until(lambda: view.js("document.querySelectorAll('#queries [aria-current]').length") == 1)
    view.driver.back()
    view.shows("q5")
    view.open("#q=" + quote("no such <b>query"))
    assert "no such <b>query" in view.texts("#detail")[0]
    view.choose("a", "1")
    view.choose("b", "1")
    assert view.differences() == [0.0] * 12
    view.check()


def test_rankings_passages_and_the_keyboard(view: View) -> None:
    view.open("#q=q3")
    heads = view.texts(".columns h4")
    assert [head.split()[:2] for head in heads] == [["A", "bm25.trec"], ["B", "back.trec"]]
    assert len(view.all(".columns section:first-child .hit")) == 10
    assert view.all(".columns section:first-child .hit mark")
    assert not view.all(".columns section:last-child .hit mark")
    assert view.all(".hit.relevant .badge.relevant")
    view.all("#detail button[aria-pressed]")[0].click()
    assert len(view.all(".columns h4")) == 3
    order = view.order()
    view.press("j")
    view.shows(order[order.index("q3") + 1])
    view.press("k")
    view.shows("q3")
    view.press("x")
    view.until(lambda: view.texts(".columns h4")[0].startswith("B bm25.trec"))
    view.press("/")
    view.until(lambda: view.js("document.activeElement.id") == "text")
    view.press("\ue00c")  # Escape
    view.press("?")
    view.until(lambda: view.js("document.getElementById('help').open"))
    view.all("#close-help")[0].click()
    view.check()


def test_hostile_texts_are_shown_as_texts(view: View) -> None:
    view.open("#q=q1")
    assert "<script>alert(1)</script> <img src=x" in view.texts("#detail h2")[0]
    assert view.js("document.querySelectorAll('img, #detail script').length") == 0
    for more in view.all("#detail button[aria-expanded]"):
        more.click()
    view.open("#q=q2")
    assert "100,000 characters" in view.texts("#detail h2")[0]
    assert view.fits()
    view.check()


def test_narrow_and_dark(view: View) -> None:
    view.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert view.js("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    view.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        view.open()
        assert view.fits()
        assert not view.all("#detail")[0].is_displayed()
        view.all("#queries a")[0].click()
        view.until(lambda: not view.all("#list")[0].is_displayed())
        assert view.fits()
        view.check()
        view.all("#detail .back")[0].click()
        view.until(lambda: view.all("#list")[0].is_displayed())
    finally:
        view.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        view.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
