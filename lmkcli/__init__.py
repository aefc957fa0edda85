"""lmk: dense retrieval over documents of any length, with landmark pooling at its heart.

The names below are the public face: each is imported from its module when it is first used, so that
`import lmkcli` itself imports nothing heavy. docs/python.md shows them at work.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Collection",
    "Doc",
    "EncodeSettings",
    "Index",
    "LmkError",
    "OpenSettings",
    "Qrel",
    "Query",
    "Ragged",
    "Ranking",
    "RecipeOptions",
    "Run",
    "Scores",
    "TextEncoder",
    "Vectors",
    "encode_collection",
    "evaluate",
    "load_encoder",
    "open_collection",
    "open_index",
    "parse_measures",
    "read_run",
    "write_run",
]

if TYPE_CHECKING:
    from lmkcli.data.collection import Collection, Doc, Qrel, Query, open_collection
    from lmkcli.data.run import Ranking, Run, read_run, write_run
    from lmkcli.encoding.text_encoder import TextEncoder, encode_collection, load_encoder
    from lmkcli.errors import LmkError
    from lmkcli.evaluation.measures import Scores, evaluate, parse_measures
    from lmkcli.recipe import RecipeOptions
    from lmkcli.retrieval.index import Index
    from lmkcli.retrieval.opening import open_index
    from lmkcli.settings import EncodeSettings, OpenSettings
    from lmkcli.store.ragged import Ragged
    from lmkcli.store.vectors import Vectors
else:
    from importlib import import_module

    _MODULES = {
        "lmkcli.data.collection": ("Collection", "Doc", "Qrel", "Query", "open_collection"),
        "lmkcli.data.run": ("Ranking", "Run", "read_run", "write_run"),
        "lmkcli.encoding.text_encoder": ("TextEncoder", "encode_collection", "load_encoder"),
        "lmkcli.errors": ("LmkError",),
        "lmkcli.evaluation.measures": ("Scores", "evaluate", "parse_measures"),
        "lmkcli.recipe": ("RecipeOptions",),
        "lmkcli.retrieval.index": ("Index",),
        "lmkcli.retrieval.opening": ("open_index",),
        "lmkcli.settings": ("EncodeSettings", "OpenSettings"),
        "lmkcli.store.ragged": ("Ragged",),
        "lmkcli.store.vectors": ("Vectors",),
    }
    _HOMES = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'lmkcli' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
