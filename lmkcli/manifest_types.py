"""What the manifest of each kind of artifact holds, as the types that it is held against when it is read."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from lmkcli.reading import within

MOST_SHARDS = 99_999  # the names of parts have five digits for them


class _Machine(TypedDict, total=False):
    system: str
    cpu: str
    cores: int
    memory: int
    gpus: list[str]


class Recorded(TypedDict):
    """What it takes to make an artifact again, or to say how it was made."""

    lmk: str
    python: str
    packages: dict[str, str]
    machine: _Machine
    command: list[str]
    directory: str


class Facts(TypedDict, total=False):
    """The facts that lmk reads again; an artifact has those of its kind."""

    lmk: str
    python: str
    packages: dict[str, str]
    machine: dict[str, Any]
    time: str
    command: list[str]
    directory: str
    operation: dict[str, Any]
    files: list[str]
    vectors: str
    index: str
    collection: str


class _Source(TypedDict):
    name: str


class _Shards(TypedDict):
    shards: Annotated[int, within(1, MOST_SHARDS + 1)]


class _Reading(_Shards):
    source: _Source


class _Stored(_Shards):
    store_dtype: Literal["fp32", "fp16", "int8", "binary"]


class _Encoding(_Reading, _Stored):
    dtype: Literal["fp32", "bf16", "fp16"]
    store_text: bool


class _Tokenizing(TypedDict):
    tokenizer: str
    prompt: str
    splitter: str
    text: dict[str, Any]


class _Side(TypedDict):
    weights: str
    tokenizer: str
    unit: NotRequired[str]  # the rest is checked where it becomes an EncoderConfig


class _Sides(TypedDict):
    doc: _Side
    query: _Side


class _Recipe(TypedDict):
    recipe: _Sides
    dim: Annotated[int, within(1, 1 << 20)]


class _Encoded(_Recipe):
    text: dict[str, Any]


class _Located(TypedDict):
    model: str
    revision: str


class _LocatedSides(TypedDict):
    doc: _Located
    query: _Located


class _Models(TypedDict):
    models: _LocatedSides


class _Indexed(TypedDict):
    family: str
    settings: dict[str, Any]


class _Found(TypedDict):
    index: str
    search: dict[str, Any]
    queries: str
    k: int


class _Asked(TypedDict):
    index: str
    collection: str


class _Learned(TypedDict):
    recipe: _Sides
    granularities: list[str]
    data: str
    settings: dict[str, Any]


class _Exported(TypedDict):
    to: str


class _Parted(TypedDict):
    execution: _Shards


class _Pieces(_Shards):
    pieces: list[str]


class _ShardsOf(TypedDict):
    execution: _Pieces


class _OpenVectors(TypedDict):
    execution: _Stored
    identity: _Recipe
    facts: _Models


class _Tokens(TypedDict):
    identity: _Tokenizing
    execution: _Reading


class _Vectors(TypedDict):
    identity: _Encoded
    execution: _Encoding
    facts: _Models


class _Index(TypedDict):
    identity: _Indexed


class _Run(TypedDict):
    identity: _Found
    facts: _Asked


class _Model(TypedDict):
    identity: _Learned
    facts: _Models


class _Export(TypedDict):
    identity: _Exported


# What it takes to open an artifact, and all that is written for each kind.
OPENED: dict[str, Any] = {"tokens": _Parted, "vectors": _OpenVectors, "shards": _ShardsOf}
COMPLETE: dict[str, Any] = {
    "tokens": _Tokens,
    "vectors": _Vectors,
    "index": _Index,
    "run": _Run,
    "model": _Model,
    "shards": _ShardsOf,
    "export": _Export,
}
