"""Reranking by a cross-encoder, which reads the query and the stored text of a document together."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmkcli import catalog
from lmkcli.data.collection import Query
from lmkcli.retrieval.index import Index, IndexInfo, Passage
from lmkcli.retrieval.reranking import Scorer
from lmkcli.settings import OpenSettings


class CrossEncoder(Protocol):
    """One score for a query and each of several texts; `digest` stands for its weights."""

    digest: str

    def __call__(self, query: str, texts: list[str]) -> NDArray[np.float64]: ...


class CrossEncoderOpener(Protocol):
    """What a row of the catalog's CROSS_ENCODERS is: a folder or hub name to a cross-encoder."""

    def __call__(
        self, name: str, device: str, offline: bool, trust_remote_code: bool
    ) -> CrossEncoder: ...


class ModelReranker:
    """A cross-encoder that scores the texts that `index` has; NaN for documents without a text."""

    def __init__(self, index: Index, name: str, settings: OpenSettings) -> None:
        opener: CrossEncoderOpener = catalog.load(
            catalog.CROSS_ENCODERS, "crossencoder", "cross-encoder"
        )
        self._index = index
        self._model = opener(name, settings.device, settings.offline, settings.trust_remote_code)
        self.info = IndexInfo(name, "crossencoder", self._model.digest, {})

    def scorer(self, queries: list[Query]) -> Scorer:
        """One for any queries."""
        return self._score

    def passages(self, query: Query, ids: list[str]) -> dict[str, Passage] | None:
        """None: it reads whole documents."""
        return None

    def _score(self, query: Query, doc_ids: Sequence[str]) -> NDArray[np.float64]:
        docs = self._index.texts(list(doc_ids))
        places = [i for i, name in enumerate(doc_ids) if name in docs and docs[name].text]
        scores = np.full(len(doc_ids), np.nan)
        if places:
            texts = [docs[doc_ids[i]].content for i in places]
            scores[places] = self._model(query.text, texts)
        return scores
