"""Recipe: everything that decides what a vector is, and what a user may ask of it.

It has two sides, because documents and queries may differ in prompt, length, pooling or even in the
model.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from lmkcli.errors import DataError
from lmkcli.reading import checked, within
from lmkcli.settings import Flag, Settings, TrustRemoteCode

Similarity = Literal["cosine", "dot"]
Positions = Annotated[int, within(1, 1 << 31)]
TABLES = ("grouped", "interpolate", "recurrent")  # --extend, of models with a table of positions
ROTARY = ("ntk", "selfextend")
EXTENSIONS = (*TABLES, *ROTARY)
Number = Annotated[int, within(0, 1 << 31)]
_AGAIN = "make the artifact again"
Model = Annotated[
    str,
    Flag(
        "A model folder, a hub name, lmk-minilm or minilm (extra demo).",
        short="-m",
        often=True,
        role="model",
    ),
]
Revision = Annotated[str | None, Flag("Branch, tag or commit of a hub model.")]


def is_count(text: str) -> bool:
    """Whether a setting is written as a whole number from 1 on, in plain digits."""
    return text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0


@dataclass(frozen=True)
class EncoderConfig:
    """How the text of one side becomes vectors. Fields without `compare` only locate."""

    model: str = field(compare=False)  # folder or hub name; the digests below say what it is
    weights: str  # digest of weights, configuration and modules
    tokenizer: str  # digest of the tokenizer's files
    revision: str = field(default="", compare=False)  # the hub's commit, when it came from there
    trust_remote_code: bool = False
    prompt: str = ""
    max_length: Positions = 512  # positions of one model input, specials and landmarks included
    pool: str = "mean"
    pool_package: str = (
        ""  # the package of a pooler that is not lmk's own, such as 'lmk-head 0.1.0'
    )
    gran: str = ""  # chunk length in tokens, 'sentence' or 'given'; empty where nothing is cut
    unit: str = "doc"  # what a vector stands for: 'doc', 'chunk' or 'token'
    window: str = "full"  # what the model sees at once: 'full', 'chunk', or so many positions
    overlap: Number | str = 0  # tokens that a window sees of the one before, or chunks: '10c'
    extend: str = ""  # positions beyond training, such as 'grouped:4096'
    include_prompt: bool = True  # whether the states of prompt (and CLS) tokens are averaged
    append_eos: bool = False  # decoders: EOS after the content where the tokenizer adds none
    pad_to_max: bool = False  # whether inputs are padded to the model's length (M2-BERT sees it)
    prefix_token: int | None = None  # late interaction: the token after CLS that names the side
    context: str = ""  # what stands before each chunk: 'title', 'headings' or 'field:NAME'
    skip: tuple[int, ...] = ()  # late interaction: token ids that make no vector (punctuation)
    expansion: int | None = None  # late interaction: what queries are filled up with, and scored
    attend_expansion: bool = False  # whether the real tokens see that filling
    dim: Number = 0  # leading dimensions kept (matryoshka); 0 keeps all
    normalize: bool = True
    similarity: Similarity = "cosine"

    def identity(self) -> dict[str, Any]:
        """The fields that two artifacts must share, as JSON holds them."""
        compared = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        for name in ("context", "pool_package"):  # recorded only if they are used
            if not compared[name]:
                del compared[name]
        return compared | {"skip": list(self.skip)}

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

    doc: EncoderConfig
    query: EncoderConfig

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
            doc=_encoder_config(identity["doc"], located["doc"]),
            query=_encoder_config(identity["query"], located["query"]),
        )

    def moved(self, model: str) -> "Recipe":
        """The same recipe with its model looked for elsewhere; the digests will be checked."""
        return replace(
            self, doc=replace(self.doc, model=model), query=replace(self.query, model=model)
        )


def _encoder_config(identity: dict[str, Any], located: dict[str, Any]) -> EncoderConfig:
    given = {**identity, **located}
    checked(given, EncoderConfig, "the recipe of the manifest", _AGAIN)
    for name, words in (("gran", ("", "sentence", "given")), ("window", ("full", "chunk"))):
        value = given.get(name, words[0])
        if value not in words and not is_count(value):
            raise DataError(f"the recipe of the manifest has the {name} {value!r}; {_AGAIN}")
    overlap = given.get("overlap", 0)
    if isinstance(overlap, str) and not is_count(overlap.removesuffix("c")):
        raise DataError(f"the recipe of the manifest has the overlap {overlap!r}; {_AGAIN}")
    context = given.get("context", "")
    if context not in ("", "title", "headings") and not context.startswith("field:"):
        raise DataError(f"the recipe of the manifest has the context {context!r}; {_AGAIN}")
    return EncoderConfig(**{**given, "skip": tuple(given.get("skip", ()))})


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(Settings):
    """What a user asked of a recipe; None leaves the choice to the model folder."""

    panel: ClassVar[str] = "What a vector is"
    model: Model = ""
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    pool: Annotated[
        str,
        Flag(
            "auto (what the model folder says), cls, last, mean, mean@k, multicls, lmk, latent.",
            often=True,
        ),
    ] = "auto"
    gran: Annotated[
        str | None,
        Flag(
            "How text is cut into chunks: a number of tokens, 'sentence', or 'given' by the collection.",
            often=True,
        ),
    ] = None
    unit: Annotated[
        str | None, Flag("What a vector stands for: doc, chunk or token.", shown="doc", often=True)
    ] = None
    window: Annotated[
        str | None,
        Flag(
            "What the model sees at once: full (the rest is truncated), chunk, or a number of positions.",
            shown="that of the model, else full",
            often=True,
        ),
    ] = None
    overlap: Annotated[
        str | None,
        Flag(
            "What a window shares with the one before: tokens (128), or chunks (10c).", metavar="N"
        ),
    ] = None
    context: Annotated[
        str | None,
        Flag(
            "What stands before each chunk that is embedded alone: title, headings (Markdown, HTML), or "
            "field:NAME."
        ),
    ] = None
    extend: Annotated[
        str | None,
        Flag(
            "Positions beyond training, up to --max-length: grouped, interpolate or recurrent (tables "
            "of positions), ntk or selfextend (rotary)."
        ),
    ] = None
    pad_to_max: Annotated[
        bool | None,
        Flag(
            "Models that see padding (M2-BERT): pad to full length, as for the released vectors, or not."
        ),
    ] = None
    max_length: Annotated[
        int | None,
        Flag("Positions of a document's input, specials included.", min=1, often=True),
    ] = None
    query_max_length: Annotated[
        int | None, Flag("Positions of a query's input, specials included.", min=1)
    ] = None
    query_prompt: Annotated[str | None, Flag("Text before every query.")] = None
    doc_prompt: Annotated[str | None, Flag("Text before every document.")] = None
    dim: Annotated[int | None, Flag("Keep this many dimensions (matryoshka).", min=1)] = None
    normalize: Annotated[bool | None, Flag("Normalise vectors to unit length, or not.")] = None
