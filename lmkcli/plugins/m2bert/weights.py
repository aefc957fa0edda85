"""The configuration and weight files of an M2-BERT, with all names that its releases use.

docs/models.md lists the files. A tensor that is missing, unknown or of another shape is an error, so no
weight is random.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from lmkcli.errors import DataError
from lmkcli.models.model_files import read_json
from lmkcli.models.tensors import check_tensors
from lmkcli.models.weight_files import check_headers, weight_files
from lmkcli.plugins.m2bert.config import M2BertConfig
from lmkcli.plugins.m2bert.mixer import decays, times

FILES = ("model.safetensors", "pytorch_model.bin", "model.bin")
_PREFIXES = re.compile(r"^(module\.|model\.)+")
_IGNORED = re.compile(r"flashfft|^cls\.|^classifier\.")
_FREQUENCY = re.compile(r"implicit_filter(_rev)?\.[135]\.freq$")
# Constants that follow from the configuration. Files that were converted to more positions may lack them.
_CONSTANTS: dict[str, Callable[[torch.Size], Tensor]] = {
    "position_ids": lambda shape: torch.arange(shape[1])[None],
    "pos_emb.t": lambda shape: times(shape[1]),
    "modulation.deltas": lambda shape: decays(shape[2]),
}


def read_config(folder: Path) -> M2BertConfig:
    """Return the configuration of a folder, whatever its model_type."""
    given = read_json(folder / "config.json")
    if not given:
        raise DataError(
            f"{folder} has no config.json, which an M2-BERT needs; download the model again"
        )
    try:
        return M2BertConfig(**{k: v for k, v in given.items() if k != "model_type"})
    except (TypeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise DataError(f"{folder}/config.json: {first}") from None


def read(folder: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a folder by the names of `expected`. DataError for other or missing names."""
    files = weight_files(folder)
    if not files:
        raise DataError(f"{folder} has no weights: none of {', '.join(FILES)}")
    check_headers(files)
    given = {name: value for file in files for name, value in _load(file).items()}
    return fitted(given, expected, files[0])


def _load(file: Path) -> dict[str, Any]:
    try:
        if file.suffix == ".safetensors":
            return load(file.read_bytes())
        loaded: Any = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, OSError, RuntimeError, EOFError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{file} cannot be read as weights: {first}") from None
    for level in ("state", "model"):  # levels in checkpoints of the pre-training
        if isinstance(loaded, dict) and isinstance(loaded.get(level), dict):
            loaded = loaded[level]
    if not isinstance(loaded, dict):
        raise DataError(f"{file} contains no dictionary of weights")
    check_tensors(file, loaded)
    return loaded


def fitted(
    given: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path
) -> dict[str, Tensor]:
    """Return `given` by the names of `expected`, without tensors of other parts.

    DataError names tensors that are missing, unknown or of another shape.
    """
    weights = _renamed(given, expected)
    weights |= _constants(weights, expected) | _frequencies(weights, expected, file)
    unlike = [name for name in weights if name in expected and _shapes(name, weights, expected)]
    for what, names in (
        ("lacks", [name for name in expected if name not in weights]),
        ("has, unknown to its config.json,", [name for name in weights if name not in expected]),
        ("has in another shape", [_shapes(name, weights, expected) for name in unlike]),
    ):
        if names:
            shown = "; ".join(names[:3]) + (" …" if names[3:] else "")
            raise DataError(
                f"{file} {what} {len(names)} tensors of an M2-BERT ({shown}); "
                "give weights that belong to the config.json in this folder"
            )
    return weights


def _renamed(given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    weights = {}
    for name, value in given.items():
        name = _PREFIXES.sub("", name)
        name = f"bert.{name}" if f"bert.{name}" in expected else name
        unused = name.startswith("bert.pooler.") and name not in expected
        if not unused and not _IGNORED.search(name):
            weights[name] = value
    return weights


def _shapes(name: str, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    given, wanted = tuple(weights[name].shape), tuple(expected[name].shape)
    return "" if given == wanted else f"{name} {given}, not {wanted}"


def _constants(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: make(value.shape)
        for name, value in expected.items()
        for ending, make in _CONSTANTS.items()
        if name.endswith(ending) and name not in weights
    }


def _frequencies(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path
) -> dict[str, Tensor]:
    """Return the frequencies of all sines.

    The sines of a filter share their frequencies; a file may have them under any of their names.
    """
    shared: dict[str, Tensor] = {}
    for name in filter(_FREQUENCY.search, weights):
        first = shared.setdefault(_FREQUENCY.sub("", name), weights[name])
        if not torch.equal(first, weights[name]):
            raise DataError(
                f"{file}: {name} differs from the other frequencies of its filter, which must be "
                "equal; download the file again"
            )
    owners = {name: _FREQUENCY.sub("", name) for name in filter(_FREQUENCY.search, expected)}
    return {name: shared[owner] for name, owner in owners.items() if owner in shared}
