"""The settings of all engines, as `lmk index` and `lmk search` accept them.

An engine with its own settings adds its classes to the bases here.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lmkcli.plugins.milvus.milvus_settings import MilvusSearchSettings, MilvusSettings
from lmkcli.retrieval.engines.faiss.settings import FaissSearchSettings, FaissSettings
from lmkcli.retrieval.lexical.settings import FeedbackSettings, LexicalSettings
from lmkcli.spec.settings import Flag, Offline, Settings
from lmkcli.spec.values import Shard


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """Settings for reading the input, and the shard to index."""

    panel: ClassVar[str] = "Documents"
    fields: Annotated[
        str,
        Flag(
            "bm25, lucene: text fields of a record, joined by '+', such as headline+body.",
            only="lexical",
        ),
    ] = ""
    map_ids: Annotated[
        bool, Flag("bm25, lucene: replace white space in ids by '_'.", only="lexical")
    ] = False
    offline: Offline = False
    stopwords_file: Annotated[
        str | None,
        Flag(
            "bm25, lucene: a file of stop words, one per line; or none.",
            long="--stopwords",
            metavar="FILE",
            role="file",
            only="lexical",
        ),
    ] = None
    shard: Annotated[
        Shard | None,
        Flag(
            "ivf and other lists: build shard i/n of the vectors; the same command without --shard "
            "joins the shards.",
            role="mode",
            only="vectors",
        ),
    ] = None
    apart: Annotated[
        bool,
        Flag(
            "When joining shards: keep one file per shard; they are searched as one index.",
            only="vectors",
        ),
    ] = False
    allow_incomplete: Annotated[
        bool,
        Flag(
            "Index the finished shards; ignore unfinished ones.",
            role="mode",
            only="vectors sparse database",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class IndexSettings(SourceSettings, MilvusSettings, LexicalSettings, FaissSettings):
    """All settings of building an index; each engine reads its own."""


@dataclass(frozen=True, kw_only=True)
class EngineSearchSettings(FeedbackSettings, MilvusSearchSettings, FaissSearchSettings):
    """All settings of searching an index; each engine reads its own."""
