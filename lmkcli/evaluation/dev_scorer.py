"""Development scores of a model in training, equal to those of `lmk search` and `lmk eval`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from lmkcli.data.collection import WHOLE, open_collection
from lmkcli.data.run import Run
from lmkcli.encoding.encoder import BatchRunner, Encoder, encode_stream, encoder_of
from lmkcli.encoding.resolution import ResolvedRecipe
from lmkcli.errors import DataError
from lmkcli.evaluation.measures import evaluate
from lmkcli.evaluation.scoring import DevSet, read_devsets
from lmkcli.models.forward import ForwardPass
from lmkcli.models.tokenizer import open_tokenizer
from lmkcli.progress import Report
from lmkcli.retrieval.engines.exact.exact_search import InMemoryVectors
from lmkcli.spec import manifest
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.settings import EncodeSettings
from lmkcli.store.tokens import token_stream
from lmkcli.store.vectors import Ragged

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

    def __call__(self, module: nn.Module) -> dict[str, float]:
        """Name of each collection -> value of the measure; `module` is the current ForwardPass."""
        forward: Any = module
        sides = [
            self._side(side, forward)
            for side in (self.resolved.recipe.doc, self.resolved.recipe.query)
        ]
        return {each.judged.name: _score(each, *sides) for each in self.sets}

    def _side(self, side: EncoderConfig, forward: ForwardPass) -> Encoder:
        tokenizer = open_tokenizer(self.resolved.folder, side)
        runner = BatchRunner(forward, EncodeSettings())
        return encoder_of(side, tokenizer, runner, self.resolved.folder.name)


def _score(dev: DevSet, documents: Encoder, queries: Encoder) -> float:
    vectors = _encode_documents(dev.spelling, documents)
    encoded = queries.queries(dev.queries)
    drop_self = bool(dev.judged.facts and dev.judged.facts.drop_self)
    # One more hit if the document with the id of the query is dropped
    depth = int(dev.measure.params.get("cutoff", _DEPTH)) + drop_self
    rankings = vectors.search(encoded, depth, documents.model.device)
    run = Run({query.id: ranking for query, ranking in zip(dev.queries, rankings, strict=True)})
    scores = evaluate(run, dev.judged.qrels, [dev.measure], drop_self)
    return scores.aggregated[str(dev.measure)]


def _encode_documents(spelling: str, encoder: Encoder) -> InMemoryVectors:
    """The vectors of all documents of a collection, in memory."""
    ids: list[str] = []
    parts: list[Ragged] = []
    stream = token_stream(open_collection(spelling), encoder.document_tokenizer, WHOLE, 0)
    for batch in encode_stream(stream, encoder, Report()):
        ids += [doc.id for doc in batch.rows.docs]
        parts.append(batch.encoded.vectors)
    if not parts:
        raise DataError(f"--dev {spelling} has no documents")
    counts = np.concatenate([part.counts for part in parts])
    return InMemoryVectors(ids, Ragged.of(np.concatenate([part.vectors for part in parts]), counts))
