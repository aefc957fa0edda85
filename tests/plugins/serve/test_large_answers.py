"""Large answers: the event loop, which serves all clients, does not wait until they are made."""

import threading
from typing import Any

import pytest

from lmkcli.plugins.serve import answers, app
from lmkcli.text import query_words


def test_a_large_answer_is_made_outside_of_the_event_loop(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    make, render = answers._result, app.Json.render

    def made(*words: Any) -> Any:
        threads.append(threading.current_thread().name)
        return make(*words)

    def rendered(self: Any, content: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return render(self, content)

    monkeypatch.setattr(answers, "_result", made)
    monkeypatch.setattr(app.Json, "render", rendered)
    request = {"query": ["rivers", "bakers"], "index": "bm25", "text": "full"}
    small = client.post("/v1/search", json=request).json()
    assert len(threads) == 3
    assert not any("large" in name for name in threads)
    threads.clear()
    monkeypatch.setattr(answers, "LARGE", 1)
    assert client.post("/v1/search", json=request).json() == small
    assert len(threads) == 3
    assert all("large" in name for name in threads)


def test_words_of_many_texts_are_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    english = query_words._english()

    def analysed(text: str) -> list[str]:
        seen.append(text)
        return english(text)

    for question in ("green tea", "black tea"):
        words = query_words.QueryWords(question, analysed)  # type: ignore[arg-type]
        assert words.forms(["the teas were green", "a black tea " + "x" * 50]) == sorted(
            word for word in ("teas", "tea", question.split()[0]) if word
        )
    usual = [text for text in seen if len(text) < 40]
    assert len(usual) == len(set(usual))
