"""The files of a model folder: JSON with checked types, and one error for all failures of libraries.

Model folders may come from anyone. Therefore, every field is checked before use, and no folder is searched
recursively: a model has files of known kinds at its top and in the folders that its modules.json names.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar

from lmkcli.errors import DataError, LmkError
from lmkcli.system import caches, input_files
from lmkcli.system.input_files import (
    MAX_FILE,
    int_range,
    not_a_file,
    read_toml,
    validate,
)

TEXTS = {".jinja", ".json", ".model", ".txt"}  # configuration and tokenizer
CODE = {".py"}
WEIGHTS = {".bin", ".safetensors"}
MATRICES = "adapter_model.safetensors"  # the weights of an adapter, in the layout of peft
_MAX_TEXTS = 4 * MAX_FILE  # bytes of all texts of a folder
_SPARSE_FROM = 1 << 30  # bytes; smaller files are read fast, even if most of them are holes
_LEAST_STORED = 16  # a file of weights has at least one 16th of its bytes on the disk
Count = Annotated[int, int_range(1, 1 << 31)]
_Parts = Annotated[int, int_range(1, 1_001)]  # of layers; thousands take minutes to create
_Labels = Annotated[int, int_range(0, 100_000)]
_PerLayer = Count | list[int | None] | None  # one value for all layers, or one per layer
_FIX = "download the model again"
_LONGEST = 500  # characters of an error of a library; it may list all tensors of a file
_POINTER, _POINTER_SIZE = b"version https://git-lfs", 1024  # of Git LFS, in place of a large file
_PANIC = "PanicException"  # of libraries in Rust, such as tokenizers; not an Exception
Fields = TypeVar("Fields")
Number = TypeVar("Number", int, float)


class _AddedToken(TypedDict):
    content: str


class DeclaredExpansion(TypedDict, total=False):
    """How a multi-vector encoder expands its queries."""

    strategy: str
    length: Count
    token: str | None
    attend: bool


class DeclaredSizes(TypedDict, total=False):
    """The fields from which transformers computes sizes, and numbers of parts that it creates one by one."""

    max_position_embeddings: int | None
    n_positions: int | None
    pad_token_id: int | None
    vocab_size: Count
    hidden_size: Count
    num_hidden_layers: _Parts
    num_attention_heads: _PerLayer
    intermediate_size: _PerLayer
    kernel_sizes: _PerLayer
    strides: _PerLayer
    dim: Count
    d_model: Count
    n_embd: Count
    n_layer: _Parts
    n_layers: _Parts
    num_layers: _Parts | None
    num_decoder_layers: _Parts | None
    encoder_layers: _Parts | None
    decoder_layers: _Parts | None
    num_experts: _Labels | None
    num_local_experts: _Labels | None
    n_routed_experts: _Labels | None
    num_labels: _Labels | None
    n_head: Count
    n_heads: Count


class Declared(DeclaredSizes, total=False):
    """The fields of all files that lmk reads, and those from which transformers computes sizes."""

    model_type: str | None
    architectures: list[str] | None
    backbone_model_type: str | None
    monarch_mixer_sequence_mixing: bool
    text_config: DeclaredSizes | None
    model_max_length: float | None
    mask_token: str | _AddedToken | None
    eos_token: str | _AddedToken | None
    max_seq_length: Count | None
    query_length: Count | None
    document_length: Count | None
    do_lower_case: bool | None
    pool: str
    pool_package: str
    gran: str
    trained_poolers: list[str]
    include_prompt: bool
    append_eos: bool
    keep_space: bool
    splitter_granularity: Count | list[Count] | None
    eval_splitter_granularity: Count | None
    train_splitter_granularity: Count | list[Count] | None
    lmk_token_id: Annotated[int, int_range(0, 1 << 31)] | None
    prompts: dict[str, str | None] | None
    default_prompt_name: str | None
    similarity_fn_name: str | None
    pooling_mode: str | list[str] | None
    pooling_strategy: str
    activation_function: str | None
    query_prefix: str | None
    document_prefix: str | None
    do_query_expansion: bool | None
    attend_to_expansion_tokens: bool | None
    skiplist_words: list[str] | None
    query_expansion: DeclaredExpansion | None


def check_files(folder: Path) -> None:
    """Raise DataError for files without an end or a target: pipes, devices, huge texts, dangling links."""
    for file in folder.iterdir():
        if file.suffix in TEXTS | CODE | WEIGHTS and not file.is_dir():
            check_file(file)


def check_file(file: Path) -> None:
    """Raise DataError unless a file of a model can be read to its end, and in a reasonable time."""
    if fault := not_a_file(file):
        raise DataError(f"{file} is {fault}")
    if not file.exists():
        if file.is_symlink():
            raise DataError(f"{file} is a link to a missing file; remove it")
        raise DataError(f"{file} is missing; {_FIX}")
    if file.stat().st_size < _POINTER_SIZE and file.read_bytes().startswith(_POINTER):
        raise DataError(
            f"{file} is a pointer of Git LFS instead of the file; run git lfs pull in its folder, or "
            "download the model again"
        )
    if file.suffix not in WEIGHTS and file.stat().st_size > MAX_FILE:
        raise DataError(f"{file} is larger than {MAX_FILE:,} bytes; is it the right file?")
    if file.suffix in WEIGHTS and _is_sparse(file):
        raise DataError(
            f"{file} is a sparse file: most of its {file.stat().st_size:,} bytes were never written; {_FIX}"
        )


def _is_sparse(file: Path) -> bool:
    """Return whether a large file consists of holes, which take long to read and contain no weights."""
    facts = file.stat()
    if facts.st_size < _SPARSE_FROM:
        return False
    if facts.st_blocks:
        return 512 * facts.st_blocks < facts.st_size // _LEAST_STORED
    with open(file, "rb") as opened:  # some file systems do not count blocks
        return not any(opened.read(1 << 16))


def model_files(folder: Path, suffixes: Container[str], inside: Path | None = None) -> list[Path]:
    """Return the files of a folder that have one of the suffixes, sorted by name.

    DataError for a file that a copy could not read to its end, and for a link out of the model's folder
    `inside`, unless it leads into the cache of the hub, whose folders consist of such links.
    """
    files = [file for file in sorted(folder.iterdir()) if file.suffix in suffixes]
    files = [file for file in files if not file.is_dir()]
    for file in files:
        check_file(file)
        if inside is not None:
            check_link(file, inside)
    if sum(file.stat().st_size for file in files if file.suffix not in WEIGHTS) > _MAX_TEXTS:
        raise DataError(
            f"the texts of {folder} have more than {_MAX_TEXTS:,} bytes; is it a model?"
        )
    return files


def check_link(file: Path, folder: Path) -> None:
    """Raise DataError for a link out of the model's folder, unless it leads into the cache of the hub."""
    if not _is_inside(file, folder):
        raise DataError(f"{file} is a link out of {folder}; put the file there instead")


