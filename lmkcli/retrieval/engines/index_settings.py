"""The settings of all engines, as `lmk index` and `lmk search` accept them.

Each row of an engine names its groups of settings. `IndexSettings` and `EngineSearchSettings` have the fields
of all of them; an engine reads its own group with `settings.part(Group)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from lmkcli import catalog
from lmkcli.catalog import EngineRow
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSearchSettings, FaissSettings
from lmkcli.retrieval.engines.kind_setting import KindSettings
from lmkcli.retrieval.lexical.lexical_settings import FeedbackSettings, LexicalSettings
from lmkcli.spec.option import options
from lmkcli.spec.settings import Flag, Offline, Settings, composed
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
            only="vectors whole database",
        ),
    ] = False


def _groups(module_of: Callable[[EngineRow], str]) -> tuple[type[Settings], ...]:
    """The groups of settings that the rows of engines name, each once."""
    named = {module_of(row): row for row in catalog.INDEXES.values()}
    return tuple(
        catalog.load(row, f"index kind '{row.name}'", group)
        for group, row in named.items()
        if group
    )


def settings_of(row: EngineRow) -> type[Settings] | None:
    """The group of settings for building indexes of one engine; None if it has none."""
    return catalog.load(row, f"index kind '{row.name}'", row.settings) if row.settings else None


def engine_options(kind: str = "") -> list[str]:
    """The names of the search settings of one engine, a row of the catalog; by default of all engines."""
    groups = ENGINE_SEARCH_SETTINGS
    if kind:
        row = catalog.INDEXES[kind]
        named = row.search_settings
        groups = (catalog.load(row, f"index kind '{kind}'", named),) if named else ()
    return [option.name for group in groups for option in options(group)]


ENGINE_SETTINGS = _groups(lambda row: row.settings)
ENGINE_SEARCH_SETTINGS = _groups(lambda row: row.search_settings)

if TYPE_CHECKING:

    class IndexSettings(SourceSettings, LexicalSettings, FaissSettings):
        """All settings of building an index; each engine reads its own."""

    class EngineSearchSettings(FeedbackSettings, FaissSearchSettings):
        """All settings of searching an index; each engine reads its own."""

else:
    IndexSettings = composed("IndexSettings", SourceSettings, *ENGINE_SETTINGS, KindSettings)
    EngineSearchSettings = composed("EngineSearchSettings", *ENGINE_SEARCH_SETTINGS)
