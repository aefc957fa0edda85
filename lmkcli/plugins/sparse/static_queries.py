"""Sparse queries without inference: the weights of terms come from a table (SparseStaticEmbedding).

Such a folder of sentence-transformers routes documents to a masked-language model, and queries to a table.
The table has a weight for each term, for instance its inverse document frequency (arXiv 2411.04403). The
vector of a query has the weights of its tokens, without special tokens; a repeated token counts once.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmkcli.data.collection import Query
from lmkcli.errors import DataError
from lmkcli.models.model_files import read_fields
from lmkcli.models.model_folder import ModelFolder, static_table
from lmkcli.models.tensors import read_tensors
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.models.tokenizer_folder import open_tokenizer
from lmkcli.plugins.sparse.sparse_vectors import Entries, SparseRows, collected
from lmkcli.spec.recipe import EncoderConfig


@dataclass
class StaticQueries:
    """Encodes queries with a table of weights, [vocabulary]."""

    side: EncoderConfig
    tokenizer: Tokenizer
    table: NDArray[np.float32]

    @property
    def dim(self) -> int:
        """The size of the vocabulary."""
        return len(self.table)

    def queries(self, queries: list[Query]) -> SparseRows:
        """Return the sparse vectors of queries. Only the first `max_length` tokens of a query count."""
        texts = self.tokenizer([query.text for query in queries])
        ids = [np.concatenate([text.prompt, text.ids])[: self.side.max_length] for text in texts]
        owners = np.repeat(np.arange(len(ids)), [len(each) for each in ids])
        terms = np.concatenate([np.zeros(0, np.int64), *ids]).astype(np.int64)
        if len(terms) and terms.max() >= self.dim:
            raise DataError(
                f"the table of query weights has {self.dim} terms, and its tokenizer returns term "
                f"{terms.max()}; download the model again"
            )
        weights = self.table[terms]
        kept = weights > 0
        ones = np.ones(len(queries), np.int64)
        entries = Entries(owners[kept], terms[kept], weights[kept])
        return collected(entries, ones, self.dim).finished(self.side)

    def cut(self, queries: list[Query]) -> frozenset[str]:
        """Return the ids of the queries that lose tokens, because they are too long for the recipe."""
        texts = self.tokenizer([query.text for query in queries])
        lengths = [len(text.prompt) + len(text.ids) for text in texts]
        limit = self.side.max_length
        return frozenset(q.id for q, n in zip(queries, lengths, strict=True) if limit and n > limit)


def open_static_queries(side: EncoderConfig, folder: ModelFolder) -> StaticQueries:
    """Open the table of a model folder. Raises DataError if the table or its tokenizer cannot be used."""
    where = folder.static_queries
    if where is None:
        raise DataError(f"{folder.name} has no table of query weights; download the model again")
    tokenizer = open_tokenizer(replace(folder, encoder=where), side)
    named = static_table(where, folder.path)
    if named is not None:
        table = _read_weights(named, tokenizer)
    else:
        file = where / "model.safetensors"
        if not file.exists():
            raise DataError(f"{where} has no weights (model.safetensors); download the model again")
        weights = read_tensors(file, "the table of query weights").get("weight")
        if weights is None or weights.ndim != 1:
            raise DataError(
                f"{file} has no tensor 'weight' of one dimension; download the model again"
            )
        table = weights.float().numpy()
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise DataError(
            f"the table of query weights in {where} has weights that are negative or not finite; choose "
            "another model"
        )
    return StaticQueries(side, tokenizer, table)


def _read_weights(file: Path, tokenizer: Tokenizer) -> NDArray[np.float32]:
    """Read weights by token. Terms without a weight get 0."""
    table = np.zeros(tokenizer.fast.get_vocab_size(with_added_tokens=True), np.float32)
    for token, weight in read_fields(file, dict[str, float]).items():
        term = tokenizer.fast.token_to_id(token)
        if term is None:
            raise DataError(
                f"{file}: the token {token!r} is not in the vocabulary; download the model again"
            )
        table[term] = weight
    return table
