"""Development scores of a model in training, equal to those of `lmk search` and `lmk eval`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from lmkcli.artifact import manifest
from lmkcli.data.collection import WHOLE, open_collection
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.encoding.encoder import (
    AnyRagged,
    BatchRunner,
    Encoder,
    SideEncoder,
    SparseEncoder,
    encode_stream,
    encoder_of,
    sparse_encoder_of,
)
from lmkcli.encoding.resolution import ResolvedRecipe, makes_sparse
from lmkcli.errors import DataError
from lmkcli.evaluation.measures import evaluate
from lmkcli.evaluation.scoring import DevSet, read_devsets
from lmkcli.models.forward import ForwardPass
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.progress import Report
from lmkcli.retrieval.engines.exact.exact_search import InMemoryVectors
from lmkcli.retrieval.sparse.exact_product import exact_product
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store.tokens import token_stream
from lmkcli.store.vectors import Ragged
from lmkcli.training.loop.development import DevScores

_DEPTH = 1000  # ranks for measures without a cut-off


@dataclass(frozen=True)
class DevScorer:
    """Encodes all documents and judged queries of collections with a recipe, searches and scores."""

    resolved: ResolvedRecipe
    measure: str
    sets: tuple[DevSet, ...]

    @classmethod
    def of(cls, resolved: ResolvedRecipe, spellings: list[str], measure: str) -> "DevScorer":
        """Read the judgements. UsageError for an unknown measure, DataError without judgements."""
        return cls(resolved, measure, read_devsets(spellings, measure))

    @property
    def identity(self) -> dict[str, Any]:
        """Names of the collections, a digest of their queries and judgements, and the measure."""
        judged = [
            [
                each.judged.name,
                [[q.id, q.text] for q in each.queries],
                [[*j] for j in each.judged.qrels],
            ]
            for each in self.sets
        ]
        names = [each.judged.name for each in self.sets]
        return {"collections": names, "judged": manifest.digest(judged), "measure": self.measure}

    def __call__(self, module: nn.Module) -> DevScores:
        """Score the current ForwardPass on each collection."""
        forward: Any = module
        doc, query = self.resolved.recipe.doc, self.resolved.recipe.query
        if not makes_sparse(doc):
            documents, queries = self._side(doc, forward), self._side(query, forward)
            return DevScores(
                {e.judged.name: _dense_score(e, documents, queries) for e in self.sets}
            )
        sides = self._sparse_side(doc, forward), self._sparse_side(query, forward)
        scores, terms = {}, []
        for each in self.sets:
            scores[each.judged.name], counts = _sparse_score(each, *sides)
            terms.append(counts)
        means = np.mean(terms, axis=0).tolist()
        return DevScores(scores, dict(zip(("doc_terms", "query_terms"), means, strict=True)))

    def _side(self, side: EncoderConfig, forward: ForwardPass) -> Encoder:
        return encoder_of(side, *self._opened(side, forward), self.resolved.folder.name)

    def _sparse_side(self, side: EncoderConfig, forward: ForwardPass) -> SparseEncoder:
        return sparse_encoder_of(side, *self._opened(side, forward))

    def _opened(self, side: EncoderConfig, forward: ForwardPass) -> tuple[Tokenizer, BatchRunner]:
        tokenizer = open_tokenizer(self.resolved.folder, side)
        return tokenizer, BatchRunner(forward, EncodeSettings())


def _dense_score(dev: DevSet, documents: Encoder, queries: Encoder) -> float:
    ids, parts = _encoded(dev, documents)
    counts = np.concatenate([part.counts for part in parts])
    stored = Ragged.of(np.concatenate([part.vectors for part in parts]), counts)
    vectors = InMemoryVectors(ids, stored)
    rankings = vectors.search(queries.queries(dev.queries), _depth(dev), documents.model.device)
    return _evaluated(dev, rankings)


def _sparse_score(
    dev: DevSet, documents: SparseEncoder, queries: SparseEncoder
) -> tuple[float, tuple[float, float]]:
    """Return the score, and the mean numbers of terms of documents and queries."""
    ids, parts = _encoded(dev, documents)
    asked = queries.queries(dev.queries)
    depth = _depth(dev)
    hits = exact_product(parts, asked, depth)
    rankings = [
        ranked([ids[row] for row in rows.tolist()], scores).cut(depth)
        for rows, scores in zip(hits.rows, hits.scores, strict=True)
    ]
    terms = float(np.concatenate([part.lengths for part in parts]).mean())
    return _evaluated(dev, rankings), (terms, float(asked.lengths.mean()))


def _drop_self(dev: DevSet) -> bool:
    return bool(dev.judged.facts and dev.judged.facts.drop_self)


def _depth(dev: DevSet) -> int:
    """Return the depth of the ranking: one more if the document with the id of the query is dropped."""
    return int(dev.measure.params.get("cutoff", _DEPTH)) + _drop_self(dev)


def _evaluated(dev: DevSet, rankings: Sequence[Ranking]) -> float:
    run = Run({query.id: ranking for query, ranking in zip(dev.queries, rankings, strict=True)})
    scores = evaluate(run, dev.judged.qrels, [dev.measure], _drop_self(dev))
    return scores.aggregated[str(dev.measure)]


def _encoded(dev: DevSet, encoder: SideEncoder[AnyRagged]) -> tuple[list[str], list[AnyRagged]]:
    """Return the ids and vectors of all documents of a collection, in memory."""
    ids: list[str] = []
    parts: list[AnyRagged] = []
    spelling = dev.spelling
    stream = token_stream(open_collection(spelling), encoder.document_tokenizer, WHOLE, 0)
    for batch in encode_stream(stream, encoder, Report()):
        ids += [doc.id for doc in batch.rows.docs]
        parts.append(batch.encoded.vectors)
    if not parts:
        raise DataError(f"--dev {spelling} has no documents")
    return ids, parts
