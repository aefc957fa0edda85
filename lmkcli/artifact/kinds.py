"""The manifest of each kind of artifact, as types: identity, execution and facts.

lmk compares `identity` when artifacts are combined. The first process that writes determines `execution`. lmk
never compares `facts`. A field that has its default value is not written.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import NODEFAULT, Struct

from lmkcli.catalog import CODECS
from lmkcli.spec.recipe import ModelLocations, Recipe
from lmkcli.spec.values import MOST_SHARDS
from lmkcli.system.input_files import int_range

FORMAT = 1  # of all files of an artifact
MOST_DIMS = (1 << 20) - 1  # of a vector

# The only values without a type of their own: settings of an engine, a loss or a search, whose names an
# extension chooses, and the record of an operation, which the operation itself reads.
OpenMapping = dict[str, Any]

_Shards = Annotated[int, int_range(1, MOST_SHARDS + 1)]
Dims = Annotated[int, int_range(1, MOST_DIMS + 1)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One section of a manifest, or a value in it. An unknown field is an error: it may change results."""


class WrittenFile(NamedTuple):
    """Size and sha256 of a file when it was written."""

    size: Annotated[int, int_range(0, 1 << 62)]
    sha256: str


# Facts


class Machine(TypedDict):
    """The computer of a process. `cores` is None if it is unknown; `gpus` has the names of NVIDIA devices."""

    system: str
    cpu: str
    cores: int | None
    memory: Annotated[int, int_range(0, 1 << 62)]
    gpus: list[str]