def _is_inside(file: Path, folder: Path) -> bool:
    real, root = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    allowed = [root, Path(os.path.realpath(caches.hub_cache()))]
    if root.parent.name == "snapshots":  # of a hub cache at any place
        allowed.append(root.parent.parent / "blobs")
    return any(real.is_relative_to(each) for each in allowed)


def copy_files(files: list[Path], target: Path) -> None:
    """Copy files into a folder, which is created if it is missing."""
    target.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, target / file.name)


class Scales(NamedTuple):
    """The factors of low-rank products, from ranks and alphas; some layers may have others than most.

    The factor is alpha / rank, or alpha / sqrt(rank) with `rslora`. With `dora`, each layer also has a vector
    of magnitudes.
    """

    rank: int
    alpha: float
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    rslora: bool
    dora: bool

    def rank_of(self, layer: str) -> int:
        """Return the declared rank of the layer with this name."""
        return _of_layer(self.rank_pattern, layer, self.rank)

    def factor(self, layer: str) -> float:
        """Return the factor of the product of the layer with this name."""
        rank = self.rank_of(layer)
        return _of_layer(self.alpha_pattern, layer, self.alpha) / (
            rank**0.5 if self.rslora else rank
        )


def _of_layer(patterns: Mapping[str, Number], layer: str, usual: Number) -> Number:
    """Return the value of the first pattern that matches the end of a layer's name, as peft does."""
    matching = (value for name, value in patterns.items() if re.match(rf"(.*\.)?({name})$", layer))
    return next(matching, usual)


class Adapter(NamedTuple):
    """The files of an adapter, and the factors of its low-rank products."""

    folder: Path
    matrices: Path
    texts: list[Path]
    modules: dict[str, list[Path]]  # the files of each folder of a module
    scales: Scales


class ListedModule(TypedDict):
    """One entry of modules.json."""

    type: str
    path: str


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of declarations; an empty dictionary if the file is missing.

    DataError names a field that has a wrong type or an impossible value.
    """
    try:
        return dict(input_files.read_json(path, Declared, _FIX))
    except FileNotFoundError:
        return {}


def read_fields(path: Path, fields: type[Fields]) -> Fields:
    """Read a JSON file of a given type. DataError if the file is missing or has another type."""
    try:
        return input_files.read_json(path, fields, _FIX)
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {_FIX}") from None


def listed_modules(folder: Path) -> list[ListedModule]:
    """Read the modules.json of a folder. DataError for a module at a place that is not in the folder."""
    listed = read_fields(folder / "modules.json", list[ListedModule])
    for module in listed:
        check_inside(module["path"], folder / "modules.json")
    return listed


def check_inside(path: str, file: Path) -> None:
    """Raise DataError if the path of a module or of weights, which a file names, leads out of its folder."""
    if os.path.isabs(path) or ".." in Path(path).parts or "\0" in path:
        raise DataError(f"{file} names {path[:100]!r}, which is out of the folder; {_FIX}")


@contextmanager
def loading(what: str, outcome: str = "cannot be loaded") -> Iterator[None]:
    """Convert every exception of a library that reads the files of a model into a DataError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected pickle protocol")  # a stranger's file
            yield
    except LmkError:
        raise
    except BaseException as error:  # loaders check little, so any exception is possible
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:_LONGEST]
        if "weights_only" in str(error) or "Weights only load failed" in str(error):
            first = (
                "its pickled weights contain other objects than tensors; get them as safetensors"
            )
        if "PytorchStreamReader" in str(error):
            first = f"its pickled weights are damaged or incomplete; {_FIX}"
        if "trust_remote_code" in str(error):
            first += "; code from a model folder runs only with --trust-remote-code"
        raise DataError(f"{what} {outcome}: {first}") from error


def read_architecture(path: Path) -> dict[str, Any]:
    """Read a config.json, or a TOML file with the same keys. DataError without a model_type."""
    architecture: dict[str, Any] = read_json(path) if path.suffix != ".toml" else _read_toml(path)
    if "model_type" not in architecture:
        raise DataError(
            f"{path} is no architecture: it has no model_type, such as bert or modernbert"
        )
    return architecture


def _read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file with the values of a config.json."""
    try:
        tables = read_toml(path)
        return dict(validate(json.loads(json.dumps(tables)), Declared, path, "correct the value"))
    except (TypeError, ValueError, RecursionError) as error:  # TypeError: a date
        raise DataError(f"{path} is not TOML of a config.json: {error}") from None
