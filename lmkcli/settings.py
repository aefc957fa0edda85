"""Each step's settings, declared once: a field is name, type and default, and its Flag the rest.

A field of type `Annotated[..., Flag(...)]` is a flag of every command that takes its dataclass; config
files, environment variables and the tables of the documentation follow from the same field.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from lmkcli.errors import UsageError

Dtype = Literal["auto", "fp32", "bf16", "fp16"]
StoreDtype = Literal["fp16", "fp32", "int8", "binary"]
Overflow = Literal["truncate", "error"]


# collection, model, artifact, run, file: the value names one. reading: how a collection is read. layout: how
# a result is printed. speed: changes how fast the result is there, not the result. These are recorded.
# output: where the result goes. consent: what only the command line may allow. secret: never stored. mode:
# how this call behaves (resume, offline, a shard). These are not recorded.
Role = Literal[
    "", "collection", "model", "artifact", "run", "file", "reading", "layout", "speed",
    "output", "consent", "secret", "mode",
]  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """What the command line needs to know of a field beside its name, type and default."""

    help: str
    short: str = ""  # such as '-m'
    long: str = ""  # where it is not the field's name, as '--with' is
    min: float | None = None
    max: float | None = None
    metavar: str | None = None  # what help calls the value
    shown: str = ""  # the default in words, where the field's own is None or 0
    parse: Callable[[str], object] | None = None  # reads what is written, such as 16GB
    often: bool = False  # whether help shows it among the first
    argument: bool = False  # a positional argument, not a flag
    role: Role = ""  # what the value names, or whom it concerns
    only: str = ""  # the variants of an operation that have this setting, such as "lexical"
    ineffective: Callable[[Any], str] | None = None  # why it has no effect on an operation, or ""


class Settings:
    """The base of all groups of settings; their checks call one another through `super()`."""

    panel: ClassVar[str] = ""  # the heading of the group in help pages

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot be."""


def parse_bytes(text: str) -> int:
    """'16GB' -> 16000000000; UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if not match:
        raise UsageError(f"{text!r} is not a size; write for instance 16GB or 800MB")
    return int(float(match[1]) * 1000 ** "_kmgt".index(match[2].lower() or "_"))


def parse_uri(text: str) -> str:
    """Where a Milvus is, if anywhere; UsageError for what is no place, or holds a password."""
    parts = urlsplit(text)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "--uri names a place alone: http://host:19530 or http://host:19530/DATABASE; a token or a "
            "password (user:password) goes into the environment variable LMK_MILVUS_TOKEN"
        )
    if text and not (
        text.endswith(".db") if "://" not in text else parts.scheme in ("http", "https")
    ):
        raise UsageError(
            f"--uri {text!r} is no place of a Milvus; write a file such as ./milvus.db, or "
            "http://host:19530"
        )
    return text


Device = Annotated[str, Flag("auto, cpu, cuda or cuda:1.", role="speed")]
Offline = Annotated[bool, Flag("Never use the network (as with HF_HUB_OFFLINE=1).", role="mode")]
TrustRemoteCode = Annotated[bool, Flag("Run code that comes with the model.", role="consent")]


@dataclass(frozen=True, kw_only=True)
class EncodeSettings(Settings):
    """How `encode` works; none of it changes what a vector is beyond rounding."""

    panel: ClassVar[str] = "How it is made"
    dtype: Annotated[Dtype, Flag("Compute dtype; auto is bf16 where native.")] = "auto"
    store_dtype: Annotated[
        StoreDtype,
        Flag("Dtype of the stored vectors; int8 and binary are codes of a byte or a bit."),
    ] = "fp16"
    device: Device = "auto"
    batch_tokens: Annotated[
        int,
        Flag(
            "Positions per forward pass; 0: chosen from the model and the device.",
            min=0,
            role="speed",
        ),
    ] = 0
    batch_size: Annotated[int, Flag("Most sequences per forward pass.", min=1, role="speed")] = 512
    on_overflow: Annotated[
        Overflow, Flag("Texts that do not fit: truncate and count them, or stop.")
    ] = "truncate"
    store_text: Annotated[bool, Flag("Keep title and text beside the vectors.")] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_tokens < 0 or self.batch_size < 1:
            raise UsageError(
                "--batch-tokens cannot be negative, and --batch-size must be at least 1"
            )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Where an artifact's model is now, and what it may do here."""

    panel: ClassVar[str] = "The model"
    model: Annotated[
        str, Flag("Where the model is now, if it was moved.", role="model", only="queries")
    ] = ""
    trust_remote_code: Annotated[
        bool, Flag("Run code that comes with the model.", role="consent", only="queries")
    ] = False
    device: Device = "auto"
    dtype: Annotated[
        Dtype | None,
        Flag("Compute dtype; by default the one that encoded the documents.", only="queries"),
    ] = None
    offline: Offline = False