class Environment(TypedDict):
    """The versions, hardware and time of a process, and the operation that it runs."""

    lmk: str
    python: str
    packages: dict[str, str]
    machine: Machine
    time: str
    command: list[str]
    directory: str
    operation: OpenMapping
    environment: dict[str, str]


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of every artifact: the fields of Environment.

    operation: the record of the operation; empty if a Python function made the artifact.
    """

    lmk: str
    python: str
    packages: dict[str, str]
    machine: Machine
    time: str
    command: list[str]
    directory: str
    operation: OpenMapping = {}
    environment: dict[str, str] = {}


class TokensFacts(Facts, frozen=True, kw_only=True):
    """Also the models whose tokenizers were used."""

    models: ModelLocations


class EncodingWork(Section, frozen=True, kw_only=True):
    """The work of an encoding: documents, seconds without the loading of the model, and peak memory in bytes.

    The memory is that of the GPU, if one computes the vectors, and else that of the process.
    """

    documents: int
    seconds: float
    peak_memory: int


class VectorsFacts(Facts, frozen=True, kw_only=True):
    """Also the models, and the device that computed the vectors (empty for imported ones).

    `work` is None until the vectors are complete, and for vectors of several shards.
    """

    models: ModelLocations
    device: str = ""
    work: EncodingWork | None = None


class IndexFacts(Facts, frozen=True, kw_only=True):
    """Also the folder of the vectors, relative to the index; empty for an index of words."""

    vectors: str = ""


class RunFacts(Facts, frozen=True, kw_only=True):
    """Also the path of the index, the collection of the queries, and what the run cannot show.

    unfindable: the number of relevant documents or chunks that the index cannot return. cut_queries: the
    number of queries that were cut. cut_pairs: of pairs of a query and a document, cut by a cross-encoder.
    The last two are None until the run is written.
    """

    index: str
    collection: str
    unfindable: int = 0
    cut_queries: int | None = None
    cut_pairs: int | None = None


class ModelFacts(Facts, frozen=True, kw_only=True):
    """Also the location of the model before the training, and how many texts lost tokens in it.

    `cut_queries` and `cut_documents` count a text each time that it is read. They are None until the training
    is finished, and after a pre-training.
    """

    models: ModelLocations
    cut_queries: int | None = None
    cut_documents: int | None = None


class ExportFacts(Facts, frozen=True, kw_only=True):
    """Also what was exported, and the locations of its models."""

    made_of: str = msgspec.field(name="from")
    models: ModelLocations | None = None


# Identities and executions


class Subset(Section, frozen=True, kw_only=True):
    """The documents of a run: their number, and the digest of their ids."""

    documents: int
    digest: str


class Origin(Section, frozen=True, kw_only=True):
    """A collection: its name, the size and time (ns) of each of its files, and the documents that were read.

    `stamp` is empty for a collection without files. `only` is None if all documents were read.
    """

    name: str
    stamp: dict[str, list[int]] = {}
    only: Subset | None = None


class TokensIdentity(Section, frozen=True, kw_only=True):
    """The settings that determine token ids. `text`: the settings that determine the text of a document.

    `hides_prompt`: whether as many tokens belong to the prompt as it has alone (models/tokenizer.py).
    """

    tokenizer: str
    prompt: str
    splitter: str
    keep_space: bool  # whether white space at the ends of a text is tokenized
    hides_prompt: bool = False
    text: dict[str, str]


class TokensExecution(Section, frozen=True, kw_only=True):
    """The source and the number of shards."""

    source: Origin
    shards: _Shards


class VectorsIdentity(Section, frozen=True, kw_only=True):
    """The recipe of vectors, and the settings of the text of a document.

    `imported` is the kind of the files that vectors were imported from.
    """

    recipe: Recipe
    dim: Dims
    text: dict[str, str]
    imported: str = ""


class VectorsExecution(TokensExecution, frozen=True, kw_only=True):
    """How vectors are computed, and the codec that stores them.

    `attention` is empty for imported vectors.
    """

    dtype: Literal["fp32", "bf16", "fp16"]
    store_dtype: str
    store_text: bool
    attention: Literal["packed", "padded", ""] = ""

    def __post_init__(self) -> None:
        if self.store_dtype not in CODECS:
            raise ValueError(
                f"store_dtype {self.store_dtype[:40]!r}: no installed package has this codec of vectors"
            )


class IndexedCollection(Section, frozen=True, kw_only=True):
    """A collection and the settings that determine the text of a document."""

    name: str
    settings: dict[str, str]


class IndexIdentity(Section, frozen=True, kw_only=True):
    """The settings of an index, and the recipe of its vectors, or collection and analysis of its words."""

    family: str
    settings: OpenMapping
    recipe: Recipe | None = None
    collection: IndexedCollection | None = None
    analysis: OpenMapping = {}


class _Reranking(TypedDict):
    depth: int
    interpolate: float | None


class _Search(TypedDict, total=False):
    """The settings of a search that all engines have."""

    fuse: OpenMapping
    rerank: _Reranking


class RunIdentity(Section, frozen=True, kw_only=True):
    """The digest of the index, the settings of the search, the digest of the queries, and the depth."""

    index: str
    search: OpenMapping
    queries: str
    k: int

    def __post_init__(self) -> None:
        try:
            msgspec.convert(self.search, _Search)
        except msgspec.ValidationError as error:
            reason, _, place = str(error).partition(" - at `$")
            raise ValueError(f"search{place.rstrip('`')}: {reason}") from None


class ModelIdentity(Section, frozen=True, kw_only=True):
    """The values that a resumed training must share with the original.

    recipe: of the model that the training starts with. data: the digest of the examples. new: the
    configuration of a model that starts with random weights.
    """

    recipe: Recipe
    granularities: list[str]
    data: str
    sources: list[OpenMapping]
    settings: OpenMapping
    loss_package: str = ""
    window: str = ""
    teacher: Recipe | None = None
    dev: OpenMapping = {}
    new: OpenMapping = {}

    def __post_init__(self) -> None:
        if type(self.settings.get("steps")) is not int:
            raise ValueError("settings.steps is missing or not a number")

    @property
    def steps(self) -> int:
        """The number of steps of the training."""
        return int(self.settings["steps"])


class ShardsExecution(Section, frozen=True, kw_only=True):
    """The number of shards, and the names of the pieces of each shard."""

    shards: _Shards
    pieces: list[str]


class ExportIdentity(Section, frozen=True, kw_only=True):
    """The format, and the digest or the recipe of what was exported.

    window: of a model that declares one. card: the digest of the description of a model on the hub.
    """

    to: str
    vectors: str = ""
    examples: str = ""
    recipe: Recipe | None = None
    window: str = ""
    card: str = ""


# Manifests


class Manifest(Section, frozen=True, kw_only=True, tag_field="kind"):
    """The manifest of an artifact of any kind.

    files: the files in the folder that its kind does not place by name, when they were written.
    digest: of the rest of the manifest without the facts; empty until it is written.
    """

    identity: Any
    execution: Any = None
    facts: Facts
    files: dict[str, WrittenFile] = {}
    format: int = FORMAT
    digest: str = ""

    @classmethod
    def tag(cls) -> str:
        """Return the name of this kind of artifact."""
        return str(cls.__struct_config__.tag)

    @property
    def kind(self) -> str:
        """The kind of artifact."""
        return self.tag()


class TokensManifest(Manifest, frozen=True, kw_only=True, tag="tokens"):
    """Tokens."""

    identity: TokensIdentity
    execution: TokensExecution
    facts: TokensFacts


class VectorsManifest(Manifest, frozen=True, kw_only=True, tag="vectors"):
    """Vectors."""

    identity: VectorsIdentity
    execution: VectorsExecution
    facts: VectorsFacts

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the locations of its models."""
        return self.identity.recipe.located_at(self.facts.models)


