"""The settings of Lucene indexes."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from lmkcli.retrieval.lexical.lexical_settings import LexicalSettings
from lmkcli.spec.settings import Flag


@dataclass(frozen=True, kw_only=True)
class LuceneSettings(LexicalSettings):
    """Settings for building a Lucene index."""

    panel: ClassVar[str] = "Lucene"
    docvectors: Annotated[
        bool, Flag("lucene: store document terms for --rm3 and --rocchio.", only="lexical")
    ] = False
