"""The files of a model's weights: one decision for loading, for the digest and for copies.

A folder may come from anyone. Its index of shards may name any file, so a name outside the folder, a device
and a sparse file are refused before a byte is read. No library is asked for the files: transformers follows
an index without such checks.
"""

import json
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import msgspec

from lmkcli.errors import DataError
from lmkcli.models.model_files import check_file, check_inside, read_fields
from lmkcli.text.formatting import size

# The first of these files is the one that is read, as in transformers. Releases of M2-BERT have the last one.
_FIRST = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "model.bin"),
)
INDEX = ".index.json"
_MAX_SHARDS = 1_000
_MAX_WEIGHTS = 1 << 41  # bytes; no text encoder has more
_MAX_HEADER = (
    16 << 20
)  # bytes; a model of 100,000 tensors has less, and a million take 15 s to read
# transformers prefers such files to all others, and does not read them alone
_DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
_FIX = "download the model again"
_OF_HUB = "models--"  # begins the name of a model's folder in the cache of the hub


class _Index(TypedDict):
    weight_map: dict[str, str]  # the file of each tensor


class _Entry(msgspec.Struct):
    dtype: str = ""  # in the header of a safetensors file: F32, BF16, I64, C64 …


def weight_files(folder: Path) -> list[Path]:
    """Return the files from which the weights of a folder are read; an empty list if it has no weights.

    They are in the folder or below it, are regular files, and are not too large to be weights; otherwise
    DataError.
    """
    first = _first(folder)
    if first is None:
        return []
    files = _shards(first) if first.name.endswith(INDEX) else [first]
    for file in files:
        check_file(file)
    if (total := sum(file.stat().st_size for file in files)) > _MAX_WEIGHTS:
        raise DataError(f"the weights of {folder} have {size(total)}, more than any model; {_FIX}")
    return files


def needed_weights(folder: Path) -> list[Path]:
    """Return the files of a folder's weights. DataError if it has none.

    A folder in the cache of the hub may have only a tokenizer, which another model needed.
    """
    if files := weight_files(folder):
        return files
    repository = next((part for part in folder.parts if part.startswith(_OF_HUB)), "")
    name = repository.removeprefix(_OF_HUB).replace("--", "/", 1)
    fix = f"run lmk fetch -m {name} once with a network" if name else "copy them into the folder"
    raise DataError(f"{folder} has no weights (such as {_FIRST[0]}); {fix}")


def _first(folder: Path) -> Path | None:
    """Return the file of the weights, or the index of their shards; None if there is neither."""
    for file in folder.glob("shard-*.safetensors"):
        if _DISTRIBUTED.fullmatch(file.name):
            raise DataError(
                f"{file} belongs to a distributed checkpoint, which lmk does not read; save the model with "
                "save_pretrained"
            )
    return next((folder / name for name in _FIRST if (folder / name).is_file()), None)


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names, in the order in which transformers reads them."""
    names = sorted(set(read_fields(index, _Index)["weight_map"].values()))
    if len(names) > _MAX_SHARDS:
        raise DataError(f"{index} names {len(names):,} files of weights; {_FIX}")
    suffix = Path(index.name.removesuffix(INDEX)).suffix
    for name in names:
        check_inside(name, index)
        if Path(name).suffix != suffix:
            raise DataError(f"{index} names {name!r}, which is no {suffix} file; {_FIX}")
    return [index.parent / name for name in names]


def digested_files(folder: Path) -> list[Path]:
    """Return the files that determine the weights of a folder, for a digest.

    They include files that only some architectures read. If an index leaves some of them out, it
    is one of the files too, because it then decides which weights are read.
    """
    read = weight_files(folder)
    found = list(folder.glob("*.safetensors"))  # preferred if present
    found = found or [*folder.glob("pytorch_model*.bin"), *folder.glob("model.bin")]
    files = {*found, *read}
    first = _first(folder)
    if first is not None and first.name.endswith(INDEX) and files != set(read):
        files.add(first)
    for file in files:
        check_file(file)
    return sorted(files)


def is_scattered(folder: Path) -> bool:
    """Return whether an index names weights in subfolders."""
    return any(file.parent != folder for file in weight_files(folder))


def gather(folder: Path, target: Path) -> None:
    """Copy weights in subfolders into one folder, under the usual names of shards, with a new index."""
    index = _first(folder)
    if index is None:
        return
    stem, suffix = index.name.removesuffix(INDEX).rsplit(".", 1)
    files = weight_files(folder)
    new_names = {
        file: f"{stem}-{number:05}-of-{len(files):05}.{suffix}"
        for number, file in enumerate(files, start=1)
    }
    for file, name in new_names.items():
        shutil.copyfile(file, target / name)
    content = read_fields(index, _Index)
    places = {tensor: new_names[folder / name] for tensor, name in content["weight_map"].items()}
    (target / index.name).write_text(json.dumps(content | {"weight_map": places}), "utf-8")


def check_headers(files: list[Path], integers: bool = False) -> None:
    """Check the safetensors files of a list: their number of tensors, and as `check_numbers` does.

    Raises DataError. Their library checks the rest.
    """
    for file in files:
        if file.suffix == ".safetensors":
            _check_header(file, integers)


def _check_header(file: Path, integers: bool) -> None:
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if _MAX_HEADER < length <= file.stat().st_size:
            raise DataError(
                f"{file} has a header of {size(length)}, too many tensors for a model; {_FIX}"
            )
        header = opened.read(length) if length <= _MAX_HEADER else b""
    entries: dict[str, _Entry | None] = {}  # also the metadata, which may be null
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # for its library
        entries = msgspec.json.decode(header, type=dict[str, _Entry | None])
    dtypes = ((name, entry.dtype) for name, entry in entries.items() if entry)
    check_numbers(file, dtypes, integers)


def check_numbers(file: Path, dtypes: Iterable[tuple[str, str]], integers: bool) -> None:
    """Raise DataError for complex numbers, and unless `integers`, for weights that are whole numbers.

    A library would convert both to real numbers without their imaginary part or their scale. `dtypes` are
    names of tensors and of their dtypes, as in a header of safetensors.
    """
    for name, dtype in dtypes:
        if dtype.startswith("C"):
            raise DataError(f"{file}: {name} has complex numbers, and weights are real; {_FIX}")
        if not integers and name.endswith(".weight") and not dtype.startswith(("F", "BF")):
            raise DataError(
                f"{file}: {name} has whole numbers, and no quantization is declared that "
                f"gives their scale; {_FIX}"
            )


def is_quantized(folder: Path) -> bool:
    """Return whether the configuration of a folder declares how its weights are quantized."""
    file = folder / "config.json"
    return file.is_file() and bool(read_fields(file, dict[str, object]).get("quantization_config"))