class IndexManifest(Manifest, frozen=True, kw_only=True, tag="index"):
    """An index, of vectors or of the words of a collection."""

    identity: IndexIdentity
    facts: IndexFacts

    def __post_init__(self) -> None:
        if bool(self.identity.recipe) == bool(self.identity.collection):
            raise ValueError("identity: it needs either a recipe of vectors or a collection")
        if bool(self.identity.recipe) != bool(self.facts.vectors):
            raise ValueError("facts.vectors: an index has it exactly if it has a recipe")


class RunManifest(Manifest, frozen=True, kw_only=True, tag="run"):
    """A run."""

    identity: RunIdentity
    facts: RunFacts


class ModelManifest(Manifest, frozen=True, kw_only=True, tag="model"):
    """A model that lmk trains or has trained."""

    identity: ModelIdentity
    facts: ModelFacts


class ShardsManifest(Manifest, frozen=True, kw_only=True, tag="shards"):
    """The shards of a run or an index; `identity` is that of the run or the index."""

    identity: OpenMapping
    execution: ShardsExecution


class ExportManifest(Manifest, frozen=True, kw_only=True, tag="export"):
    """Files in the format of another program."""

    identity: ExportIdentity
    facts: ExportFacts


_ALL: tuple[type[Manifest], ...] = (
    *(TokensManifest, VectorsManifest, IndexManifest, RunManifest),
    *(ModelManifest, ShardsManifest, ExportManifest),
)
KINDS = {kind.tag(): kind for kind in _ALL}


def recorded_recipe(made: Manifest) -> Recipe | None:
    """Return the recipe in an identity, without the locations of its models; None if it has no recipe."""
    if isinstance(made, VectorsManifest | IndexManifest | ModelManifest | ExportManifest):
        return made.identity.recipe
    return None


# JSON


def plain(value: Any) -> Any:
    """Return a struct, or any value in one, as JSON values. Fields with their default are left out."""
    if isinstance(value, Recipe):
        return value.identity()
    if isinstance(value, Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        written = ((key, getattr(value, name), usual) for name, key, usual in _layout(type(value)))
        return tag | {key: plain(item) for key, item, usual in written if item != usual}
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@cache
def _layout(kind: type[Struct]) -> list[tuple[str, str, Any]]:
    """Return the name, the key in JSON and the default of each field of a struct; NODEFAULT if it is
    required.
    """
    return [
        (
            each.name,
            each.encode_name,
            NODEFAULT
            if each.required or each.name == "format"
            else each.default_factory()
            if each.default_factory is not NODEFAULT
            else each.default,
        )
        for each in msgspec.structs.fields(kind)
    ]
