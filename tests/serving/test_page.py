"""The page in a real browser: search, compare, read, hostile texts, keyboard, narrow and dark."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny
from tests.cli.conftest import Lmk
from tests.serving.conftest import Process, Start

pytestmark = pytest.mark.slow
webdriver: Any = pytest.importorskip("selenium.webdriver")
HOSTILE = (
    '<img src=x onerror="document.title=1"><script>document.title=1</script> '
    "\u202ertl \U0001f468\u200d\U0001f469"
)
LONG = " ".join(tiny.sentence(number, 30) for number in range(60))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; skips without it."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    opened = webdriver.Chrome(options, service)
    yield opened
    opened.quit()


@pytest.fixture
def page(
    browser: Any,
    start: Start,
    lmk: Lmk,
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
) -> Process:
    """A server of two indexes with a hostile and a long document, open in the browser."""
    records = [
        {"_id": "hostile/<b>#1", "title": HOSTILE, "text": f"rivers {HOSTILE} water"},
        {"_id": "long", "title": "", "text": "\U0001f30d " + LONG},
        {"_id": "third", "title": "Third", "text": "copper conducts electricity"},
    ]
    tiny.write_jsonl(tmp_path / "docs.jsonl", records)
    words = ["--unit", "chunk", "--gran", 16, "--window", 64]
    lmk(
        "encode",
        tmp_path / "docs.jsonl",
        "-m",
        tiny_model("bert"),
        *words,
        "-o",
        tmp_path / "dense",
    )
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "-o", tmp_path / "bm25")
    server = start(tmp_path / "dense", tmp_path / "bm25")
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(server.url)
    return server


def wait(browser: Any, condition: Callable[[], Any]) -> Any:
    """The value of a condition as soon as it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60).until(lambda _: condition())


def many(browser: Any, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", selector)
    return found


def search(browser: Any, query: str) -> None:
    """Set the query without typing each character, and submit it."""
    box = browser.find_element("id", "query")
    browser.execute_script("arguments[0].value = arguments[1]", box, query)
    browser.execute_script("document.getElementById('search').requestSubmit()")
    wait(browser, lambda: "documents in" in browser.find_element("id", "status").text)


def press(browser: Any, *keys: str) -> None:
    """Press keys, wherever the focus is."""
    for key in keys:
        webdriver.ActionChains(browser).send_keys(key).perform()


def test_search_compare_and_read(browser: Any, page: Process) -> None:
    from selenium.webdriver.common.keys import Keys

    wait(browser, lambda: "dense: 3 documents" in browser.find_element("id", "status").text)
    browser.find_element("id", "query").send_keys("rivers carry water" + Keys.ENTER)
    wait(browser, lambda: len(many(browser, ".columns section")) == 3)
    names = [each.text for each in many(browser, ".columns h2")]
    assert names == ["dense (exact)", "bm25 (bm25)", "fused (rrf)"]
    assert len(many(browser, "section:first-child .hits > li")) == 3
    assert many(browser, "section:first-child .bar > *")
    assert many(browser, ".hits mark")
    many(browser, "#views input[value=fused]")[0].click()
    wait(browser, lambda: len(many(browser, ".columns section")) == 2)
    press(browser, "j", "j")
    assert browser.switch_to.active_element == many(browser, ".hits a")[1]
    long = next(each for each in many(browser, ".hits a") if each.text == "long")
    long.send_keys(Keys.ENTER)
    mark = wait(browser, lambda: many(browser, "article mark.passage"))[0]
    text = browser.find_element("class name", "whole").get_property("textContent")
    assert text == "\U0001f30d " + LONG
    assert mark.text.strip() in LONG
    assert mark.is_displayed()
    segments = many(browser, "article .bar button")
    assert len(segments) > 5
    assert len(many(browser, "article .bar .best")) == 1
    browser.execute_script("arguments[0].click()", segments[2])
    wait(browser, lambda: browser.find_element("css selector", "article mark").text != mark)
    press(browser, Keys.ESCAPE)
    wait(browser, lambda: many(browser, ".columns section"))
    browser.back()
    wait(browser, lambda: many(browser, "article"))
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def test_hostile_texts_are_only_text(browser: Any, page: Process) -> None:
    for query in (
        f"rivers {HOSTILE}",
        "rivers \u202e\U0001f468\u200d\U0001f469",
        "water " * 16_666,
    ):
        search(browser, query)
        assert "lmk search" in browser.title
        assert not many(browser, "main img, main script")
        assert browser.find_element("id", "query").get_property("value") == query.strip()
    search(browser, "rivers water")
    hostile = next(each for each in many(browser, ".hits a") if "onerror" in each.text)
    browser.execute_script("arguments[0].click()", hostile)
    wait(browser, lambda: many(browser, "article h1"))
    assert browser.find_element("tag name", "h1").get_property("textContent") == HOSTILE
    assert not many(browser, "main img, main script")
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def test_every_control_has_a_name_and_narrow_and_dark_windows_work(
    browser: Any, page: Process
) -> None:
    search(browser, "rivers water")
    for control in many(browser, "input, button, a, [role=img]"):
        if control.is_displayed():
            assert control.accessible_name, control.get_property("outerHTML")
    light = browser.find_element("tag name", "body").value_of_css_property("background-color")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    dark = browser.find_element("tag name", "body").value_of_css_property("background-color")
    assert dark != light
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 340, "height": 700, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 0
        lefts = {each.rect["x"] for each in many(browser, ".columns section")}
        assert len(lefts) == 1  # the columns are below each other
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_page_asks_for_the_token(browser: Any, start: Start, indexes: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    server = start(indexes / "bm25", LMK_SERVE_TOKEN="s3cret")
    browser.get(server.url)
    wait(browser, lambda: browser.find_element("id", "token").is_displayed())
    browser.find_element("id", "token").send_keys("s3cret" + Keys.ENTER)
    wait(browser, lambda: "bm25: 60 documents" in browser.find_element("id", "status").text)
