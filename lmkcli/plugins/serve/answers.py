"""Requests to answers as JSON values, for all interfaces of a server (HTTP and MCP)."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from lmkcli.plugins.documents.documents_index import DocumentsIndex
from lmkcli.plugins.serve import schema
from lmkcli.plugins.serve.batching import Busy
from lmkcli.plugins.serve.indexes import SearchPlan
from lmkcli.plugins.serve.limits import MAX_HITS, MAX_MARKED, MAX_READ
from lmkcli.plugins.serve.service import SearchService
from lmkcli.plugins.serve.work import (
    BadRequest,
    DocumentWork,
    EmbedWork,
    Found,
    FoundDocument,
    FoundText,
    SearchWork,
)
from lmkcli.retrieval.fusion import Fusion
from lmkcli.retrieval.index import Passage
from lmkcli.retrieval.open_settings import RerankSettings
from lmkcli.text.query_words import QueryWords

# Hits with texts or passages of a large request. Large requests are answered one after another: so they keep
# one answer in memory, and clients with small requests wait for one of them at most.
LARGE_HITS = 320
# Characters of the documents, or of the numbers, of an answer that is made in a thread of its own. Marking
# the words of a question reads all of them, and the event loop must not wait for that: it serves all clients.
LARGE_CHARACTERS = 50_000
# Seconds in which such a thread works on one answer before it pauses, and continues with others.
TURN_SECONDS = 0.05


class NotFound(Exception):
    """An unknown index, reranker or document."""


class Answers:
    """Requests to answers, for all interfaces of a server (HTTP and MCP)."""

    def __init__(self, service: SearchService) -> None:
        self.service = service
        self._turn = asyncio.Lock()  # of large requests
        # One thread, since more would slow the event loop.
        self._thread = ThreadPoolExecutor(1, "lmk-large-answers")

    def plan(self, request: schema.SearchRequest) -> SearchPlan:
        """Return the stages of a request. Raises NotFound for unknown names, BadRequest for wrong values."""
        given = request.index
        names = [self._name(given)] if given is None or isinstance(given, str) else given
        if len(set(names)) < len(names):
            raise BadRequest("index names an index twice; a fusion needs different indexes")
        for name in names:
            self._name(name)
        fusion = None
        if len(names) > 1:
            fusion = Fusion.parse(request.fuse or "rrf", request.fuse_scale)
            if fusion.weights and len(fusion.weights) != len(names):
                raise BadRequest(f"fuse has {len(fusion.weights)} weights for {len(names)} indexes")
        elif request.fuse is not None:
            raise BadRequest("fuse needs several indexes")
        if request.rerank is None:
            if request.interpolate is not None:
                raise BadRequest("interpolate needs rerank")
            return SearchPlan(tuple(names), fusion)
        rerankers = self.service.indexes.rerankers
        if request.rerank not in rerankers:
            raise NotFound(f"there is no reranker {request.rerank!r}; GET /v1/indexes lists them")
        if request.k > request.rerank_depth:
            raise BadRequest(
                f"k is {request.k}, but only {request.rerank_depth} documents are reranked"
            )
        reranking = RerankSettings(request.rerank_depth, request.interpolate)
        return SearchPlan(tuple(names), fusion, request.rerank, reranking)

    def _name(self, name: str | None) -> str:
        """Return the name of an index, the first by default. Raises NotFound for an unknown one."""
        served = self.service.indexes.served
        if name is None:
            return next(iter(served))
        if name not in served:
            raise NotFound(f"there is no index {name!r}; GET /v1/indexes lists them")
        return name

    async def search(self, request: schema.SearchRequest) -> list[bytes]:
        """Return the JSON of the result of each query. Raises Busy if the answer takes too much time."""
        run, limits = request.output == "run", self.service.limits
        work = SearchWork(
            self.plan(request),
            request.k,
            request.id_prefix,
            texts=not run and request.text != "none",
            passages=not run and request.passages,
            where=(request.where,) if isinstance(request.where, str) else tuple(request.where),
            whole=not run and request.text == "full",
            characters=limits.characters,
        )
        queries = [request.query] if isinstance(request.query, str) else request.query
        if not run and not all(query.strip() for query in queries):
            raise BadRequest("query is empty: write a question, such as 'stop the turbine'")
        each = request.k if work.texts or work.passages else 1
        hits = len(queries) * max(each, request.rerank_depth if request.rerank else 0)
        if hits > MAX_HITS:
            raise BadRequest(
                f"{len(queries):,} queries with {hits // len(queries):,} documents each are more than "
                f"{MAX_HITS:,}; ask for fewer documents (k, rerank_depth), for output=run, or for fewer "
                "queries"
            )
        shown = request.text if not run else "run"
        if hits <= LARGE_HITS:
            return await self._search(work, queries, shown)
        try:
            async with asyncio.timeout(limits.answer_seconds), self._turn:
                return await self._search(work, queries, shown)
        except TimeoutError:
            raise Busy(
                f"the request took more than {limits.answer_seconds:g} seconds, with its wait for other "
                "large requests"
            ) from None

    async def _search(self, work: SearchWork, queries: list[str], shown: str) -> list[bytes]:
        found = await self.service.run(work, queries, work.check)
        docs = [one.doc for each in found for one in each.documents if one.doc is not None]
        size = sum(len(doc.content) for doc in docs)
        pairs = zip(queries, found, strict=True)
        return await self._made((step for each in pairs for step in _result(*each, shown)), size)

    async def _made(self, steps: Iterator[bytes | None], size: int) -> list[bytes]:
        """Return the bytes of an answer of about `size` characters; None is a step without bytes.

        A large answer is made outside of the event loop, and takes turns with others.
        """
        if size < LARGE_CHARACTERS:
            return [step for step in steps if step is not None]
        loop, made = asyncio.get_running_loop(), []
        while (some := await loop.run_in_executor(self._thread, _turn, steps)) is not None:
            made += some
        return made

    async def document(
        self, doc_id: str, index: str | None, query: str, contributions: bool = False
    ) -> dict[str, Any]:
        """Return the JSON of a DocumentAnswer. Raises NotFound for an unknown id."""
        name = self._name(index)
        work = DocumentWork(name, query, contributions)
        (found,) = await self.service.run(work, [doc_id])
        if found.doc is None:
            raise NotFound(f"{name} has no document {doc_id!r}")
        return _document(name, found, self.file(doc_id, name) is not None)

    def file(self, doc_id: str, index: str | None) -> Path | None:
        """Return the file of a document, if the index, or the one that it is a part of, has files."""
        served = self.service.indexes.served
        one = served[self._name(index)]
        whole = served[one.part_of] if one.part_of else one
        return whole.index.file(doc_id) if isinstance(whole.index, DocumentsIndex) else None

    async def embeddings(self, request: schema.EmbeddingsRequest) -> bytes:
        """Return the JSON of an EmbeddingsAnswer."""
        name, side = self._side(request)
        given: Any = request.input
        if isinstance(given, str) or isinstance(given[0], int):
            given = [given]
        items = [each if isinstance(each, str) else tuple(each) for each in given]
        vectors = self.service.indexes.served[name].vectors
        size = request.dimensions
        if vectors is not None and size is not None and size > vectors.dim:
            raise BadRequest(f"dimensions is {size}, but the vectors have {vectors.dim}")
        found = await self.service.run(EmbedWork(name, side), items)
        rows = np.stack([each.vector for each in found])[:, :size]
        if size is not None and vectors is not None and vectors.recipe.doc.normalize:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        as_text = request.encoding_format == "base64"

        def code(number: int) -> bytes:
            row = rows[number]
            value = (
                base64.b64encode(row.astype("<f4").tobytes()).decode() if as_text else row.tolist()
            )
            return json_bytes({"object": "embedding", "index": number, "embedding": value})

        data = await self._made(map(code, range(len(rows))), rows.size * (6 if as_text else 20))
        tokens = sum(each.tokens for each in found)
        head = json_bytes({"object": "list", "model": request.model})
        usage = json_bytes({"prompt_tokens": tokens, "total_tokens": tokens})
        return b'%s,"data":[%s],"usage":%s}' % (head[:-1], b",".join(data), usage)

    def _side(self, request: schema.EmbeddingsRequest) -> tuple[str, Any]:
        """Return the index and the side of a request for embeddings."""
        name, side = request.model, request.input_type
        if name not in self.service.indexes.served:
            head, colon, tail = name.rpartition(":")
            if colon and tail in ("query", "document"):
                if side not in (None, tail):
                    raise BadRequest(f"model {name} and input_type {side} contradict each other")
                name, side = head, tail  # type: ignore[assignment]
        return self._name(name), side or "document"


def _turn(steps: Iterator[bytes | None]) -> list[bytes] | None:
    """Return the bytes of some steps after a pause; None if no steps are left.

    Without pauses, the event loop would wait for the interpreter's lock at each byte that it sends or
    receives, as often and as long as this thread computes.
    """
    start, made, seconds = time.perf_counter(), [], -1.0
    for step in steps:
        made += [] if step is None else [step]
        seconds = time.perf_counter() - start
        if seconds > TURN_SECONDS:
            break
    time.sleep(min(2 * TURN_SECONDS, max(0.0, seconds)))
    return made if seconds >= 0 else None


def json_bytes(value: Any) -> bytes:
    """Return the JSON of a value. Lone surrogates, which UTF-8 cannot represent, become '?'."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _first(texts: Sequence[str]) -> list[str]:
    """Return the first MAX_MARKED characters of texts, if they have more."""
    shown, left = [], MAX_MARKED
    for text in texts:
        shown.append(text[:left])
        left -= len(text)
        if left <= 0:
            break
    return shown


