"""Large answers: bounded, one at a time, and made while the event loop serves all other clients."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lmkcli.data.collection import Doc
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.plugins.serve import answers, limits, work
from lmkcli.plugins.serve.answers import Answers
from lmkcli.plugins.serve.batching import Busy
from lmkcli.plugins.serve.guard import json_fault
from lmkcli.plugins.serve.indexes import SearchPlan
from lmkcli.plugins.serve.limits import Limits
from lmkcli.plugins.serve.schema import SearchRequest
from lmkcli.plugins.serve.work import _EMPTY, BadRequest, Found, FoundDocument, SearchWork
from lmkcli.retrieval.index import Passage
from lmkcli.text import query_words


class Service:
    """Finds `k` documents of some characters for each query, after some seconds."""

    def __init__(self, each: int = 10, seconds: float = 0.0, **given: Any) -> None:
        self.limits = Limits(**given)
        self.indexes = type("Indexes", (), {"served": {"i": None}, "rerankers": []})()
        self.docs = [Doc(f"d{number}", "a" * each) for number in range(limits.MAX_K)]
        self.seconds, self.running, self.most = seconds, 0, 0

    async def run(
        self, work: SearchWork, queries: list[str], check: Callable[[list[Found]], None]
    ) -> list[Found]:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        docs = self.docs[: work.k]
        ranking = Ranking([doc.id for doc in docs], np.zeros(len(docs), np.float32))
        found = [Found(ranking, [FoundDocument(doc.id, 0.0, doc) for doc in docs])] * len(queries)
        check(found)
        return found


def search(service: Service, number: int = 1, **given: Any) -> list[Any]:
    """The results, or the errors, of a number of equal requests at the same time."""

    async def run() -> list[Any]:
        one: Any = Answers(service)  # type: ignore[arg-type]
        request = SearchRequest(**given)
        return await asyncio.gather(
            *(one.search(request) for _ in range(number)), return_exceptions=True
        )

    return asyncio.run(run())


def test_a_large_answer_is_made_outside_of_the_event_loop(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def spied(call: Callable[..., Any]) -> Callable[..., Any]:
        def spy(*words: Any) -> Any:
            threads.append(threading.current_thread().name)
            return call(*words)

        return spy

    for name in ("_result", "json_bytes"):
        monkeypatch.setattr(answers, name, spied(getattr(answers, name)))
    request = {"query": ["rivers", "bakers"], "index": "bm25", "text": "full"}
    small = client.post("/v1/search", json=request).json()
    assert len(threads) == 4
    assert not any("large" in name for name in threads)
    threads.clear()
    monkeypatch.setattr(answers, "LARGE_CHARACTERS", 1)
    assert client.post("/v1/search", json=request).json() == small
    assert len(threads) == 4
    assert all("large" in name for name in threads)


@pytest.mark.parametrize("form", ["float", "base64"])
def test_large_embeddings_are_made_outside_of_the_event_loop(
    client: Any, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    request = {"model": "docs", "input": ["rivers", "bakers"], "encoding_format": form}
    small = client.post("/v1/embeddings", json=request).json()
    assert [each["index"] for each in small["data"]] == [0, 1]
    threads: list[str] = []
    code = answers.json_bytes

    def spied(value: Any) -> bytes:
        if "embedding" in value:
            threads.append(threading.current_thread().name)
        return code(value)

    monkeypatch.setattr(answers, "json_bytes", spied)
    monkeypatch.setattr(answers, "LARGE_CHARACTERS", 1)
    assert client.post("/v1/embeddings", json=request).json() == small
    assert len(threads) == 2
    assert all("large" in name for name in threads)


def test_large_requests_are_answered_one_after_another() -> None:
    service = Service(seconds=0.01)
    large = search(service, 5, query=["a"] * 4, k=answers.LARGE_HITS // 4 + 1)
    assert [len(each) for each in large] == [4] * 5
    assert service.most == 1
    search(service, 5, query=["a"] * 4, k=answers.LARGE_HITS // 4)
    assert service.most == 5
    service.most = 0
    search(service, 5, query=["a"] * 256, k=1000, output="run")
    assert service.most == 5  # reads no texts


def test_a_large_request_waits_for_the_time_of_an_answer() -> None:
    found = search(Service(seconds=3.0, answer_seconds=5.4), 3, query="a", k=1000)
    assert sorted(type(each).__name__ for each in found) == ["Busy", "Busy", "list"]
    assert any("large requests" in str(each) for each in found if isinstance(each, Busy))


def test_whole_texts_of_an_answer_are_bounded() -> None:
    service = Service(each=1000, characters=20_000)
    assert len(search(service, query=["a", "b"], k=10, text="full")[0]) == 2
    (error,) = search(service, query=["a", "b", "c"], k=10, text="full")
    assert isinstance(error, BadRequest)
    assert "20,000 characters" in str(error)
    assert len(search(service, query=["a", "b", "c"], k=100)[0]) == 3  # snippets are short


def test_titles_and_passages_of_an_answer_are_bounded() -> None:
    service = Service(characters=20_000)
    service.docs = [Doc(doc.id, "a", "t" * 1000) for doc in service.docs]
    assert len(search(service, query=["a", "b"], k=10)[0]) == 2
    (error,) = search(service, query=["a", "b", "c"], k=10)
    assert isinstance(error, BadRequest)
    passage = Passage(0, 1, 0, 1000, "p" * 1000)
    found = Found(_EMPTY, [FoundDocument("d", 0.0, None, passage)] * 10)
    one = SearchWork(SearchPlan(("i",)), 10, texts=False, characters=20_000)
    one.check([found] * 2)
    with pytest.raises(BadRequest, match="20,000 characters"):
        one.check([found] * 3)


def test_texts_are_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with too many characters stops between two reads."""
    read: list[int] = []

    class Found100:
        """An index in which each query finds 100 documents of 1,000 characters."""

        info = type("Info", (), {"meaning": ""})()

        def search(self, queries: Any, k: int) -> Run:
            ids = [f"d{number:03}" for number in range(100)]
            ranking = ranked(ids, np.arange(100, dtype=np.float32))
            return Run({query.id: ranking for query in queries})

        def texts(self, ids: list[str]) -> dict[str, Doc]:
            read.append(len(ids))
            return {name: Doc(name, "a" * 1000) for name in ids}

    context: Any = type("Context", (), {"pipeline": lambda *_: Found100()})()
    monkeypatch.setattr(work, "_AT_ONCE", 10)

    def run(characters: int) -> int:
        read.clear()
        one = SearchWork(SearchPlan(("i",)), 100, passages=False, whole=True, characters=characters)
        return sum(each is not None for each in one.run(context, ["a", "b"]))

    assert run(200_000) == 2
    assert read == [10] * 10
    with pytest.raises(BadRequest, match="30,000 characters"):
        run(30_000)
    assert read == [10] * 4
    assert run(0) == 2
    assert read == [10] * 10


