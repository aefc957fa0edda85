"""lmk: dense retrieval over documents of any length, with landmark pooling at its core.

Every command is a class of this package: `lmkcli.Encode("docs", model="mean-minilm", output="vectors").run()`
does the same as `lmk encode docs -m mean-minilm -o vectors`. Names are imported on first use, so `import
lmkcli` is fast. docs/python.md shows examples.
"""

import warnings
from importlib import import_module

__version__ = "1.0.0rc1"

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
    "Source",
    "TextEncoder",
    "Tokenize",
    "Train",
    "Update",
    "Vectors",
    "Verify",
    "encode_collection",
    "evaluate",
    "index",
    "load_encoder",
    "open_collection",
    "open_index",
    "parse_measures",
    "read_run",
    "search",
    "write_run",
]

_MODULES = {
    "lmkcli.data.collection": ("Collection", "Doc", "Qrel", "Query", "Source", "open_collection"),
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
    "lmkcli.operations.memory_index": ("index",),
    "lmkcli.operations.repro": ("Repro",),
    "lmkcli.operations.search": ("Hit", "Hits", "OpenIndex", "Search", "open_index", "search"),
    "lmkcli.operations.show": ("Show",),
    "lmkcli.operations.tokenize": ("Tokenize",),
    "lmkcli.operations.train": ("Train",),
    "lmkcli.operations.update": ("Update",),
    "lmkcli.operations.verify": ("Verify",),
    "lmkcli.spec.recipe": ("RecipeOptions",),
    "lmkcli.retrieval.index": ("Index",),
    "lmkcli.retrieval.open_settings": ("OpenSettings",),
    "lmkcli.spec.settings": ("EncodeSettings",),
    "lmkcli.vectors.rows": ("Ragged",),
    "lmkcli.vectors.stored": ("Vectors",),
}
# Libraries that lmk imports show their own progress in notebooks, as text if ipywidgets is missing.
warnings.filterwarnings("ignore", "IProgress not found")

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    if name[:1].isupper():  # the operation of a plug-in
        from lmkcli.catalog import VERBS

        for row in VERBS.values():
            if row.target.endswith(f":{name}"):
                return VERBS.load(row.name)
    raise AttributeError(f"module 'lmkcli' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