@dataclass(frozen=True)
class Feedback:
    """How a query grows by terms of the documents that it finds first (pseudo-relevance feedback)."""

    method: Literal["rm3", "rocchio"]
    terms: int = 10  # that are added
    docs: int = 10  # that they come from
    weight: float = 0.5  # rm3: of the query as it was asked


@dataclass(frozen=True, kw_only=True)
class OpenSettings(ModelSettings):
    """Where to look when things were moved, and how an index is searched."""

    panel: ClassVar[str] = "How it is searched"
    vectors: Annotated[
        str,
        Flag(
            "Where the index's vectors are now, if they were moved.", role="artifact", only="index"
        ),
    ] = ""
    ef_search: Annotated[
        int, Flag("HNSW: breadth of the search; 0 grows with k.", min=0, only="index")
    ] = 0
    nprobe: Annotated[
        int, Flag("ivf: lists that are searched; 0 grows with k.", min=0, only="index")
    ] = 0
    uri: Annotated[
        str,
        Flag(
            "milvus: the server, needed unless it is on this machine.",
            parse=parse_uri,
            only="database",
        ),
    ] = ""
    aggregate: Annotated[
        Literal["max", "sum", "avg", "first"] | None,
        Flag("How the scores of a document's vectors are combined.", shown="max", only="several"),
    ] = None
    level: Annotated[
        Literal["doc", "chunk"] | None,
        Flag(
            "chunk: rank chunks, with ids doc#number; -k then counts chunks.",
            shown="doc",
            only="several",
        ),
    ] = None
    rm3: Annotated[
        bool,
        Flag("bm25, lucene: terms of the first documents join the query (RM3).", only="feedback"),
    ] = False
    rm3_terms: Annotated[
        int | None,
        Flag("rm3: how many terms join.", min=1, shown=str(Feedback.terms), only="feedback"),
    ] = None
    rm3_docs: Annotated[
        int | None,
        Flag(
            "rm3: how many documents they come from.",
            min=1,
            shown=str(Feedback.docs),
            only="feedback",
        ),
    ] = None
    rm3_weight: Annotated[
        float | None,
        Flag(
            "rm3: weight of the query as asked.",
            min=0,
            max=1,
            shown=str(Feedback.weight),
            only="feedback",
        ),
    ] = None
    rocchio: Annotated[
        bool, Flag("bm25, lucene: Rocchio feedback instead of RM3.", only="feedback")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rm3 and self.rocchio:
            raise UsageError("give --rm3 or --rocchio, not both")
        if self._chosen and not self.rm3:
            raise UsageError(f"--rm3-{next(iter(self._chosen))} means nothing without --rm3")

    @property
    def feedback(self) -> Feedback | None:
        """What --rm3 or --rocchio asks for."""
        if self.rocchio:
            return Feedback("rocchio")
        return replace(Feedback("rm3"), **self._chosen) if self.rm3 else None

    @property
    def _chosen(self) -> dict[str, Any]:
        """What was said of RM3."""
        names = ("terms", "docs", "weight")
        given = {name: getattr(self, f"rm3_{name}") for name in names}
        return {name: value for name, value in given.items() if value is not None}

    def refuse(self, what: str, *names: str) -> None:
        """UsageError when one of the named settings was given and means nothing for `what`."""
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name)]
        if given:
            raise UsageError(f"{', '.join(given)} has no effect on {what}; drop it")


@dataclass(frozen=True)
class RerankSettings:
    """How many documents a query are scored again, and how much that weighs (None: alone)."""

    depth: int = 100
    interpolate: float | None = None


Links = Annotated[
    int,
    Flag(
        "HNSW: links per vector, twice as many at the lowest level.", min=2, only="faiss database"
    ),
]
Breadth = Annotated[int, Flag("HNSW: breadth while building.", min=1, only="faiss database")]