def _result(query: str, found: Found, shown: str) -> Iterator[bytes | None]:
    """Yield the JSON of the result of a query, and None after each hit."""
    answer: dict[str, Any] = {"query": query, "complete": not found.incomplete}
    answer |= {"query_cut": found.query_cut, "pairs_cut": found.pairs_cut}
    answer |= {"meaning": found.meaning, "answered": found.answered}
    scores = found.ranking.scores.tolist()
    if shown == "run":
        yield json_bytes(answer | {"ids": found.ranking.doc_ids, "scores": scores})
        return
    documents: list[FoundDocument | None] = [*found.documents] or [None] * len(scores)
    hits, words = [], found.words or QueryWords(query)
    for rank, (name, score, one) in enumerate(
        zip(found.ranking.doc_ids, scores, documents, strict=True), 1
    ):
        hit: dict[str, Any] = {"rank": rank, "id": name, "score": score}
        if one is not None and one.doc is not None:
            text = one.doc.text
            if shown != "full":
                text = words.snippet(text, most_read=MAX_READ)
            hit |= {
                "title": one.doc.title,
                "text": text,
                "characters": len(one.doc.content.rstrip()),
            }
        if one is not None and one.passage is not None:
            hit["passage"] = _passage(one.passage)
        hits.append(hit)
        yield None
    shown_texts = [
        hit["passage"]["text"] if "passage" in hit else hit.get("text", "") for hit in hits
    ]
    yield json_bytes(answer | {"words": words.forms(_first(shown_texts)), "hits": hits})


def _passage(passage: Passage) -> dict[str, Any]:
    """Return the fields of a passage that are known."""
    unknown = {"heading": None, "path": "", "page": None, "lines": None}
    return {
        key: value
        for key, value in passage._asdict().items()
        if key not in unknown or value != unknown[key]
    }


def _document(name: str, found: FoundText, has_file: bool) -> dict[str, Any]:
    doc = found.doc
    assert doc is not None
    answer: dict[str, Any] = {
        "id": doc.id,
        "index": name,
        "title": doc.title,
        "text": doc.text,
        "text_begin": len(doc.content) - len(doc.text),
    }
    if found.passage is not None:
        answer["passage"] = _passage(found.passage)
    if has_file:
        answer["file"] = True
    if found.words:
        answer["words"] = found.words
    if found.chunks:
        answer["chunks"] = [chunk._asdict() for chunk in found.chunks]
    if found.contributions:
        answer["contributions"] = [chunk._asdict() for chunk in found.contributions]
    return answer
