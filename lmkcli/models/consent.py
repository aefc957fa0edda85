"""What the files of a model may ask of libraries without the user's consent: no other code, and no network.

Configurations of transformers can name code: an attention of the hub, a quantizer, kernels. They can also
name other files of weights and settings. lmk accepts the values of an allowlist for each such key, at every
depth. `--trust-remote-code` allows all keys that name code. Keys that name other files are never accepted,
because the digest of the model would not contain these files. A normalizer that makes texts many times longer
is refused before a library opens it, because opening a tokenizer already normalizes its special tokens.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from huggingface_hub import constants

from lmkcli.errors import DataError
from lmkcli.models.model_files import loading, read_fields
from lmkcli.models.weight_files import check_headers, is_quantized, weight_files

_READ = ("config.json", "generation_config.json", "tokenizer_config.json")
_ATTENTION = ("eager", "sdpa", "flex_attention")
# transformers replaces these by code of the hub if the package is not installed.
_FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
_EXPERTS = ("eager", "grouped_mm", "batched_mm")
_QUANTIZERS = ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit")  # they need only a package
# Keys that must be absent, null or false.
_CODE = (
    *("use_kernels", "kernel_config", "fusion_config", "distributed_config", "custom_generate"),
    *("compression_config", "use_timm_backbone", "use_pretrained_backbone"),
)
_FILES = ("transformers_weights", "configuration_files", "fast_tokenizer_files")
_VOCABULARY = ("vocab", "merges")  # of tokenizers, which opens a file if the value is a text
_ADAPTER = "adapter_config.json"
_LONGER = 64  # how many times longer a normalizer may make a text
_KERNELS = "USE_HUB_KERNELS"  # transformers reads it when it is imported


@contextmanager
def opening(folder: Path, what: str, trust: bool) -> Iterator[None]:
    """Let a library open the model in a folder, within the limits of this module.

    DataError, with `what`, for every exception of the library.
    """
    check_declarations(folder, trust)
    check_headers(weight_files(folder), integers=is_quantized(folder))
    _check_normalizer(folder / "tokenizer.json", what)
    with loading(what), _without_network(trust):
        yield


def check_declarations(folder: Path, trust: bool) -> None:
    """Raise DataError for a key, in a configuration of the folder, that names code or other files."""
    for name in _READ:
        if not (folder / name).is_file():
            continue
        for key, value in _pairs(read_fields(folder / name, dict[str, Any])):
            if value and (key in _FILES or (key in _VOCABULARY and isinstance(value, str))):
                raise DataError(
                    f"{folder / name} selects other files with the key {key}, which lmk does not support; "
                    "remove the key, and give the files their usual names"
                )
            if not trust and (unknown := _not_allowed(key, value)):
                raise DataError(
                    f"{folder / name} has {key} = {unknown[:80]!r}, which can load other code; remove the "
                    "key, or allow code of the model with --trust-remote-code"
                )
    if (folder / _ADAPTER).exists() and weight_files(folder):
        raise DataError(
            f"{folder} has the weights of a whole model and an adapter ({_ADAPTER}), and it is unknown "
            "whether the weights contain the adapter; remove one of them"
        )


class _Normalized(msgspec.Struct):
    normalizer: Any = None


def _check_normalizer(file: Path, what: str) -> None:
    """Raise DataError for a normalizer that makes texts many times longer."""
    try:
        tokenizer = msgspec.json.decode(file.read_bytes(), type=_Normalized)
    except (OSError, ValueError):  # without a file, or one that the library refuses
        return
    longer = added = 1
    for key, value in _pairs([tokenizer.normalizer]):
        if key == "content" and isinstance(value, str):
            longer *= max(1, len(value))
        if key == "prepend" and isinstance(value, str):
            added += len(value)
        if longer > _LONGER or added > _LONGER:
            raise DataError(
                f"{what} replaces characters by texts that are more than {_LONGER} times longer; download "
                "the model again"
            )


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of nested objects."""
    if isinstance(value, list):
        for each in value:
            yield from _pairs(each)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _pairs(inner)


def _not_allowed(key: str, value: Any) -> str:
    """Return the value, as text, if the key names code that is not on the allowlist; else ''."""
    name = key.lstrip("_").removesuffix("_internal")
    if name == "attn_implementation":
        installed = [each for each, package in _FLASH.items() if find_spec(package)]
        return _other(value, (*_ATTENTION, *installed))
    if name == "experts_implementation":
        return _other(value, _EXPERTS)
    if name == "quantization_config" and value:
        method = value.get("quant_method") if isinstance(value, dict) else value
        return _other(method or "unknown", _QUANTIZERS)
    return str(value) if name in _CODE and value else ""


def _other(value: Any, allowed: tuple[str, ...]) -> str:
    """Return the first value that is not allowed; a dictionary has a value for each part of the model."""
    values = value.values() if isinstance(value, dict) else [value]
    for each in values:
        if isinstance(each, dict):
            if other := _other(each, allowed):
                return other
        elif each is not None and each not in allowed:
            return str(each)
    return ""


@contextmanager
def _without_network(trust: bool) -> Iterator[None]:
    """Keep the Hugging Face libraries off the network, unless code of the model may run.

    The files are already on this machine, so that only hidden requests fail.
    """
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not trust
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def disable_kernels() -> None:
    """Make transformers ignore the package `kernels`, which downloads and imports code for some models."""
    if os.environ.setdefault(_KERNELS, "0") == "0":
        loaded: Any = sys.modules.get("transformers.integrations.hub_kernels")
        if loaded is not None:
            loaded._kernels_enabled = False


disable_kernels()
