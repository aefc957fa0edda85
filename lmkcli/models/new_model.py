"""New models: a folder with random weights of an architecture, or with weights from another model."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer

from lmkcli import catalog
from lmkcli.errors import DataError
from lmkcli.models.architectures import check_text_config
from lmkcli.models.consent import check_declarations, opening
from lmkcli.models.forward import ModelOptions
from lmkcli.models.lookup import locate, read_model
from lmkcli.models.model_files import TEXTS, copy_files, loading, model_files, read_architecture
from lmkcli.models.model_folder import TOKENIZER_FILES, ModelFolder
from lmkcli.system.hardware import free_memory
from lmkcli.text.formatting import size

# Tables of positions. A longer model starts with their rows, repeated until its table is full (M2-BERT,
# §4.2).
_REPEATED = ("position_embeddings.weight", "pos_emb.z")
_CONSTANT = ("position_ids", "pos_emb.t", "modulation.deltas", "token_type_ids")


class NewModel(NamedTuple):
    """The parts of a new model: an architecture, a tokenizer, and a model that gives its first weights."""

    architecture: Path
    tokenizer: str
    init_from: str = ""
    seed: int = 0
    offline: bool = False


def create(new: NewModel, folder: Path) -> list[str]:
    """Write the model into an empty folder. Returns notes on the weights from another model."""
    (folder / "config.json").write_text(json.dumps(read_architecture(new.architecture)))
    source, _ = locate(new.tokenizer, None, new.offline)
    files = [file for file in model_files(source, TEXTS, source) if file.name in TOKENIZER_FILES]
    if not files:
        raise DataError(f"--tokenizer {new.tokenizer}: the folder has no files of a tokenizer")
    copy_files(files, folder)
    kind = ModelFolder(folder, folder.name, encoder=folder).kind
    catalog.MODELS.load(kind)  # registers the kind with transformers
    model = _random(new, folder)
    rows = len(model.get_input_embeddings().weight)
    with opening(folder, f"--tokenizer {new.tokenizer}", trust=False):
        words = len(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False))
    if words > rows:
        raise DataError(
            f"{new.architecture} has vocab_size {rows}, and the tokenizer {new.tokenizer} has {words} "
            f"tokens; write vocab_size {words} or more"
        )
    notes = list(_copy_weights(model, _weights(new), new.init_from)) if new.init_from else []
    model.save_pretrained(folder)
    return notes


def _random(new: NewModel, folder: Path) -> Any:
    check_declarations(folder, trust=False)
    with loading(str(new.architecture), "describes no model that can be created"):
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        check_text_config(config)
        needed, free = _bytes(config), free_memory()
        if needed > free:
            raise MemoryError(
                f"its weights have {size(needed)}, and {size(free)} of memory are free"
            )
        torch.manual_seed(new.seed)
        model: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        return model.float()


def _bytes(config: Any) -> int:
    """Return the size of a model's weights without creating them; 0 if it cannot be computed."""
    with suppress(Exception), torch.device("meta"):
        model: Any = AutoModel.from_config(config)  # type: ignore[no-untyped-call]
        return sum(4 * each.numel() for each in model.parameters())
    return 0


def _weights(new: NewModel) -> dict[str, Tensor]:
    """Return the weights of the model `init_from` by name; it may be of any kind."""
    other = read_model(new.init_from, None, new.offline)
    opener = catalog.MODELS.load(other.kind)
    module: Any = opener(other, ModelOptions("fp32", "cpu", trainable=True)).module
    weights: dict[str, Tensor] = module.state_dict()
    return weights


def _copy_weights(model: Any, given: dict[str, Tensor], name: str) -> Iterator[str]:
    """Copy the tensors that have a counterpart of the same name and shape; yield notes on all tensors."""
    own = model.state_dict()
    taken, repeated, random = {}, [], []
    for key, value in own.items():
        if key.endswith(_CONSTANT):
            continue
        if key in given and given[key].shape == value.shape:
            taken[key] = given[key]
        elif key in given and key.endswith(_REPEATED):
            taken[key] = _repeated(given[key], value.shape)
            repeated.append(key)
        else:
            random.append(key)
    model.load_state_dict(own | taken)
    yield f"{len(taken)} of {len(taken) + len(random)} tensors start with the values of {name}"
    if repeated:
        yield f"repeated to their new length: {', '.join(repeated[:4])}{' …' * (len(repeated) > 4)}"
    if random:
        shown = f"{', '.join(random[:8])}{' …' * (len(random) > 8)}"
        yield f"random, because {name} has no such name or another shape: {shown}"
    if unused := sorted(given.keys() - own.keys()):
        yield f"not in the new model: {', '.join(unused[:8])}{' …' * (len(unused) > 8)}"


def _repeated(rows: Tensor, shape: torch.Size) -> Tensor:
    """Repeat the rows of a table from its start until they fill `shape`."""
    axis = next(i for i, (a, b) in enumerate(zip(rows.shape, shape, strict=True)) if a != b)
    return rows.index_select(axis, torch.arange(shape[axis]) % rows.shape[axis])
