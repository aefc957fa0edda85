"""Learned sparse vectors: weights of vocabulary terms (SPLADE), their engines and formats."""

from lmkcli.catalog import (
    CodecRow,
    EngineRow,
    ExporterRow,
    ImporterRow,
    PoolerRow,
    SentenceClassRow,
)

EXTENDS = ("exchange",)
_SETTINGS = "lmkcli.plugins.sparse.sparse_settings"
_JSON = "JSON with the weights of terms, as Anserini reads it"

ROWS = (
    PoolerRow(
        "splade",
        "lmkcli.plugins.sparse.splade:SPLADE",
        "sparse: weights of vocabulary terms, maximum over all positions",
        settings=f"{_SETTINGS}:WindowedTermSettings",
        train_settings=f"{_SETTINGS}:SparsitySettings",
    ),
    PoolerRow(
        "splade-sum",
        "lmkcli.plugins.sparse.splade:SPLADE_SUM",
        "as splade, with the sum over positions (v1)",
        settings=f"{_SETTINGS}:TermSettings",
        train_settings=f"{_SETTINGS}:SparsitySettings",
    ),
    PoolerRow(
        "splade-log",
        "lmkcli.plugins.sparse.splade:SPLADE_LOG",
        "as splade, with the logarithm taken twice",
        settings=f"{_SETTINGS}:WindowedTermSettings",
        train_settings=f"{_SETTINGS}:SparsitySettings",
    ),
    SentenceClassRow(
        "SparseEncoder",
        "lmkcli.plugins.sparse.sparse_encoder:SPARSE_ENCODER",
        "learned sparse models",
    ),
    CodecRow(
        "sparse",
        "lmkcli.plugins.sparse.sparse_vectors:SPARSE",
        "the terms of a vector and their weights",
        rows="sparse",
        scoring="lmkcli.plugins.sparse.exact_product:SPARSE",
        aggregates=("max",),
    ),
    EngineRow(
        "inverted",
        "lmkcli.plugins.sparse.inverted:Inverted",
        "inverted file of sparse vectors, exact",
        variant="whole",
        takes="sparse",
    ),
    EngineRow(
        "seismic",
        "lmkcli.plugins.sparse.seismic:Seismic",
        "Seismic: approximate search over sparse vectors, for a million documents and more",
        "seismic",
        "seismic",
        variant="whole",
        takes="sparse",
    ),
    ImporterRow(
        "anserini-json",
        "lmkcli.plugins.sparse.sparse_imports:read_json_vectors",
        _JSON,
        takes="model",
        settings=f"{_SETTINGS}:ScaleSettings",
    ),
    ExporterRow(
        "anserini-json", "lmkcli.plugins.sparse.sparse_exports:write_json", _JSON, takes="folder"
    ),
)
