"""Development scores: a model in training searches collections, as `lmk search` and `lmk eval` would."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from lmkcli import manifest
from lmkcli.data.collection import WHOLE, open_collection
from lmkcli.data.run import Run
from lmkcli.encoding.batches import BatchRunner
from lmkcli.encoding.encoder import Encoder, encode_stream, encoder_of
from lmkcli.encoding.resolving import Resolved
from lmkcli.errors import DataError
from lmkcli.evaluation import devsets
from lmkcli.evaluation.devsets import DevSet
from lmkcli.evaluation.measures import evaluate
from lmkcli.models.forward import ForwardPass
from lmkcli.models.tokenizer import open_tokenizer
from lmkcli.progress import Report
from lmkcli.recipe import EncoderConfig
from lmkcli.retrieval.held import Held
from lmkcli.settings import EncodeSettings
from lmkcli.store.ragged import Ragged
from lmkcli.store.tokens import token_stream

_DEPTH = 1000  # of the ranking, for measures without a cutoff


@dataclass(frozen=True)
class DevScorer:
    """Encodes every document and judged query of some collections with the recipe, and scores the search."""

    resolved: Resolved
    measure: str
    sets: tuple[DevSet, ...]

    @classmethod
    def of(cls, resolved: Resolved, spellings: list[str], measure: str) -> "DevScorer":
        """Reads the judgements. UsageError for a measure that is none, DataError without judgements."""
        return cls(resolved, measure, devsets.read(spellings, measure))

    @property
    def identity(self) -> dict[str, Any]:
        """The collections by name, their queries and judgements by digest, and the measure."""
        told = [
            [
                each.judged.name,
                [[q.id, q.text] for q in each.queries],
                [[*j] for j in each.judged.qrels],
            ]
            for each in self.sets
        ]
        names = [each.judged.name for each in self.sets]
        return {"collections": names, "judged": manifest.digest(told), "measure": self.measure}

    def __call__(self, module: nn.Module) -> dict[str, float]:
        """The measure's value on each collection, by name; `module` is the ForwardPass as it stands."""
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


def _score(given: DevSet, documents: Encoder, queries: Encoder) -> float:
    held = _held(given.spelling, documents)
    encoded = queries.queries(given.queries)
    drops = bool(given.judged.facts and given.judged.facts.drop_self)
    depth = int(given.measure.params.get("cutoff", _DEPTH)) + drops
    rankings = held.search(encoded, depth, documents.model.device)
    run = Run({query.id: ranking for query, ranking in zip(given.queries, rankings, strict=True)})
    scores = evaluate(run, given.judged.qrels, [given.measure], drops)
    return scores.aggregated[str(given.measure)]


def _held(spelling: str, encoder: Encoder) -> Held:
    """The vectors of all documents of a collection."""
    ids: list[str] = []
    parts: list[Ragged] = []
    stream = token_stream(open_collection(spelling), encoder.tokenizer, WHOLE, 0)
    for batch in encode_stream(stream, encoder, Report()):
        ids += [row.doc.id for row in batch.rows]
        parts.append(batch.encoded.vectors)
    if not parts:
        raise DataError(f"--dev {spelling} has no documents")
    counts = np.concatenate([part.counts for part in parts])
    return Held(ids, Ragged.of(np.concatenate([part.vectors for part in parts]), counts))
