"""lmk: dense retrieval over documents of any length, with landmark pooling at its core.

Every command is a class of this package: `lmkcli.Encode("docs", model="mean-minilm", output="vectors").run()`
does the same as `lmk encode docs -m mean-minilm -o vectors`. Names are imported on first use, so `import
lmkcli` is fast. docs/python.md shows examples.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Analyze",
    "Browse",
    "BuildIndex",
    "Collection",
    "Compact",
    "Demo",
    "Doc",
    "Doctor",
    "Encode",
    "EncodeSettings",
    "Evaluate",
    "Export",
    "Fetch",
    "Grid",
    "Hit",
    "Hits",
    "Import",
    "Index",
    "LmkError",
    "OpenIndex",
    "OpenSettings",
    "Plot",
    "Pretrain",
    "Qrel",
    "Query",
    "Ragged",
    "Ranking",
    "RecipeOptions",
    "Repro",
    "Run",
    "Scores",
    "Search",
    "Serve",
    "Show",
    "TextEncoder",
    "Tokenize",
    "Train",
    "Update",
    "Vectors",
    "Verify",
    "encode_collection",
    "evaluate",
    "load_encoder",
    "open_collection",
    "open_index",
    "parse_measures",
    "read_run",
    "search",
    "write_run",
]

if TYPE_CHECKING:
    from lmkcli.data.collection import Collection, Doc, Qrel, Query, open_collection
    from lmkcli.data.run import Ranking, Run, read_run, write_run
    from lmkcli.encoding.text_encoder import (
        TextEncoder,
        encode_collection,
        load_encoder,
    )
    from lmkcli.errors import LmkError
    from lmkcli.evaluation.measures import Scores, evaluate, parse_measures
    from lmkcli.operations.compact import Compact
    from lmkcli.operations.doctor import Doctor
    from lmkcli.operations.encode import Encode
    from lmkcli.operations.eval import Evaluate
    from lmkcli.operations.fetch import Fetch
    from lmkcli.operations.index import BuildIndex
    from lmkcli.operations.repro import Repro
    from lmkcli.operations.search import Hit, Hits, OpenIndex, Search, open_index, search
    from lmkcli.operations.show import Show
    from lmkcli.operations.tokenize import Tokenize
    from lmkcli.operations.train import Train
    from lmkcli.operations.update import Update
    from lmkcli.operations.verify import Verify
    from lmkcli.plugins.analysis.analyze import Analyze
    from lmkcli.plugins.analysis.plot import Plot
    from lmkcli.plugins.browse.browse import Browse
    from lmkcli.plugins.demo.demo import Demo
    from lmkcli.plugins.exchange.export import Export
    from lmkcli.plugins.exchange.import_ import Import
    from lmkcli.plugins.grid.grid import Grid
    from lmkcli.plugins.pretrain.pretrain import Pretrain
    from lmkcli.plugins.serve.serve import Serve
    from lmkcli.retrieval.index import Index
    from lmkcli.retrieval.settings import OpenSettings
    from lmkcli.spec.recipe import RecipeOptions
    from lmkcli.spec.settings import EncodeSettings
    from lmkcli.vectors.rows import Ragged
    from lmkcli.vectors.stored import Vectors
else:
    from importlib import import_module

    _MODULES = {
        "lmkcli.data.collection": ("Collection", "Doc", "Qrel", "Query", "open_collection"),
        "lmkcli.data.run": ("Ranking", "Run", "read_run", "write_run"),
        "lmkcli.encoding.text_encoder": (
            "TextEncoder",
            "encode_collection",
            "load_encoder",
        ),
        "lmkcli.errors": ("LmkError",),
        "lmkcli.evaluation.measures": ("Scores", "evaluate", "parse_measures"),
        "lmkcli.operations.compact": ("Compact",),
        "lmkcli.operations.doctor": ("Doctor",),
        "lmkcli.operations.encode": ("Encode",),
        "lmkcli.operations.eval": ("Evaluate",),
        "lmkcli.operations.fetch": ("Fetch",),
        "lmkcli.operations.index": ("BuildIndex",),
        "lmkcli.operations.repro": ("Repro",),
        "lmkcli.operations.search": ("Hit", "Hits", "OpenIndex", "Search", "open_index", "search"),
        "lmkcli.operations.show": ("Show",),
        "lmkcli.operations.tokenize": ("Tokenize",),
        "lmkcli.operations.train": ("Train",),
        "lmkcli.operations.update": ("Update",),
        "lmkcli.operations.verify": ("Verify",),
        "lmkcli.spec.recipe": ("RecipeOptions",),
        "lmkcli.retrieval.index": ("Index",),
        "lmkcli.retrieval.settings": ("OpenSettings",),
        "lmkcli.spec.settings": ("EncodeSettings",),
        "lmkcli.vectors.rows": ("Ragged",),
        "lmkcli.vectors.stored": ("Vectors",),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> object:
        if name in _MODULE_OF:
            return getattr(import_module(_MODULE_OF[name]), name)
        if name[:1].isupper():  # the operation of a plug-in
            from lmkcli.catalog import OPERATIONS

            for row in OPERATIONS.values():
                if row.target.endswith(f":{name}"):
                    return OPERATIONS.load(row.name)
        raise AttributeError(f"module 'lmkcli' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
