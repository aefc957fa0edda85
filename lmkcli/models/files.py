"""The files of a model folder: JSON that is checked against its types, and one error for whatever a
library stumbles over in the others. They may be anybody's."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

from lmkcli import reading
from lmkcli.errors import DataError, LmkError
from lmkcli.reading import within

Count = Annotated[int, within(1, 1 << 31)]
_Layers = Annotated[int, within(1, 10_000)]
_Each = Count | list[int | None] | None  # for all layers, or for each of them
_AGAIN = "download the model again"
Shape = TypeVar("Shape")


class Expansion(TypedDict, total=False):
    """How a multi-vector encoder fills up its queries."""

    strategy: str
    length: Count
    token: str | None
    attend: bool


class Declared(TypedDict, total=False):
    """The fields that lmk, and those on which transformers, builds a model, in whichever file."""

    model_type: str | None
    backbone_model_type: str | None
    monarch_mixer_sequence_mixing: bool
    max_position_embeddings: int | None
    pad_token_id: int | None
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: _Layers
    num_attention_heads: _Each
    intermediate_size: _Each
    kernel_sizes: _Each
    strides: _Each
    dim: Count
    d_model: Count
    n_embd: Count
    n_layer: _Layers
    n_layers: _Layers
    n_head: Count
    n_heads: Count
    text_config: dict[str, Any] | None
    model_max_length: float | None
    mask_token: str | dict[str, Any] | None
    eos_token: str | dict[str, Any] | None
    max_seq_length: Count | None
    query_length: Count | None
    document_length: Count | None
    do_lower_case: bool | None
    pool: str
    gran: str
    include_prompt: bool
    append_eos: bool
    prompts: dict[str, str | None] | None
    default_prompt_name: str | None
    similarity_fn_name: str | None
    pooling_mode: str | list[str] | None
    query_prefix: str | None
    document_prefix: str | None
    do_query_expansion: bool | None
    attend_to_expansion_tokens: bool | None
    skiplist_words: list[str] | None
    query_expansion: Expansion | None


class ListedModule(TypedDict):
    """One module of modules.json."""

    type: str
    path: str


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of declarations; an empty dictionary where it is absent. DataError with the field
    that is of a wrong type, or cannot be."""
    try:
        return dict(reading.read_json(path, Declared, _AGAIN))
    except FileNotFoundError:
        return {}


def read_shape(path: Path, shape: type[Shape]) -> Shape:
    """A JSON file whose fields must be there; DataError where it is absent, or is of another type."""
    try:
        return reading.read_json(path, shape, _AGAIN)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {_AGAIN}") from None


@contextmanager
def loading(what: str) -> Iterator[None]:
    """DataError for whatever a library raises over files that are not what they should be."""
    try:
        yield
    except LmkError:
        raise
    except Exception as error:  # loaders validate little, so any exception is possible
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        if "trust_remote_code" in str(error):
            first += "; code from a model folder runs only with --trust-remote-code"
        raise DataError(f"{what} cannot be loaded: {first}") from error


def read_architecture(path: Path) -> dict[str, Any]:
    """What stands in a config.json, or in a TOML file with the same keys; DataError without model_type."""
    try:
        if path.suffix == ".toml":
            architecture: Any = tomllib.loads(path.read_text("utf-8"))
        else:
            architecture = read_json(path)
    except ValueError as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    if not isinstance(architecture, dict) or "model_type" not in architecture:
        raise DataError(
            f"{path} is no architecture: it has no model_type, such as bert, modernbert, tite or m2-bert"
        )
    return architecture
