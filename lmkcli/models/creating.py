"""New models: a folder with an architecture's random weights, or some of another model's."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer

from lmkcli import catalog
from lmkcli.errors import DataError
from lmkcli.models.files import read_architecture
from lmkcli.models.finding import locate, read_model
from lmkcli.models.folder import TOKENIZER_FILES, ModelFolder
from lmkcli.models.forward import ModelOptions

# Tables of positions, which a longer model begins with again and again (M2-BERT, §4.1).
_REPEATED = ("position_embeddings.weight", "pos_emb.z")
_CONSTANT = ("position_ids", "pos_emb.t", "modulation.deltas", "token_type_ids")


class NewModel(NamedTuple):
    """What a model is made of: an architecture, a tokenizer, and a model whose weights it begins with."""

    architecture: Path
    tokenizer: str
    init_from: str = ""
    seed: int = 0
    offline: bool = False


def create(new: NewModel, folder: Path) -> list[str]:
    """Write the model into an empty folder; returns notes on what was taken from another one."""
    (folder / "config.json").write_text(json.dumps(read_architecture(new.architecture)))
    _copy_tokenizer(new, folder)
    kind = ModelFolder(folder, folder.name, encoder=folder).kind
    catalog.load(catalog.MODELS, kind, "model kind")  # transformers knows it from here on
    model = _random(new, folder)
    _check_vocabulary(model, new, folder)
    notes: list[str] = []
    if new.init_from:
        notes = list(_take(model, _weights(new), new.init_from))
    model.save_pretrained(folder)
    return notes


def _random(new: NewModel, folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(str(folder))
        torch.manual_seed(new.seed)
        model: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        return model.float()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{new.architecture} describes no model that can be made: {first}"
        ) from None


def _copy_tokenizer(new: NewModel, folder: Path) -> None:
    path, _ = locate(new.tokenizer, None, new.offline)
    files = [path / name for name in TOKENIZER_FILES if (path / name).is_file()]
    if not files:
        raise DataError(f"--tokenizer {new.tokenizer}: there are no files of a tokenizer in it")
    for file in files:
        shutil.copyfile(file, folder / file.name)


def _check_vocabulary(model: Any, new: NewModel, folder: Path) -> None:
    rows, words = (
        len(model.get_input_embeddings().weight),
        len(AutoTokenizer.from_pretrained(str(folder))),
    )
    if words > rows:
        raise DataError(
            f"{new.architecture} has vocab_size {rows}, and the tokenizer {new.tokenizer} has {words} "
            f"tokens; write vocab_size {words} or more"
        )


def _weights(new: NewModel) -> dict[str, Tensor]:
    """The weights of another model, of any kind, by their names."""
    other = read_model(new.init_from, None, new.offline)
    opener = catalog.load(catalog.MODELS, other.kind, "model kind")
    module: Any = opener(other, ModelOptions("fp32", "cpu", trainable=True)).module
    weights: dict[str, Tensor] = module.state_dict()
    return weights


def _take(model: Any, given: dict[str, Tensor], name: str) -> Iterator[str]:
    """Copy what fits by name and shape; notes on that, and on what did not fit."""
    own = model.state_dict()
    taken, repeated, left = {}, [], []
    for key, value in own.items():
        if key.endswith(_CONSTANT):
            continue
        if key in given and given[key].shape == value.shape:
            taken[key] = given[key]
        elif key in given and key.endswith(_REPEATED):
            taken[key] = _again(given[key], value.shape)
            repeated.append(key)
        else:
            left.append(key)
    model.load_state_dict(own | taken)
    yield f"{len(taken)} of {len(taken) + len(left)} tensors begin as in {name}"
    if repeated:
        yield f"repeated to their new length: {', '.join(repeated[:4])}{' …' * (len(repeated) > 4)}"
    if left:
        yield f"random, for want of the name or the shape: {', '.join(left[:8])}{' …' * (len(left) > 8)}"
    if unused := sorted(given.keys() - own.keys()):
        yield f"not in the new model: {', '.join(unused[:8])}{' …' * (len(unused) > 8)}"


def _again(rows: Tensor, shape: torch.Size) -> Tensor:
    """The rows of a table from its beginning again, until they fill `shape`."""
    axis = next(i for i, (a, b) in enumerate(zip(rows.shape, shape, strict=True)) if a != b)
    return rows.index_select(axis, torch.arange(shape[axis]) % rows.shape[axis])