def test_a_large_answer_pauses_as_long_as_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pauses, the event loop would wait for the interpreter's lock at each system call."""
    paused: list[float] = []
    monkeypatch.setattr(answers.time, "sleep", paused.append)
    monkeypatch.setattr(answers, "TURN_SECONDS", 1e-9)
    assert len(search(Service(each=5000), query=["a"] * 7, k=20)[0]) == 7
    assert len(paused) == 7 * (20 + 1) + 1
    assert 0 == paused[-1] < max(paused) <= 2 * answers.TURN_SECONDS


def test_a_snippet_comes_from_the_first_characters_that_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "MAX_READ", 1000)
    for place, there in ((500, True), (2000, False)):
        doc = Doc("d", "a " * (place // 2) + "river " + "b " * 1000)
        found = Found(Ranking(["d"], np.zeros(1, np.float32)), [FoundDocument("d", 0.0, doc)])
        *_, result = answers._result("river", found, "snippet")
        assert ("river" in json.loads(result or b"")["hits"][0]["text"]) is there


def test_results_of_several_large_answers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with one result does not wait for all results of another."""
    made: list[str] = []
    code = answers._result

    def spied(query: str, found: Found, shown: str) -> Iterator[bytes | None]:
        made.append(query)
        return code(query, found, shown)

    monkeypatch.setattr(answers, "_result", spied)
    monkeypatch.setattr(answers, "TURN_SECONDS", 1e-9)

    async def run() -> None:
        one: Any = Answers(Service(each=30_000))  # type: ignore[arg-type]
        many = SearchRequest(query=["many"] * 50, k=2, index="i")
        few = SearchRequest(query="few", k=2, index="i")
        await asyncio.gather(one.search(many), one.search(few))

    asyncio.run(run())
    assert len(made) == 51
    assert made.index("few") < 5


def test_words_are_marked_in_the_start_of_long_texts() -> None:
    docs = [Doc(f"d{n}", "green " + "x" * (answers.MAX_MARKED // 2) + f" tea{n}") for n in range(4)]
    found = Found(
        Ranking([doc.id for doc in docs], np.zeros(4, np.float32)),
        [FoundDocument(doc.id, 0.0, doc) for doc in docs],
    )
    *hits, result = answers._result("tea0 tea1 tea3 green", found, "full")
    assert hits == [None] * 4
    shown = json.loads(result or b"")
    assert shown["words"] == ["green", "tea0"]
    assert [hit["text"] for hit in shown["hits"]] == [doc.text for doc in docs]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"a":' * 190_000, "nested"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(8_000)) + b"}", "keys"),
        (b'{"query":' + b"[],[" * 240_000, "values"),
        (b'{"query":' + b"[],[" * 8_000, "nested"),
        (b"[" + b"[] " * 9_000, "lists"),
        (b"[" + b"[]," * 300_000, "values"),
        (b'["' + b"[" * 900_000 + b'"]', ""),
        (b"[]," * 40 + b'"' + b'\\"' * 500_000, ""),
        (b"[]," * 40 + b'"' + b'\\"' * 500_000 + b"\\", ""),
        (b'["' + b'","'.join([b"["] * 8_000) + b'"]', ""),
        (b'["' + b'","'.join([b"["] * 200_000) + b'"]', "values"),
        (b"[" + b"1," * 400_000 + b"1]", "values"),
        (b'{"query": "' + b"," * 900_000 + b'"}', ""),
    ],
)
def test_a_hostile_body_is_refused_at_its_first_fault(body: bytes, fault: str) -> None:
    start = time.thread_time()
    found = json_fault(body)
    assert fault in found
    assert bool(found) == bool(fault)
    assert time.thread_time() - start < (0.1 if fault else 2)


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
