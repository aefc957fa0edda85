"""The JSON of requests and answers; FastAPI checks requests with it, and describes it in OpenAPI."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmkcli.plugins.serve.limits import MAX_CHARACTERS, MAX_INPUTS, MAX_K, MAX_QUERIES, MAX_TOKENS

QueryText = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Condition = Annotated[str, Field(min_length=1, max_length=1000)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SearchRequest(_Request):
    """One or several queries for one or several indexes."""

    query: QueryText | Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)] = (
        Field(description="A query, or a list of queries.")
    )
    index: Name | Annotated[list[Name], Field(min_length=1, max_length=16)] | None = Field(
        default=None, description="Name of an index, or several to fuse; default: the first index."
    )
    k: int = Field(default=10, ge=1, le=MAX_K, description="Documents per query.")
    fuse: str | None = Field(
        default=None,
        pattern=r"^(rrf(:[0-9]{1,9})?|linear(:-?[0-9]{1,9}(\.[0-9]{1,9})?(,-?[0-9]{1,9}(\.[0-9]{1,9})?)*)?)$",
        max_length=200,
        description="Fusion of several indexes: rrf, rrf:60, linear or linear:0.3,0.7; default: rrf.",
    )
    fuse_scale: Literal["minmax", "zscore", "bounds", "none"] = Field(
        default="minmax", description="Scaling of scores for linear fusion."
    )
    rerank: Name | None = Field(
        default=None,
        description="A reranker of GET /v1/indexes, which scores the first documents again.",
    )
    rerank_depth: int = Field(default=100, ge=1, le=MAX_K, description="Documents to rerank.")
    interpolate: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of the reranking score; the first score gets the rest.",
    )
    where: Condition | Annotated[list[Condition], Field(max_length=20)] = Field(
        default=[],
        description="Conditions that documents fulfil: type=pdf, path=mail/**, date>=2026-03, or a field of "
        "records. Only for documents that are served.",
    )
    id_prefix: str = Field(
        default="", max_length=200, description="Only documents with such an id."
    )
    text: Literal["snippet", "full", "none"] = Field(
        default="snippet", description="The text of a hit."
    )
    passages: bool = Field(
        default=True, description="Whether hits have their best passage, if known."
    )
    output: Literal["hits", "run"] = Field(
        default="hits", description="run: only arrays of ids and scores, for many documents."
    )


class PassageAnswer(BaseModel):
    """The best chunk of a document: characters begin … end - 1 of its content (title, space, text).

    If they are known: the headings above it, its file, its page in a PDF, its first and last line in a text.
    """

    chunk: int
    chunks: int
    begin: int
    end: int
    text: str
    heading: str | None = None
    path: str | None = None
    page: int | None = None
    lines: tuple[int, int] | None = None


class HitAnswer(BaseModel):
    """One document. `characters` is the length of its content, without white space at its end."""

    rank: int
    id: str
    score: float
    title: str | None = None
    text: str | None = None
    characters: int | None = None
    passage: PassageAnswer | None = None


class ResultAnswer(BaseModel):
    """The answer to one query. `complete` is false if a filter may have missed documents.

    `query_cut` is true if a model read only the start of the query, because it is too long. `pairs_cut` is
    the number of documents that a cross-encoder read only in part. `meaning` is what a score is, and
    `answered` whether the best hit probably answers the query (null: unknown). `words` are the words of the
    query that matter, in the forms that the texts contain.
    """

    query: str
    complete: bool
    query_cut: bool
    pairs_cut: int
    meaning: str = ""
    answered: bool | None = None
    words: list[str] | None = None
    hits: list[HitAnswer] | None = None
    ids: list[str] | None = None
    scores: list[float] | None = None


class SearchAnswer(BaseModel):
    """The answers to all queries of a request."""

    results: list[ResultAnswer]


class ChunkAnswer(BaseModel):
    """A chunk of a document with its score for the query, or its contribution to the document's score."""

    begin: int
    end: int
    score: float


class DocumentAnswer(BaseModel):
    """A stored document. Offsets count characters of its content, where the text starts at `text_begin`.

    The contributions of the chunks of a document with one vector sum to its score.
    """

    id: str
    index: str
    title: str
    text: str
    text_begin: int
    passage: PassageAnswer | None = None
    words: list[str] | None = None
    file: bool = Field(default=False, description="Whether GET /v1/files/ID returns its file.")
    chunks: list[ChunkAnswer] | None = None
    contributions: list[ChunkAnswer] | None = None


class IndexAnswer(BaseModel):
    """One index."""

    name: str
    part_of: str | None = None
    examples: list[str] = []
    kind: str
    unit: str
    documents: int | None
    digest: str
    search: dict[str, Any]
    dimensions: int | None


class IndexesAnswer(BaseModel):
    """All indexes, the version of lmk, and the names of rerankers.

    `note` says if the indexes were made from different files, so that equal ids may be different documents.
    """

    version: str
    indexes: list[IndexAnswer]
    rerankers: list[str]
    note: str = ""


class HealthAnswer(BaseModel):
    """The state of the server; `proof` answers a challenge of a client on the same machine."""

    status: Literal["ok"]
    proof: str | None = None


class EmbeddingsRequest(_Request):
    """A request for embeddings, as OpenAI's clients send it."""

    model_config = ConfigDict(
        extra="ignore", strict=True
    )  # clients send further fields, such as user

    input: (
        QueryText
        | Annotated[list[QueryText], Field(min_length=1, max_length=MAX_INPUTS)]
        | Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]
        | Annotated[
            list[Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]],
            Field(min_length=1, max_length=MAX_INPUTS),
        ]
    ) = Field(description="A text, several texts, or token ids of the model.")
    model: Name = Field(description="The name of a dense index, with :query or :document after it.")
    dimensions: int | None = Field(
        default=None, ge=1, le=65536, description="Keep the first dimensions, and normalise again."
    )
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "document"] | None = Field(
        default=None, description="The side of the recipe; default: document."
    )
    user: str | None = Field(default=None, max_length=1000)


class EmbeddingAnswer(BaseModel):
    """One vector: a list of numbers, or float32 in base64, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class UsageAnswer(BaseModel):
    """The tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """The vectors of all inputs, in their order."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingAnswer]
    usage: UsageAnswer


class ModelAnswer(BaseModel):
    """A model for embeddings."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsAnswer(BaseModel):
    """The models for embeddings."""

    object: Literal["list"]
    data: list[ModelAnswer]


class ErrorDetail(BaseModel):
    """A message, and the kind of the error."""

    message: str
    type: str


class ErrorAnswer(BaseModel):
    """An error, in the form that OpenAI's clients read."""

    error: ErrorDetail
