"""The page in a real browser: search, compare, read, hostile texts, keyboard, narrow and dark."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny
from tests.conftest import Lmk
from tests.plugins.serve.conftest import Process, Start

pytestmark = pytest.mark.slow
webdriver: Any = pytest.importorskip("selenium.webdriver")
HUNDRED_THOUSAND = ("water " * 16_667)[:100_000]
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

    return WebDriverWait(browser, 300).until(lambda _: condition())


def main(browser: Any) -> str:
    """The text of the main part of the page."""
    text: str = browser.find_element("id", "main").text
    return text


def many(browser: Any, selector: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", selector)
    return found


def search(browser: Any, query: str) -> None:
    """Set the query without typing each character, submit it, and wait for its hits.

    The status is cleared first: the page follows its address a moment later, with the last hits until then.
    """
    browser.execute_script(
        "document.getElementById('query').value = arguments[0];"
        "document.getElementById('status').textContent = '';"
        "document.getElementById('search').requestSubmit()",
        query,
    )
    wait(browser, lambda: "documents in" in browser.find_element("id", "status").text)


def displayed(browser: Any) -> list[str]:
    """The accessible names of all visible controls and regions; AssertionError if one has no name."""
    selector = "input, button, a, main section, form, fieldset, [role]:not([role=status])"
    controls = [each for each in many(browser, selector) if each.is_displayed()]
    for control in controls:
        assert control.accessible_name.strip(), control.get_property("outerHTML")
    return [control.accessible_name for control in controls]


def contrasts(browser: Any, *selectors: str) -> list[float]:
    """The contrast ratios of the texts of some elements with the page (WCAG 2), 1 … 21."""
    return [browser.execute_script(_CONTRAST, selector) for selector in selectors]


_CONTRAST = """
const light = (color) => {
  const [red, green, blue] = color.match(/[0-9.]+/g).map((each) => {
    const part = each / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const text = light(getComputedStyle(document.querySelector(arguments[0])).color);
const page = light(getComputedStyle(document.body).backgroundColor);
return (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05);
"""


def errors(browser: Any) -> list[Any]:
    """The errors in the console of the browser since the last look."""
    return [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def press(browser: Any, *keys: str) -> None:
    """Press keys, wherever the focus is."""
    for key in keys:
        webdriver.ActionChains(browser).send_keys(key).perform()


def test_search_compare_and_read(browser: Any, page: Process) -> None:
    from selenium.webdriver.common.keys import Keys

    wait(browser, lambda: "dense: by meaning of passages, 3 documents" in main(browser))
    assert "bm25: by words, 3 documents" in main(browser)
    assert displayed(browser)
    browser.find_element("id", "query").send_keys("rivers carry water" + Keys.ENTER)
    wait(browser, lambda: "documents in" in browser.find_element("id", "status").text)
    assert [each.text for each in many(browser, ".columns h2")] == ["fused all indexes together"]
    browser.find_element("id", "compare").click()
    wait(browser, lambda: len(many(browser, ".columns section")) == 3)
    names = [each.text for each in many(browser, ".columns h2")]
    assert names == [
        "fused all indexes together",
        "dense by meaning of passages",
        "bm25 by words",
    ]
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
    assert mark.text.strip() in text
    assert mark.is_displayed()
    bars = many(browser, "article .bars button")
    assert len(bars) > 5
    assert len(many(browser, "article .bars .best")) == 1
    heights = [bar.find_element("tag name", "span").rect["height"] for bar in bars]
    scores = [float(bar.accessible_name.rpartition(" ")[2]) for bar in bars]
    assert np.corrcoef(heights, scores)[0, 1] > 0.99
    lefts = [bar.rect["x"] for bar in bars]
    assert lefts == sorted(lefts)
    best = mark.text
    bars[2].click()
    third = browser.find_element("css selector", "article mark").text
    assert third != best
    press(browser, Keys.ARROW_RIGHT)
    assert browser.switch_to.active_element == bars[3]
    assert browser.find_element("css selector", "article mark").text not in (best, third)
    press(browser, Keys.ESCAPE)
    wait(browser, lambda: many(browser, ".columns section"))
    browser.back()
    wait(browser, lambda: many(browser, "article"))
    assert not errors(browser)


def test_the_page_shows_what_each_landmark_contributes(
    browser: Any, start: Start, lmk: Lmk, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    docs, whole = tmp_path / "docs.jsonl", tmp_path / "whole"
    tiny.write_jsonl(docs, [{"_id": "long", "title": "", "text": "\U0001f30d " + LONG}])
    recipe = ["--pool", "lmk", "--gran", 16, "--dtype", "fp32"]
    lmk("encode", docs, "-m", tiny_model("bert"), *recipe, "-o", whole)
    server = start(whole)
    browser.get("about:blank")
    browser.get(server.url)
    search(browser, "rivers carry water")
    score = float(browser.find_element("class name", "score").text)
    many(browser, ".hits a")[0].click()
    bars = wait(browser, lambda: many(browser, "article .bars button"))
    assert len(bars) > 2
    given = [float(bar.accessible_name.rpartition(" ")[2]) for bar in bars]
    assert sum(given) == pytest.approx(score, abs=1e-4 * len(bars))
    status = browser.find_element("id", "status").text
    best = re.fullmatch(r"Chunk (\d+) of (\d+) contributes most", status)
    assert best is not None
    assert int(best[2]) == len(bars)
    assert given[int(best[1]) - 1] == max(given)  # several bars may show the same four digits
    text = browser.find_element("class name", "whole").get_property("textContent")
    assert text == "\U0001f30d " + LONG
    assert browser.find_element("css selector", "article mark.passage").text.strip() in text
    assert displayed(browser)
    assert not errors(browser)


def test_hostile_texts_are_only_text(browser: Any, page: Process) -> None:
    for query in (
        f"rivers {HOSTILE}",
        "rivers \u202e\U0001f468\u200d\U0001f469",
        HUNDRED_THOUSAND,
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
    facts = browser.find_element("css selector", "article .facts + h1 + .facts")
    assert "hostile/<b>#1" in facts.text
    assert facts.value_of_css_property("unicode-bidi") == "isolate"
    assert "lmk search" in browser.title
    assert not errors(browser)


def test_every_control_has_a_name_and_narrow_and_dark_windows_work(
    browser: Any, page: Process
) -> None:
    search(browser, "rivers water")
    browser.find_element("id", "compare").click()
    wait(browser, lambda: len(many(browser, ".columns section")) == 3)
    names = displayed(browser)
    assert {
        "Compare",
        "Search",
        "New search",
        "dense",
        "bm25",
        "fused",
        "Indexes to compare",
    } <= set(names)
    assert any(name.startswith("Passage ") for name in names)
    seen = (".hits a", ".text", ".facts", ".score", ".hits mark", "footer", "h2 span")
    texts = [name for name in seen if name != ".hits mark"]  # a mark has a ground of its own
    assert min(contrasts(browser, *texts)) >= 4.5
    light = browser.find_element("tag name", "body").value_of_css_property("background-color")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    dark = browser.find_element("tag name", "body").value_of_css_property("background-color")
    assert dark != light
    assert min(contrasts(browser, *texts)) >= 4.5
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 340, "height": 700, "deviceScaleFactor": 1, "mobile": True},
    )
    try:
        controls = [browser.find_element("id", each).rect for each in ("query", "compare")]
        assert controls[0]["y"] == controls[1]["y"], "Compare is in the row of the query"
        assert controls[0]["width"] > 80
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.execute_script(wide) <= 0
        lefts = {each.rect["x"] for each in many(browser, ".columns section")}
        assert len(lefts) == 1  # the columns are below each other
        long = next(each for each in many(browser, ".hits a") if each.text == "long")
        browser.execute_script("arguments[0].click()", long)
        mark = wait(browser, lambda: many(browser, "article mark.passage"))[0]
        assert browser.execute_script(wide) <= 0
        top = browser.find_element("class name", "top")
        assert top.rect["height"] < 350  # half of the window is left for the text
        place = "return arguments[0].getBoundingClientRect()"
        covered = browser.execute_script(place, top)["bottom"]
        assert covered <= browser.execute_script(place, mark)["top"] < 700
        assert "Back to the results" in displayed(browser)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert not errors(browser)


def test_the_page_asks_for_the_token(browser: Any, start: Start, indexes: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    server = start(indexes / "bm25", LMK_SERVE_TOKEN="s3crét")
    browser.get(server.url)
    wait(browser, lambda: browser.find_element("id", "token").is_displayed())
    assert {"Token of this server", "Use token"} <= set(displayed(browser))
    box = browser.find_element("id", "token")
    box.send_keys("wrong\u65e5" + Keys.ENTER)
    wait(browser, lambda: "token" in browser.find_element("id", "status").text)
    box.clear()
    box.send_keys("s3crét" + Keys.ENTER)
    wait(browser, lambda: "bm25: by words, 60 documents" in main(browser))
    server.stop()
    browser.find_element("id", "query").send_keys("water" + Keys.ENTER)
    wait(browser, lambda: "still running" in browser.find_element("id", "status").text)


def test_the_page_of_a_folder_of_documents(
    browser: Any,
    start: Start,
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """The fused hits alone, with their places; a document with its passage, its words and its file."""
    folder = tmp_path / "my notes"
    folder.mkdir()
    manual = "# Turbine manual\n\n## Start\n\nRelease the lock.\n\n## Stop\n\nTo **stop** it, press red.\n"
    (folder / "turbine manual.md").write_text(manual)
    (folder / "evil.html").write_text("<title>Evil page</title><p>Rivers<script>alert(1)</script>")
    server = start(folder, "--model", tiny_model("bert"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(server.url)
    examples = wait(browser, lambda: many(browser, ".examples a"))
    assert "Turbine manual Start" in [each.text for each in examples]
    search(browser, "how do I stop the turbine")
    assert [each.text.split()[0] for each in many(browser, ".columns h2")] == ["my"]
    hit = next(each for each in many(browser, ".hits li") if "Turbine manual" in each.text)
    assert "turbine manual.md · Stop · lines 3–9" in hit.text
    assert "Stop\nTo stop it, press red." in hit.find_element("class name", "text").text
    assert {each.text.lower() for each in hit.find_elements("tag name", "mark")} == {"stop"}
    hit.find_element("css selector", ".line a").click()
    wait(browser, lambda: many(browser, "article .passage"))
    whole = browser.find_element("class name", "whole").get_property("textContent")
    assert whole == manual.removeprefix("# Turbine manual\n\n").rstrip("\n")
    assert {each.text.lower() for each in many(browser, ".passage mark")} == {"stop"}
    assert not errors(browser)
    file = browser.find_element("link text", "open the file").get_property("href")
    browser.get(file)
    assert "# Turbine manual" in browser.find_element("tag name", "body").text
    browser.get(f"{server.url}/v1/files/evil.html")
    assert "<script>" in browser.find_element("tag name", "body").text, "shown as text, not run"


STORY = (
    "At six o'clock, n'est pas: jack\u2019s कहानी ended in C++ (twice), 2**3 + 4**5 and __init__ and "
    "handlers[name](event), where **bold** and `code` are [Markdown](https://example.org). "
    "北京是中国的首都。 İSTANBUL and CO₂. Mail jane.doe@example.co.uk $5.00, not 5 c'est."
)
LIST = "\n".join(["Animals:", *(f"- number {number}" for number in range(28)), "- penguin"])
LINE = "Short.\n" + "word after word " * 60 + "narwhal"


@pytest.fixture
def stories(browser: Any, start: Start, lmk: Lmk, tmp_path: Path) -> Process:
    """A server of an index whose name is that of the fusion, and of another one, in the browser."""
    records = [("story", "Story", STORY), ("list", "List", LIST), ("line", "Line", LINE)]
    tiny.write_jsonl(
        tmp_path / "docs.jsonl",
        [{"_id": name, "title": title, "text": text} for name, title, text in records],
    )
    (tmp_path / "more.jsonl").write_text('{"_id": "story", "text": "Another tale, told twice."}\n')
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "-o", tmp_path / "fused")
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", "--k1", 2, "-o", tmp_path / "k2")
    chunked = ["--unit", "chunk", "--gran", 320]
    lmk("index", tmp_path / "docs.jsonl", "--kind", "bm25", *chunked, "-o", tmp_path / "chunks")
    server = start(tmp_path / "chunks", tmp_path / "fused", tmp_path / "k2")
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(server.url)
    return server


MARKED = {
    "o'clock jack\u2019s twice": {"o'clock", "jack\u2019s", "twice"},
    "कहानी __init__ power": {"कहानी", "__init__"},
    "vitamin C": {"C"},
    "rock 'n' roll ended": {"ended"},
    "jane.doe@example.co.uk": {"jane.doe", "example.co.uk"},
    "$5.00": {"5.00"},
    "北京 istanbul co₂": {"北京", "İSTANBUL", "CO₂"},
}


def test_the_words_of_a_question_are_marked(browser: Any, stories: Process) -> None:
    for query, marked in MARKED.items():
        search(browser, query)
        assert {each.text for each in many(browser, ".hits mark")} == marked
        shown = many(browser, ".hits .text")[0].text
        assert "2**3 + 4**5 and __init__ and handlers[name](event), where bold and code" in shown
        many(browser, ".hits .line a")[0].click()
        wait(browser, lambda: many(browser, "article .passage mark"))
        assert {each.text for each in many(browser, "article .passage mark")} == marked
        assert not errors(browser)


def test_a_hit_shows_the_word_that_was_found(browser: Any, stories: Process) -> None:
    """Also after many lines, or far behind the start of its line."""
    for word in ("penguin", "narwhal"):
        search(browser, word)
        (mark,) = many(browser, ".hits mark")
        (text,) = many(browser, ".hits .text")
        assert mark.text == word
        assert mark.location["y"] < text.location["y"] + text.size["height"]


def test_an_index_may_have_the_name_of_the_fusion(browser: Any, stories: Process) -> None:
    search(browser, "penguin")
    browser.find_element("id", "compare").click()
    wait(browser, lambda: len(many(browser, ".columns section")) == 4)
    names = [each.get_property("value") for each in many(browser, "#views input")]
    assert names == ["fused (all)", "chunks", "fused", "k2"]
    browser.get("about:blank")
    browser.get(f"{stories.url}/#q=penguin&view=gone")
    wait(browser, lambda: many(browser, ".hits mark"))


def test_indexes_of_different_files_are_not_fused(
    browser: Any, stories: Process, start: Start, tmp_path: Path, lmk: Lmk
) -> None:
    """The same id is another document there."""
    lmk("index", tmp_path / "more.jsonl", "--kind", "bm25", "-o", tmp_path / "more")
    server = start(tmp_path / "fused", tmp_path / "more")
    browser.get(server.url)
    search(browser, "twice")
    assert [each.text for each in many(browser, ".columns h2")] == [
        "fused by words",
        "more by words",
    ]
    first, second = many(browser, ".hits .text")
    assert "ended in C++" in first.text
    assert "Another tale" in second.text


def test_an_address_may_have_a_question_before_the_hash(browser: Any, page: Process) -> None:
    browser.get(f"{page.url.rstrip('/')}/?q=copper+conducts")
    wait(browser, lambda: "documents in" in browser.find_element("id", "status").text)
    assert many(browser, ".hits .line a")[0].text == "Third"
    assert browser.current_url.endswith("/#q=copper+conducts")
    assert errors(browser) == []
