"""Milvus: vectors in a collection of a server, or of a file (Milvus Lite)."""

from lmkcli.catalog import EngineRow

ROWS = (
    EngineRow(
        "milvus",
        "lmkcli.plugins.milvus.milvus_engine:Milvus",
        "a collection in Milvus: on a server, or in a file (Milvus Lite)",
        "milvus",
        "pymilvus milvus_lite",
        variant="database",
        settings="lmkcli.plugins.milvus.milvus_settings:MilvusSettings",
        search_settings="lmkcli.plugins.milvus.milvus_settings:MilvusSearchSettings",
    ),
)
