"""Recipe and each step's settings, declared once: the command line's defaults are these fields.

A Recipe is everything that decides what a vector is. It has two sides, because documents and
queries may differ in prompt, length, pooling or even in the model.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from lmkcli.errors import UsageError

Similarity = Literal["cosine", "dot"]
Dtype = Literal["auto", "fp32", "bf16", "fp16"]
StoreDtype = Literal["fp16", "fp32"]
Overflow = Literal["truncate", "error"]


@dataclass(frozen=True)
class Side:
    """How the text of one side becomes vectors. Fields without `compare` only locate."""

    model: str = field(compare=False)  # folder or hub name; the digests below say what it is
    weights: str  # digest of weights, configuration and modules
    tokenizer: str  # digest of the tokenizer's files
    revision: str = field(default="", compare=False)  # the hub's commit, when it came from there
    trust_remote_code: bool = False
    prompt: str = ""
    max_length: int = 512  # positions of one model input, specials and landmarks included
    pool: str = "mean"
    gran: str = ""  # chunk length in tokens, 'sentence' or 'given'; empty where nothing is cut
    unit: str = "doc"  # what a vector stands for: 'doc', 'chunk' or 'token'
    window: str = "full"  # what the model sees at once: 'full', 'chunk', or so many positions
    overlap: int = 0  # tokens that a window sees of the one before
    extend: str = ""  # positions beyond training, such as 'grouped:4096'
    include_prompt: bool = True  # whether the states of prompt (and CLS) tokens are averaged
    append_eos: bool = False  # decoders: EOS after the content where the tokenizer adds none
    pad_to_max: bool = False  # whether inputs are padded to the model's length (M2-BERT sees it)
    prefix_token: int | None = (
        None  # late interaction: a token after CLS that tells the sides apart
    )
    skip: tuple[int, ...] = ()  # late interaction: token ids that make no vector (punctuation)
    expansion: int | None = None  # late interaction: what queries are filled up with, and scored
    attend_expansion: bool = False  # whether the real tokens see that filling
    dim: int = 0  # leading components kept (matryoshka); 0 keeps all
    normalize: bool = True
    similarity: Similarity = "cosine"

    def identity(self) -> dict[str, Any]:
        """The fields that two artifacts must share, as JSON holds them."""
        made = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return made | {"skip": list(self.skip)}

    @property
    def splitter(self) -> str:
        """What cuts the text before it is tokenized: 'sentence', 'given' or nothing."""
        return self.gran if self.gran in ("sentence", "given") else ""

    def tokens_identity(self) -> dict[str, Any]:
        """The three things that decide token ids: tokenizer, prompt and splitter."""
        return {"tokenizer": self.tokenizer, "prompt": self.prompt, "splitter": self.splitter}


@dataclass(frozen=True)
class Recipe:
    """Both sides. Vectors carry it, so that a query can be encoded knowing nothing else."""

    doc: Side
    query: Side

    def identity(self) -> dict[str, Any]:
        """The compared fields of both sides."""
        return {"doc": self.doc.identity(), "query": self.query.identity()}

    def located(self) -> dict[str, Any]:
        """Where the models were found, which is a fact and not compared."""
        return {
            "doc": {"model": self.doc.model, "revision": self.doc.revision},
            "query": {"model": self.query.model, "revision": self.query.revision},
        }

    @classmethod
    def read(cls, identity: dict[str, Any], located: dict[str, Any]) -> "Recipe":
        """The recipe of which `identity` and `located` were recorded."""
        return cls(
            doc=_side(identity["doc"], located["doc"]),
            query=_side(identity["query"], located["query"]),
        )

    def moved(self, model: str) -> "Recipe":
        """The same recipe with its model looked for elsewhere; the digests will be checked."""
        return replace(
            self, doc=replace(self.doc, model=model), query=replace(self.query, model=model)
        )


def _side(identity: dict[str, Any], located: dict[str, Any]) -> Side:
    return Side(**{**identity, "skip": tuple(identity.get("skip", ()))}, **located)


@dataclass(frozen=True)
class Wishes:
    """What a user asked of a recipe; None leaves the choice to the model folder."""

    model: str = ""
    revision: str | None = None
    trust_remote_code: bool = False
    pool: str = "auto"
    gran: str | None = None
    unit: str | None = None
    window: str | None = None
    overlap: int | None = None
    extend: str | None = None
    pad_to_max: bool | None = None
    max_length: int | None = None
    query_max_length: int | None = None
    query_prompt: str | None = None
    doc_prompt: str | None = None
    dim: int | None = None
    normalize: bool | None = None


@dataclass(frozen=True)
class EncodeSettings:
    """How `encode` works; none of it changes what a vector is beyond rounding."""

    dtype: Dtype = "auto"
    store_dtype: StoreDtype = "fp16"
    device: str = "auto"
    batch_tokens: int = 0  # positions per forward pass; 0 is chosen from the model and the device
    batch_size: int = 512  # at most so many sequences per forward pass
    on_overflow: Overflow = "truncate"
    store_text: bool = True

    def __post_init__(self) -> None:
        if self.batch_tokens < 0 or self.batch_size < 1:
            raise UsageError(
                "--batch-tokens cannot be negative, and --batch-size must be at least 1"
            )


@dataclass(frozen=True)
class SearchSettings:
    """How `search` works."""

    k: int = 1000
    threads: int = 0  # 0: as many as there are cores


@dataclass(frozen=True)
class AnnSettings:
    """A FAISS index: `kind` is hnsw, ivf or a factory string; 0 means: chosen from the rows."""

    kind: str = "hnsw"
    m: int = 32  # hnsw: links of a vector (twice as many at the lowest level)
    ef_construction: int = 200  # hnsw: how widely links are looked for
    ef_search: int = 0  # hnsw: how widely to search; 0 is max(128, 2k), and never less than k
    nprobe: int = 0  # ivf: lists that are searched; 0 grows with k
    max_memory: int = 0  # bytes that a build may take; 0 is what is free
    seed: int = 0  # of the training sample

    def __post_init__(self) -> None:
        if self.m < 2 or self.ef_construction < 1:
            raise UsageError(
                "an HNSW graph needs --m of at least 2 and --ef-construction of at least 1"
            )
        if min(self.ef_search, self.nprobe, self.max_memory) < 0:
            raise UsageError("--ef-search, --nprobe and --max-memory cannot be negative")


@dataclass(frozen=True)
class Bm25Settings:
    """A BM25 index; everything here decides scores."""

    k1: float = 0.9
    b: float = 0.4
    language: str = "en"
    stemmer: str = ""  # its name, or 'none'; empty: the language's own
    stopwords: str | None = None  # the words, with spaces between; None: the language's own