@dataclass(frozen=True, kw_only=True)
class AnnSettings(Settings):
    """A FAISS index: `kind` is a name of the catalog or a factory string; 0 means: chosen from the rows."""

    panel: ClassVar[str] = "FAISS"
    kind: Annotated[
        str,
        Flag(
            "hnsw, ivf, int8, binary, pq, a FAISS factory string such as OPQ64,IVF4096,PQ64; milvus; "
            "bm25 or lucene.",
            often=True,
        ),
    ] = "hnsw"
    m: Links = 32
    ef_construction: Breadth = 200
    ef_search: int = 0  # hnsw: how widely to search; 0 is max(128, 2k), and never less than k
    nprobe: int = 0  # ivf: lists that are searched; 0 grows with k
    max_memory: Annotated[
        int,
        Flag(
            "Refuse to build beyond this, such as 16GB.",
            metavar="SIZE",
            shown="what is free",
            parse=parse_bytes,
            only="faiss",
            role="mode",
        ),
    ] = 0
    seed: int = 0  # of the training sample

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.m < 2 or self.ef_construction < 1:
            raise UsageError(
                "an HNSW graph needs --m of at least 2 and --ef-construction of at least 1"
            )
        if min(self.ef_search, self.nprobe, self.max_memory) < 0:
            raise UsageError("--ef-search, --nprobe and --max-memory cannot be negative")


@dataclass(frozen=True, kw_only=True)
class MilvusSettings(Settings):
    """A collection in Milvus; `m` and `ef_construction` are those of HNSW."""

    panel: ClassVar[str] = "Milvus"
    uri: Annotated[
        str,
        Flag(
            "milvus: a file such as ./milvus.db, or http://host:19530.",
            parse=parse_uri,
            only="database",
        ),
    ] = ""
    collection: Annotated[
        str, Flag("milvus: the name of the collection.", metavar="NAME", only="database")
    ] = ""
    index_type: Annotated[
        Literal["AUTOINDEX", "HNSW", "FLAT"],
        Flag("milvus: how it searches; FLAT compares every vector.", only="database"),
    ] = "AUTOINDEX"
    m: Links = AnnSettings.m
    ef_construction: Breadth = AnnSettings.ef_construction

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collection and not re.fullmatch(r"[A-Za-z_]\w{0,254}", self.collection, re.ASCII):
            raise UsageError(
                f"--collection {self.collection!r}: Milvus allows letters, digits and underscores, no "
                "digit first, 255 at most"
            )


@dataclass(frozen=True, kw_only=True)
class Bm25Settings(Settings):
    """A BM25 index; everything here decides scores."""

    panel: ClassVar[str] = "BM25 and Lucene"
    k1: Annotated[float, Flag("bm25, lucene: term saturation.", min=0, only="lexical")] = 0.9
    b: Annotated[
        float, Flag("bm25, lucene: length normalisation.", min=0, max=1, only="lexical")
    ] = 0.4
    language: Annotated[
        str, Flag("bm25, lucene: stemmer and stop words, such as en, de, hi.", only="lexical")
    ] = "en"
    stemmer: Annotated[
        str,
        Flag(
            "A stemmer other than the language's, or none. bm25: Snowball's, such as porter; lucene: porter "
            "or krovetz.",
            only="lexical",
        ),
    ] = ""
    stopwords: str | None = None  # the words, with spaces between; None: the language's own
    unit: Annotated[
        Literal["doc", "chunk"],
        Flag("bm25, lucene: rank documents as wholes, or by their chunks.", only="lexical"),
    ] = "doc"
    gran: Annotated[
        str,
        Flag(
            "bm25, lucene: what a chunk is: a number of words, 'sentence', or 'given'.",
            only="lexical",
        ),
    ] = ""
    context: Annotated[
        str,
        Flag(
            "bm25, lucene: what stands before each chunk: title, headings (Markdown, HTML), or "
            "field:NAME.",
            only="lexical",
        ),
    ] = ""
    docvectors: Annotated[
        bool,
        Flag(
            "lucene: store each document's terms, which --rm3 and --rocchio need.", only="lexical"
        ),
    ] = False

    def identity(self) -> dict[str, Any]:
        """The fields as an index records them; those that came later only where they say something."""
        later = {each.name: each.default for each in fields(self) if each.name in _LATER}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in later or value != later[name]
        }


_LATER = ("unit", "gran", "context", "docvectors")
