"""What a landmark holds of the chunks beside it (arXiv 2601.21525 §6.4, Figure 4).

Every landmark, which has read the whole document, is compared with the vectors of the chunks when each
is encoded alone: how often is the chunk to its left, to its right, or either, among the k nearest?
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Collection, Query
from lmkcli.encoding.encoder import Encoder, encoder_of, open_encoder
from lmkcli.encoding.resolving import Resolved
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.settings import EncodeSettings
from lmkcli.store.tokens import TokenRow

Floats = NDArray[np.floating]
DEPTHS = (1, 2, 5, 10, 20, 50, 100)


class Locality(NamedTuple):
    """How often something was among the k nearest: name -> Hit@k for each k of `depths`."""

    depths: list[int]
    hits: dict[str, list[float]]
    documents: int
    landmarks: int
    queries: int


class Pair(NamedTuple):
    """Encoders of documents in chunks: all chunks seen together, and each chunk alone; and of queries."""

    together: Encoder
    alone: Encoder
    query: Encoder


class Answer(NamedTuple):
    """A query and the chunk of a document that answers it."""

    query: Query
    chunk: int


def open_pair(resolved: Resolved, settings: EncodeSettings) -> Pair:
    """Both ways of encoding over one model, of a recipe whose unit is the chunk."""
    recipe, folder = resolved.recipe, resolved.folder
    together = open_encoder(recipe.doc, folder, settings)
    side = replace(recipe.doc, window="chunk", overlap=0)
    alone = encoder_of(side, together.tokenizer, together.runner, folder.name)
    query = encoder_of(recipe.query, together.tokenizer, together.runner, folder.name)
    return Pair(together, alone, query)


def answers(collection: Collection, gran: str) -> dict[str, list[Answer]]:
    """Document id -> the queries that one of its chunks answers, where the collection says which.

    It does where judgements name chunks ('doc#3'), or where a query has a `position` that counts given
    chunks (haystacks); both with --gran given alone.
    """
    if gran != "given" or not collection.has_qrels():
        return {}
    queries = {query.id: query for query in collection.queries()}
    positions = collection.query_facts("position")
    found: dict[str, list[Answer]] = {}
    for qrel in collection.qrels():
        name, mark, number = qrel.doc_id.rpartition("#")
        at = int(number) if mark and number.isdecimal() else positions.get(qrel.query_id)
        if qrel.grade > 0 and at is not None and qrel.query_id in queries:
            answer = Answer(queries[qrel.query_id], int(at))
            found.setdefault(name if mark else qrel.doc_id, []).append(answer)
    return found


def locality(pair: Pair, rows: Iterable[TokenRow], asked: dict[str, list[Answer]]) -> Locality:
    """Ranks over all documents that have three chunks at least; DataError if none has."""
    ranks: dict[str, list[NDArray[np.int64]]] = {}
    sizes: list[int] = []
    for row in rows:
        seen = pair.together([row], Report())
        landmarks = seen.vectors.vectors
        chunks = pair.alone([_cut(row, seen.kept[0])], Report()).vectors.vectors[: len(landmarks)]
        landmarks = landmarks[: len(chunks)]
        if len(landmarks) < 3:
            continue
        sizes.append(len(landmarks))
        for name, found in _beside(landmarks @ chunks.T):
            ranks.setdefault(name, []).append(found)
        for answer in asked.get(row.doc.id, []):
            if answer.chunk < len(landmarks):
                ranks.setdefault("answer", []).append(_answer(pair, landmarks, answer))
    if not sizes:
        raise DataError("no document has three chunks; lower --gran, or raise --max-length")
    return _counted(ranks, sizes)


def _cut(row: TokenRow, kept: int) -> TokenRow:
    """The tokens of a document that any landmark stands for; the others need not be encoded."""
    ends = None if row.ends is None else row.ends[row.ends <= kept]
    if ends is not None and not len(ends):
        return row
    return row._replace(ids=row.ids[:kept], spans=row.spans[:kept], ends=ends)


def _beside(similarity: Floats) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """[landmarks, chunks] -> ranks of the chunks beside each landmark that has one on either side."""
    inner = np.arange(len(similarity) - 1)
    left, right = (_ranks(similarity[:-1], inner + shift) for shift in (0, 1))
    yield from (("left", left), ("right", right), ("either", np.minimum(left, right)))


def _ranks(similarity: Floats, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many columns are nearer than the wanted one, for each row."""
    own = similarity[np.arange(len(similarity)), wanted]
    return np.asarray((similarity > own[:, None]).sum(1), np.int64)


def _answer(pair: Pair, landmarks: Floats, answer: Answer) -> NDArray[np.int64]:
    """The rank of the answer's landmark among those of its document, for its query."""
    query = pair.query.queries([answer.query]).vectors
    return _ranks(query @ landmarks.T, np.array([answer.chunk]))


def _counted(ranks: dict[str, list[NDArray[np.int64]]], sizes: list[int]) -> Locality:
    """Hit@k for every k below the largest number of chunks, and what one chunk would have by chance."""
    every = {name: np.concatenate(found) for name, found in ranks.items()}
    depths = [k for k in DEPTHS if k < max(sizes)]
    hits = {name: [float((found < k).mean()) for k in depths] for name, found in every.items()}
    chunks = np.array(sizes)
    hits["chance"] = [
        float(np.average(np.minimum(k / chunks, 1), weights=chunks - 1)) for k in depths
    ]
    landmarks, queries = len(every["left"]), len(every.get("answer", ()))
    return Locality(depths, hits, len(sizes), landmarks, queries)
