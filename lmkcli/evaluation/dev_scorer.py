"""Development scores of a model in training, equal to those of `lmk search` and `lmk eval`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lmkcli.artifact import manifest
from lmkcli.data.collection import WHOLE, open_collection
from lmkcli.data.run import Ranking, Run, ranked
from lmkcli.encoding.encoder import BatchRunner, Encoder, encode_stream, encoder_of
from lmkcli.encoding.resolution import ResolvedRecipe, representation_of
from lmkcli.encoding.token_stream import token_stream
from lmkcli.errors import DataError
from lmkcli.evaluation.measures import evaluate
from lmkcli.evaluation.scoring import DevSet, read_devsets
from lmkcli.models.forward import ForwardPass
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.progress import Report
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.vector_search import scoring_of
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.settings import EncodeSettings
from lmkcli.spec.values import Device
from lmkcli.training.loop.development import DevScores
from lmkcli.vectors.codec import open_codec
from lmkcli.vectors.rows import AnyRows

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
        documents, queries = (self._side(side, forward) for side in self.resolved.recipe.sides)
        scores, facts = {}, []
        for each in self.sets:
            score, found = _scored(each, documents, queries)
            scores[each.judged.name] = score
            facts.append(found)
        return DevScores(scores, {n: float(np.mean([f[n] for f in facts])) for n in facts[0]})

    def _side(self, side: EncoderConfig, forward: ForwardPass) -> Encoder[Any]:
        tokenizer = open_tokenizer(self.resolved.folder, side)
        runner = BatchRunner(forward, EncodeSettings())
        return encoder_of(side, tokenizer, runner, self.resolved.folder.name)


def _scored(
    dev: DevSet, documents: Encoder[Any], queries: Encoder[Any]
) -> tuple[float, dict[str, float]]:
    """Return the score, and facts about the vectors of documents and queries."""
    ids: list[str] = []
    pieces = []
    stream = token_stream(open_collection(dev.spelling), documents.document_tokenizer, WHOLE, 0)
    for batch in encode_stream(stream, documents, Report()):
        ids += [doc.id for doc in batch.rows.docs]
        pieces.append(batch.encoded.vectors)
    if not ids:
        raise DataError(f"--dev {dev.spelling} has no documents")
    representation = representation_of(documents.side.pool)
    codec = representation.codec or "fp32"
    stored = open_codec(codec).rows.joined(pieces, documents.dim)
    asked, depth = queries.queries(dev.queries), _depth(dev)
    settings = OpenSettings(device=Device(str(documents.model.device)))
    search = scoring_of(codec).search(_InMemory(stored), settings)
    hits = search.search(asked, min(depth, len(ids)))
    rankings = [
        ranked([ids[row] for row in rows.tolist()], scores).cut(depth)
        for rows, scores in zip(hits.rows, hits.scores, strict=True)
    ]
    return _evaluated(dev, rankings), representation.facts(stored, asked)


class _InMemory(Generic[AnyRows]):
    """The vectors of documents, a row for each (`RowMatrix`)."""

    def __init__(self, stored: AnyRows) -> None:
        self._stored = stored
        self.rows, self.total, self.dim = len(stored.counts), int(stored.starts[-1]), stored.dim
        self.single = self.rows == self.total

    def __iter__(self) -> Iterator[AnyRows]:
        yield self._stored

    def at(self, rows: NDArray[np.int64]) -> AnyRows:
        return self._stored.take(rows)


def _drop_self(dev: DevSet) -> bool:
    return bool(dev.judged.facts and dev.judged.facts.drop_self)


def _depth(dev: DevSet) -> int:
    """Return the depth of the ranking: one more if the document with the id of the query is dropped."""
    return int(dev.measure.params.get("cutoff", _DEPTH)) + _drop_self(dev)


def _evaluated(dev: DevSet, rankings: Sequence[Ranking]) -> float:
    run = Run({query.id: ranking for query, ranking in zip(dev.queries, rankings, strict=True)})
    scores = evaluate(run, dev.judged.qrels, [dev.measure], _drop_self(dev))
    return scores.aggregated[str(dev.measure)]
