"""The settings of all engines, as `lmk index` and `lmk search` accept them.

Each row of an engine names its groups of settings. `IndexSettings` and `EngineSearchSettings` have the fields
of all of them; an engine reads its own group with `settings.part(Group)`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from lmkcli import catalog
from lmkcli.catalog import EngineRow
from lmkcli.errors import DataError
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSearchSettings, FaissSettings
from lmkcli.retrieval.engines.kind_setting import KindSettings
from lmkcli.retrieval.lexical.lexical_settings import (
    LEXICAL_KINDS,
    FeedbackSettings,
    LexicalSettings,
)
from lmkcli.spec.option import options
from lmkcli.spec.settings import Flag, Offline, Settings, composed, declared_groups
from lmkcli.spec.values import Shard


@dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """Settings for reading the input, and the shard to index."""

    panel: ClassVar[str] = "Documents"
    fields: Annotated[
        str,
        Flag(
            f"{LEXICAL_KINDS}: text fields of a record, joined by '+', such as headline+body.",
            only="lexical",
        ),
    ] = ""
    map_ids: Annotated[
        bool, Flag(f"{LEXICAL_KINDS}: replace white space in ids by '_'.", only="lexical")
    ] = False
    offline: Offline = False
    stopwords_file: Annotated[
        str | None,
        Flag(
            f"{LEXICAL_KINDS}: a file of stop words, one per line; or none.",
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


def settings_of(row: EngineRow) -> type[Settings] | None:
    """Return the group of settings for building indexes of one engine; None if it has none."""
    return catalog.load(row, f"index kind '{row.name}'", row.settings) if row.settings else None


def engine_options(kind: str = "") -> list[str]:
    """Return the names of the search settings of one engine, a row of the catalog; by default of all engines.

    Raises DataError if the engine, which an index records, is not installed.
    """
    groups = ENGINE_SEARCH_SETTINGS
    if kind:
        if kind not in catalog.ENGINES:
            raise DataError(
                f"an index of kind {kind[:40]!r}: no installed package has this index kind; install its "
                "package"
            )
        row = catalog.ENGINES[kind]
        named = row.search_settings
        groups = (catalog.load(row, f"index kind '{kind}'", named),) if named else ()
    return [option.name for group in groups for option in options(group)]


def search_identity(kind: str, settings: Settings) -> dict[str, Any]:
    """Return the search settings of an engine that change its results, as a run records them."""
    names = engine_options(catalog.engine_row(kind).name)
    kept = [each for each in options(type(settings)) if each.name in names]
    same_results = ("speed", "address", "layout", "mode", "secret", "consent")
    return {
        each.name: getattr(settings, each.name)
        for each in kept
        if each.flag.role not in same_results
    }


ENGINE_SETTINGS = tuple(declared_groups(catalog.ENGINES).values())
ENGINE_SEARCH_SETTINGS = tuple(declared_groups(catalog.ENGINES, "search_settings").values())

if TYPE_CHECKING:

    class IndexSettings(SourceSettings, LexicalSettings, FaissSettings):
        """All settings of building an index; each engine reads its own."""

    class EngineSearchSettings(FeedbackSettings, FaissSearchSettings):
        """All settings of searching an index; each engine reads its own."""

else:
    IndexSettings = composed("IndexSettings", SourceSettings, *ENGINE_SETTINGS, KindSettings)
    EngineSearchSettings = composed("EngineSearchSettings", *ENGINE_SEARCH_SETTINGS)
