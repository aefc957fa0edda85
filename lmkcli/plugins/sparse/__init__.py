"""Learned sparse vectors: weights of vocabulary terms (SPLADE), their engines and formats."""

from lmkcli.catalog import EngineRow, ExporterRow, ImporterRow, PoolerRow

EXTENDS = ("exchange",)
_JSON = "JSON with the weights of terms, as Anserini reads it"

ROWS = (
    PoolerRow(
        "splade",
        "lmkcli.pooling.table:SPLADE",
        "sparse: weights of vocabulary terms, maximum over all positions",
    ),
    PoolerRow(
        "splade-sum",
        "lmkcli.pooling.table:SPLADE_SUM",
        "as splade, with the sum over positions (v1)",
    ),
    PoolerRow(
        "splade-log",
        "lmkcli.pooling.table:SPLADE_LOG",
        "as splade, with the logarithm taken twice",
    ),
    EngineRow(
        "inverted",
        "lmkcli.plugins.sparse.inverted:Inverted",
        "inverted file of sparse vectors, exact",
        variant="sparse",
    ),
    EngineRow(
        "seismic",
        "lmkcli.plugins.sparse.seismic:Seismic",
        "Seismic: approximate search over sparse vectors, for a million documents and more",
        "seismic",
        "seismic",
        variant="sparse",
    ),
    ImporterRow(
        "anserini-json",
        "lmkcli.plugins.sparse.sparse_imports:read_json_vectors",
        _JSON,
        takes="model",
        settings="lmkcli.plugins.sparse.import_settings:ScaleSettings",
    ),
    ExporterRow(
        "anserini-json", "lmkcli.plugins.sparse.sparse_exports:write_json", _JSON, takes="folder"
    ),
)
