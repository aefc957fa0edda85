"""Recipe: all settings that determine vectors, and the flags with which users choose them.

A recipe has two sides, because documents and queries can differ in prompt, length, pooling or even in the
model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from lmkcli.catalog import POOLERS, pooler_row
from lmkcli.errors import DataError, UsageError
from lmkcli.spec.settings import Flag, Settings, TrustRemoteCode, composed, declared_groups
from lmkcli.spec.values import (
    FULL,
    NO_OVERLAP,
    WHOLE_TEXT,
    Granularities,
    Granularity,
    Overlap,
    Window,
)
from lmkcli.system.input_files import int_range

Similarity = Literal["cosine", "dot"]
Positions = Annotated[int, int_range(1, 1 << 31)]
TABLES = (
    "grouped",
    "interpolate",
    "recurrent",
)  # values of --extend for models with a table of positions
ROTARY = ("ntk", "selfextend")
EXTENSIONS = (*TABLES, *ROTARY)
UNITS = ("doc", "chunk", "token")  # what one vector represents
Number = Annotated[int, int_range(0, 1 << 31)]
PoolerSetting: TypeAlias = bool | Annotated[int, int_range(-(1 << 31), 1 << 31)] | float | str
_RECORDED_IF_USED: tuple[tuple[str, Any], ...] = (
    *(("context", ""), ("pool_package", ""), ("landmark_token", None)),
    *(("settings", {}), ("static", False), ("keep_space", False), ("prompt_apart", False)),
)
Model = Annotated[
    str,
    Flag(
        "A model folder, a hub name, mean-minilm, lmk-minilm or minilm (extra demo).",
        short="-m",
        often=True,
        role="model",
        aliases="--encoder --model-name --model-name-or-path",
    ),
]
Revision = Annotated[str | None, Flag("Branch, tag or commit of a hub model.")]


@dataclass(frozen=True)
class EncoderConfig:
    """The settings that determine the vectors of one side.

    Fields with compare=False only locate the model. The artifact records them among its facts.
    """

    weights: str  # digest of weights, configuration and modules
    tokenizer: str  # digest of the tokenizer's files
    model: str = field(default="", compare=False)  # folder or hub name; the digests identify it
    revision: str = field(default="", compare=False)  # commit of a hub model
    trust_remote_code: bool = False
    prompt: str = ""
    max_length: Positions = 512  # positions of one model input, with special tokens and landmarks
    pool: str = "mean"
    pool_package: str = (
        ""  # the package of a pooler that is not part of lmk, such as 'lmk-head 0.1.0'
    )
    gran: Granularity = WHOLE_TEXT
    unit: str = "doc"  # one of UNITS
    window: Window = FULL
    overlap: Overlap = NO_OVERLAP
    extend: str = ""  # positions beyond training, such as 'grouped:4096'
    include_prompt: bool = True  # whether the states of prompt (and CLS) tokens are averaged
    prompt_apart: bool = False  # whether a prompt before several chunks belongs to none of them
    append_eos: bool = False  # decoders: add EOS after the content if the tokenizer does not
    pad_to_max: bool = False  # whether inputs are padded to full length (some models read padding)
    # the landmark of a folder with sentence-transformers' LandmarkTransformer, which places texts by its own
    # rules (`make_placer`)
    landmark_token: Number | None = None
    prefix_token: Number | None = None  # late interaction: the token after CLS that marks the side
    # text before each chunk: 'title', 'headings' or 'field:NAME'
    context: str = ""
    skip: tuple[Number, ...] = ()  # late interaction: token ids without a vector (punctuation)
    # late interaction: the token that fills queries up, and is scored
    expansion: Number | None = None
    attend_expansion: bool = False  # whether the query tokens attend to these fill tokens
    dim: Number = 0  # number of leading dimensions to keep (Matryoshka); 0: all
    # the settings of the pooler, for this side (`PoolerRow.settings`); only those that are used
    settings: dict[str, PoolerSetting] = field(default_factory=dict, hash=False)
    keep_space: bool = False  # whether white space at the ends of a text is tokenized
    static: bool = False  # queries: from a table of the model folder, without the model
    normalize: bool = True
    similarity: Similarity = "cosine"

    def __post_init__(self) -> None:
        for name, kind in (("gran", Granularity), ("window", Window), ("overlap", Overlap)):
            object.__setattr__(self, name, kind(getattr(self, name)))
        if self.unit not in UNITS:
            raise ValueError(f"the unit {self.unit!r} is not one of {', '.join(UNITS)}")
        if self.context not in ("", "title", "headings") and not self.context.startswith("field:"):
            raise ValueError(f"the context {self.context!r} is not title, headings or field:NAME")
        try:
            self.prompt.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"the prompt {self.prompt!r} is not valid Unicode; correct it, or give --doc-prompt and "
                "--query-prompt"
            ) from None

    def identity(self) -> dict[str, Any]:
        """Return the fields that two artifacts must share, as JSON values."""
        compared = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        for name, unused in _RECORDED_IF_USED:
            if compared[name] == unused:  # recorded only if they are used
                del compared[name]
        texts = {"gran": str(self.gran), "window": str(self.window)}
        return compared | texts | {"overlap": self.overlap.as_json(), "skip": list(self.skip)}

    @property
    def by_chunk(self) -> bool:
        """Whether each vector belongs to a chunk: unit chunk, or unit token with given chunks."""
        return self.unit == "chunk" or (self.unit == "token" and self.gran == "given")

    @property
    def splitter(self) -> str:
        """The splitter of texts before tokenization: 'sentence', 'given' or empty."""
        return self.gran.splitter


@dataclass(frozen=True)
class ModelLocation:
    """Where a model was found: a folder or a hub name, and the commit of a hub model."""

    model: str
    revision: str


@dataclass(frozen=True)
class ModelLocations:
    """The locations of the models of both sides. They are facts, so lmk does not compare them."""

    doc: ModelLocation
    query: ModelLocation


@dataclass(frozen=True)
class Recipe:
    """Both sides. Vectors store the recipe, so queries can be encoded without further settings."""

    doc: EncoderConfig
    query: EncoderConfig

    @property
    def sides(self) -> tuple[EncoderConfig, EncoderConfig]:
        """The side of documents and the side of queries."""
        return self.doc, self.query

    def identity(self) -> dict[str, Any]:
        """Return the compared fields of both sides, as JSON values."""
        return {"doc": self.doc.identity(), "query": self.query.identity()}

    def located(self) -> ModelLocations:
        """Return the locations of the models."""
        return ModelLocations(*(ModelLocation(side.model, side.revision) for side in self.sides))

    def located_at(self, models: ModelLocations) -> "Recipe":
        """Return the same recipe with these locations of its models."""
        return Recipe(
            replace(self.doc, model=models.doc.model, revision=models.doc.revision),
            replace(self.query, model=models.query.model, revision=models.query.revision),
        )

    def moved(self, model: str) -> "Recipe":
        """Return the same recipe with another location of its model. The digests will be checked."""
        return replace(
            self, doc=replace(self.doc, model=model), query=replace(self.query, model=model)
        )


@dataclass(frozen=True, kw_only=True)
class SharedRecipeOptions(Settings):
    """The flags of a recipe that all poolers have."""

    panel: ClassVar[str] = "Recipe"
    model: Model = ""
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    pool: Annotated[
        str,
        Flag(
            "auto (from the model folder), cls, last, mean, mean@k, multicls, lmk, latent, or another "
            "(lmk show poolers).",
            often=True,
            aliases="--pooling --pooler",
            suggest_for="--pooling-mode --pooling-method",
        ),
    ] = "auto"
    gran: Annotated[
        Granularities | None,
        Flag(
            "Granularity, the length of chunks: a number of tokens, 'sentence', or 'given' (as the "
            "collection defines).",
            often=True,
            aliases="--granularity",
            suggest_for="--chunk-size --chunk-length --chunk-tokens --passage-length --splitter",
        ),
    ] = None
    unit: Annotated[
        str | None,
        Flag(
            "The text that one vector represents: doc, chunk or token.",
            shown="doc",
            often=True,
            suggest_for="--level --multi-vector",
        ),
    ] = None
    window: Annotated[
        Window | None,
        Flag(
            "The text that the model reads at once: full (truncated), chunk, N positions, or even:N (about "
            "equally long).",
            shown="from the model, else full",
            often=True,
            aliases="--window-size",
            suggest_for="--late-chunking",
        ),
    ] = None
    overlap: Annotated[
        Overlap | None,
        Flag(
            "Overlap with the previous window: tokens (128) or chunks (10c).",
            metavar="N",
            aliases="--window-overlap --chunk-overlap",
            suggest_for="--stride --doc-stride",
        ),
    ] = None
    context: Annotated[
        str | None,
        Flag(
            "Text to add before each chunk that is encoded alone: title, headings (Markdown, HTML), "
            "or field:NAME."
        ),
    ] = None
    extend: Annotated[
        str | None,
        Flag(
            "Extend the positions of the model up to --max-length: grouped, interpolate or recurrent "
            "(tables of positions), ntk or selfextend (rotary)."
        ),
    ] = None
    pad_to_max: Annotated[
        bool | None,
        Flag("Models that read padding: pad every input to the full length of the model."),
    ] = None
    max_length: Annotated[
        int | None,
        Flag(
            "Positions of a document, special tokens included.",
            min=1,
            often=True,
            aliases="--max-seq-length --max-seq-len --doc-max-length --passage-max-len",
            suggest_for="--truncate",
        ),
    ] = None
    query_max_length: Annotated[
        int | None,
        Flag(
            "Positions of a query, special tokens included.",
            min=1,
            aliases="--query-max-len --max-query-length",
        ),
    ] = None
    query_prompt: Annotated[
        str | None,
        Flag(
            "Text to add before every query.",
            aliases="--query-prefix --query-instruction",
            suggest_for="--prompt --instruction --prefix",
        ),
    ] = None
    doc_prompt: Annotated[
        str | None,
        Flag(
            "Text to add before every document.",
            aliases="--doc-prefix --document-prompt --passage-prompt --passage-prefix",
        ),
    ] = None
    dim: Annotated[
        int | None,
        Flag(
            "Number of leading dimensions to keep (Matryoshka).",
            min=1,
            aliases="--truncate-dim --dimensions",
            suggest_for="--matryoshka --mrl",
        ),
    ] = None
    normalize: Annotated[
        bool | None,
        Flag(
            "Normalise vectors to unit length.",
            suggest_for="--normalize-embeddings --l2-norm --cosine",
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit is not None and self.unit not in UNITS:
            raise UsageError(f"--unit {self.unit}: write {', '.join(UNITS)}")
        if self.extend and self.extend not in EXTENSIONS:
            raise UsageError(f"--extend {self.extend}: write one of {', '.join(EXTENSIONS)}")
        if self.pool != "auto":
            for name in self.pool.split("+"):
                pooler_row(name)


POOLER_GROUPS = declared_groups(POOLERS)  # the flags of poolers that have some of their own
POOLER_OPTIONS = tuple(
    dict.fromkeys(each.name for group in POOLER_GROUPS.values() for each in fields(group))  # type: ignore[arg-type]
)

if TYPE_CHECKING:

    class PoolerOptions(SharedRecipeOptions):
        """The flags that all poolers share, and those of single poolers."""

else:
    PoolerOptions = composed("PoolerOptions", *POOLER_GROUPS.values(), SharedRecipeOptions)


def setting_types(pool: str) -> dict[str, frozenset[type]]:
    """Return the flags that a pooler has in addition to those that all poolers share: name -> types."""
    group = POOLER_GROUPS.get(pooler_row(pool).settings)
    hints = get_type_hints(group) if group else {}
    names = [each.name for each in fields(group)] if group else []  # type: ignore[arg-type]
    return {name: frozenset(_types_in(hints[name])) for name in names}


def _types_in(hint: Any) -> Iterator[type]:
    """Yield the types of the values of a hint: of a union its members, of a literal those of its values."""
    if get_origin(hint) is Literal:
        yield from map(type, get_args(hint))
    elif members := get_args(hint):
        for member in members:
            yield from _types_in(member)
    else:
        yield hint


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(PoolerOptions):
    """The flags of a recipe. If a field is None, the model folder determines the setting."""
