"""Locality of landmarks: is a landmark similar to its neighbouring chunks? (arXiv 2601.21525 §6.4, Figure 4)

A landmark attends to the whole document. Its vector is compared with the vectors of all chunks of the
document, each encoded alone. Hit@k is the share of landmarks with the chunk to their left, the chunk to
their right, or one of both among the k nearest chunks.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Collection, Query
from lmkcli.encoding.encoder import Encoder, encoder_of, open_encoder, require_dense
from lmkcli.encoding.resolution import ResolvedRecipe
from lmkcli.errors import DataError
from lmkcli.progress import Report
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import EACH_CHUNK, NO_OVERLAP, is_digits
from lmkcli.store.token_blocks import TokenRow
from lmkcli.vectors.rows import Ragged

Floats = NDArray[np.floating]
DEPTHS = (1, 2, 5, 10, 20, 50, 100)


class Locality(NamedTuple):
    """Hit@k over all landmarks: name (left, right, either, chance, answer) -> Hit@k for each of `depths`."""

    depths: list[int]
    hits: dict[str, list[float]]
    documents: int
    landmarks: int
    queries: int


class Encoders(NamedTuple):
    """Encoders of a document's chunks together, of each chunk alone, and of queries."""

    together: Encoder[Ragged]
    alone: Encoder[Ragged]
    query: Encoder[Ragged]


class AnsweredQuery(NamedTuple):
    """A query, and the number of the chunk in a document that answers it."""

    query: Query
    chunk: int


def open_encoders(resolved: ResolvedRecipe, settings: EncodeSettings) -> Encoders:
    """Return the encoders of a recipe with unit chunk; they share one model."""
    recipe, folder = resolved.recipe, resolved.folder
    require_dense(recipe.doc)
    together = open_encoder(recipe.doc, folder, settings)
    side = replace(recipe.doc, window=EACH_CHUNK, overlap=NO_OVERLAP)
    alone = encoder_of(side, together.tokenizer, together.runner, folder.name)
    query = encoder_of(recipe.query, together.tokenizer, together.runner, folder.name)
    return Encoders(together, alone, query)


def answers(collection: Collection, gran: str) -> dict[str, list[AnsweredQuery]]:
    """Document id -> the queries that are answered by one of its chunks, if the chunks are known.

    They are known only with --gran given: from judgements of chunks ('doc#3'), or in haystacks from the
    `position` of a query, the number of a given chunk.
    """
    if gran != "given" or not collection.has_qrels():
        return {}
    queries = {query.id: query for query in collection.queries()}
    positions = collection.query_metadata("position")
    found: dict[str, list[AnsweredQuery]] = {}
    for qrel in collection.qrels():
        name, mark, number = qrel.doc_id.rpartition("#")
        judged = mark and is_digits(number)
        at = number if judged else str(positions.get(qrel.query_id)).removesuffix(".0")
        if qrel.grade > 0 and is_digits(at) and qrel.query_id in queries:
            answer = AnsweredQuery(queries[qrel.query_id], int(at))
            found.setdefault(name if mark else qrel.doc_id, []).append(answer)
    return found


def locality(
    encoders: Encoders, rows: Iterable[TokenRow], answered: dict[str, list[AnsweredQuery]]
) -> Locality:
    """Hit@k over all documents with at least three chunks; DataError if there is none."""
    ranks: dict[str, list[NDArray[np.int64]]] = {}
    sizes: list[int] = []
    for row in rows:
        together = encoders.together([row], Report())
        landmarks = together.vectors.vectors
        encoded = encoders.alone([_cut(row, together.kept[0])], Report())
        chunks = encoded.vectors.vectors[: len(landmarks)]
        landmarks = landmarks[: len(chunks)]
        if len(landmarks) < 3:
            continue
        sizes.append(len(landmarks))
        for name, found in _neighbour_ranks(landmarks @ chunks.T).items():
            ranks.setdefault(name, []).append(found)
        for answer in answered.get(row.doc.id, []):
            if answer.chunk < len(landmarks):
                # The rank of the answer's landmark among the landmarks of its document
                query = encoders.query.queries([answer.query]).vectors
                rank = _ranks(query @ landmarks.T, np.array([answer.chunk]))
                ranks.setdefault("answer", []).append(rank)
    if not sizes:
        raise DataError("no document has three chunks; lower --gran, or raise --max-length")
    return _hits(ranks, sizes)


def _cut(row: TokenRow, kept: int) -> TokenRow:
    """Return the first `kept` tokens of a document. Only these have landmarks, so the rest is not encoded."""
    ends = None if row.ends is None else row.ends[row.ends <= kept]
    if ends is not None and not len(ends):
        return row
    return row._replace(ids=row.ids[:kept], spans=row.spans[:kept], ends=ends)


def _neighbour_ranks(similarity: Floats) -> dict[str, NDArray[np.int64]]:
    """[landmarks, chunks] -> ranks of the neighbouring chunks of each landmark except the last.

    Landmark i is between chunk i (left) and chunk i + 1 (right); the last landmark has no right chunk.
    """
    inner = np.arange(len(similarity) - 1)
    left, right = (_ranks(similarity[:-1], inner + shift) for shift in (0, 1))
    return {"left": left, "right": right, "either": np.minimum(left, right)}


def _ranks(similarity: Floats, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row, the number of columns with a higher similarity than the wanted column."""
    own = similarity[np.arange(len(similarity)), wanted]
    return np.asarray((similarity > own[:, None]).sum(1), np.int64)


def _hits(ranks: dict[str, list[NDArray[np.int64]]], sizes: list[int]) -> Locality:
    """Hit@k for every k below the largest number of chunks; `chance` is Hit@k of a random chunk.

    A random chunk of n is among k with probability min(k / n, 1). A document with n chunks has n - 1
    landmarks with two neighbours, which is its weight.
    """
    joined = {name: np.concatenate(found) for name, found in ranks.items()}
    depths = [k for k in DEPTHS if k < max(sizes)]
    hits = {name: [float((found < k).mean()) for k in depths] for name, found in joined.items()}
    chunks = np.array(sizes)
    hits["chance"] = [
        float(np.average(np.minimum(k / chunks, 1), weights=chunks - 1)) for k in depths
    ]
    landmarks, queries = len(joined["left"]), len(joined.get("answer", ()))
    return Locality(depths, hits, len(sizes), landmarks, queries)
