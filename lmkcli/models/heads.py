"""Heads of a model folder, as differentiable modules.

A token head maps states before pooling: latent attention, or the projections of a ColBERT folder.
Sentence modules (Dense and LayerNorm) map the pooled vector before it is normalised.
"""

from importlib import import_module
from pathlib import Path
from typing import NotRequired, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch.nn.functional import gelu, scaled_dot_product_attention

from lmkcli.errors import DataError, UsageError
from lmkcli.models.model_files import Count, loading, read_fields
from lmkcli.models.model_folder import LATENT, ModelFolder
from lmkcli.models.tensors import read_tensors
from lmkcli.pooling.table import Pooler

_ACTIVATIONS = {
    "Identity": torch.nn.Identity,
    "Tanh": torch.nn.Tanh,
    "ReLU": torch.nn.ReLU,
    "GELU": torch.nn.GELU,
    "SiLU": torch.nn.SiLU,
    "Sigmoid": torch.nn.Sigmoid,
    "Softsign": torch.nn.Softsign,
    "Softplus": torch.nn.Softplus,
    "Mish": torch.nn.Mish,
    "ELU": torch.nn.ELU,
    "SELU": torch.nn.SELU,
    "ReLU6": torch.nn.ReLU6,
    "LeakyReLU": torch.nn.LeakyReLU,
    "Hardtanh": torch.nn.Hardtanh,
    "Hardswish": torch.nn.Hardswish,
}
# The names of the pooled vector and of the states in sentence-transformers
_VECTOR, _STATES = "sentence_embedding", "token_embeddings"
# Latent attention has one head per 64 dimensions of a state, and each head has all d dimensions. Its inner
# width is d * d / 64, many times that of a state, so that states are computed in blocks.
HEAD_STATES = 64
STATES_BLOCK = 4096
LATENTS = 64  # latents of a new latent attention (arXiv 2601.21525, §5)


class _Dense(TypedDict):
    in_features: Count
    out_features: Count
    bias: NotRequired[bool]
    activation_function: NotRequired[str]
    use_residual: NotRequired[bool]
    module_input_name: NotRequired[str]
    module_output_name: NotRequired[str | None]


class _LayerNorm(TypedDict):
    dimension: Count


def open_heads(folder: ModelFolder, device: torch.device) -> torch.nn.Sequential:
    """Load the sentence modules in order, in float32. Most models have none."""
    modules = [_BUILDERS[module.kind](module.folder) for module in folder.modules]
    return torch.nn.Sequential(*modules).to(device).eval()


class TokenHead(torch.nn.Sequential):
    """Modules that map each state [n, d] separately, in float32."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[n, d] in any floating dtype -> [n, d'] in float32."""
        projected = states.to(torch.promote_types(states.dtype, torch.float32))
        for module in self:
            projected = module(projected)
        return projected


class _WordWeights(TypedDict):
    vocab: list[str]
    word_weights: dict[str, float]
    unknown_word_weight: NotRequired[float]


def open_token_weights(folder: ModelFolder) -> NDArray[np.float32] | None:
    """Return the factors of the states of each token, [vocabulary], as WordWeights reads them; else None."""
    if folder.word_weights is None:
        return None
    config = read_fields(folder.word_weights / "config.json", _WordWeights)
    weights, default = config["word_weights"], config.get("unknown_word_weight", 1.0)
    found = [weights.get(word, weights.get(word.lower(), default)) for word in config["vocab"]]
    return np.array(found, np.float32)


class StateModule(Protocol):
    """The weights of a pooler: `Pooler.module` names a class with these functions.

    The states pass through the module before the mean. It maps each state separately, in float32: states
    [n, d] to [n, d'].
    """

    @classmethod
    def open(cls, folder: ModelFolder) -> torch.nn.Module:
        """Load the module of a model folder.

        Raises UsageError if the folder has no such weights, and DataError if they are damaged.
        """

    @classmethod
    def create(cls, dim: int) -> torch.nn.Module:
        """Return a module with new weights for states of `dim` dimensions, drawn from torch's generator."""

    @classmethod
    def write(cls, learned: dict[str, torch.Tensor], source: ModelFolder, growing: Path) -> None:
        """Write trained parameters into a new model folder that continues `source`."""


def state_module(pooler: Pooler) -> type[StateModule] | None:
    """Return the class of the pooler's weights, if it has weights."""
    if not pooler.module:
        return None
    module, attribute = pooler.module.split(":")
    found: type[StateModule] = getattr(import_module(module), attribute)
    return found


def open_token_head(
    folder: ModelFolder, pooler: Pooler, device: torch.device, new: int = 0
) -> torch.nn.Module:
    """Load the token head: the weights of the pooler, then the projections of a ColBERT folder.

    Most models have neither, and their states stay unchanged. If `new` is not 0, a pooler with weights gets
    new ones, for states of this many dimensions. Raises the errors of `StateModule.open`.
    """
    weights = state_module(pooler)
    modules = [weights.create(new) if new else weights.open(folder)] if weights else []
    modules += [_PROJECTIONS[module.kind](module.folder) for module in folder.projections]
    return TokenHead(*modules).to(device).eval() if modules else torch.nn.Identity()


class DenseLayer(torch.nn.Module):
    """A linear map of each row, an activation, and optionally the row itself added: [n, d] -> [n, d'].

    A row of another size than the result passes through a linear map of its own before it is added.
    """

    def __init__(self, declared: _Dense, bias: bool, activation: torch.nn.Module) -> None:
        super().__init__()
        sizes = declared["in_features"], declared["out_features"]
        self.linear = torch.nn.Linear(*sizes, bias=declared.get("bias", bias))
        self.activation = activation
        self.residual: torch.nn.Module | None = None
        if declared.get("use_residual"):
            mapped = sizes[0] != sizes[1]
            self.residual = torch.nn.Linear(*sizes, bias=False) if mapped else torch.nn.Identity()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, d] in float32 -> [n, d'] in float32."""
        mapped: torch.Tensor = self.activation(self.linear(rows))
        return mapped if self.residual is None else mapped + self.residual(rows)


def _projection(folder: Path) -> torch.nn.Module:
    """Load PyLate's Dense: a linear map, without bias and activation unless its configuration has them."""
    return _open_dense(folder, False, "torch.nn.Identity", _STATES)


def _dense(folder: Path) -> torch.nn.Module:
    return _open_dense(folder, True, "torch.nn.Tanh", _VECTOR)


def _open_dense(folder: Path, bias: bool, activation: str, acts_on: str) -> torch.nn.Module:
    """Load a Dense; `bias` and `activation` are the defaults. DataError for settings that lmk lacks."""
    config = read_fields(folder / "config.json", _Dense)
    declared = config.get("activation_function", activation)
    name = declared.rpartition(".")[2]
    # sentence-transformers replaces a name outside torch, also a bare one, by Tanh
    if name not in _ACTIVATIONS or not declared.startswith("torch."):
        raise DataError(
            f"{folder}/config.json: unknown activation {declared}; lmk supports those of torch.nn, such as "
            f"torch.nn.Tanh ({', '.join(_ACTIVATIONS)})"
        )
    names = {config.get("module_input_name", acts_on), config.get("module_output_name") or acts_on}
    if names != {acts_on}:
        what = "the pooled vector" if acts_on == _VECTOR else "the states of a ColBERT model"
        raise DataError(
            f"{folder}/config.json: lmk applies Dense to {what} only, and this one has the input or output "
            f"{', '.join(sorted(names - {acts_on}))}; give another model"
        )
    with torch.device("meta"):  # the sizes are believed only if the weights have them
        dense = DenseLayer(config, bias, _ACTIVATIONS[name]())
    _load(dense, folder, "")
    return dense


def _layer_norm(folder: Path) -> torch.nn.Module:
    with torch.device("meta"):
        norm = torch.nn.LayerNorm(read_fields(folder / "config.json", _LayerNorm)["dimension"])
    _load(norm, folder, "norm.")
    return norm


_BUILDERS = {"Dense": _dense, "LayerNorm": _layer_norm}
_PROJECTIONS = {"Dense": _projection, "LayerNorm": _layer_norm}


def _load(module: torch.nn.Module, folder: Path, prefix: str) -> None:
    file = folder / "model.safetensors"
    file = file if file.exists() else folder / "pytorch_model.bin"
    if not file.exists():
        raise DataError(f"{folder} has no weights (model.safetensors or pytorch_model.bin)")
    weights = read_tensors(file, "the weights that its config.json describes")
    with loading(f"{file}, the weights that its config.json describes,"):
        values = {name.removeprefix(prefix): value.float() for name, value in weights.items()}
        module.load_state_dict(values, assign=True)


class LatentAttention(torch.nn.Module):
    """Latent attention: states [n, d] attend to learned latent vectors; [n, d].

    Pre-norm cross attention to the latents, then a gated feed-forward (arXiv 2601.21525 §3.2, after NV-Embed,
    arXiv 2405.17428). Each state is mapped separately. LMK's training writes it into the folder
    `latent_attn_model` next to its encoder; `open_latent` maps the parameter names of that file.
    """

    def __init__(self, dim: int, latents: int, block: int = STATES_BLOCK) -> None:
        super().__init__()
        self.block = block  # states that are mapped at a time
        self.heads = max(1, dim // HEAD_STATES)
        self.latents = torch.nn.Parameter(torch.randn(latents, dim))
        self.norm, self.norm_latents = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.query = torch.nn.Linear(dim, self.heads * dim, bias=False)
        self.key_value = torch.nn.Linear(dim, 2 * self.heads * dim, bias=False)
        self.out = torch.nn.Linear(self.heads * dim, dim, bias=False)
        self.norm_feed = torch.nn.LayerNorm(dim)
        self.feed, self.feed_out = torch.nn.Linear(dim, 8 * dim), torch.nn.Linear(4 * dim, dim)

    @classmethod
    def open(cls, folder: ModelFolder) -> "LatentAttention":
        """Load the latent attention of a folder; see `StateModule`."""
        if folder.latent is None:
            raise UsageError(
                f"--pool latent averages states after a learned head, and {folder.name} has no folder "
                f"{LATENT}; choose another --pool, for instance mean, or train one: lmk train --pool latent"
            )
        return open_latent(folder.latent)

    @classmethod
    def create(cls, dim: int) -> "LatentAttention":
        """Return one with LATENTS latents of standard normal numbers, as LMK's training starts with."""
        return cls(dim, LATENTS)

    @classmethod
    def write(cls, learned: dict[str, torch.Tensor], source: ModelFolder, growing: Path) -> None:
        """Write the parameters under the names of its file; see `StateModule`."""
        (growing / LATENT).mkdir(exist_ok=True)
        save_file(latent_file_names(learned), growing / LATENT / "model.safetensors")

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[n, d] in any floating dtype -> [n, d] in the dtype of the weights."""
        key, value = self._split(self.key_value(self.norm_latents(self.latents))).chunk(2, dim=0)
        cuts = tuple(range(self.block, len(states), self.block))
        blocks = torch.tensor_split(states.to(self.latents.dtype), cuts)
        return torch.cat([self._block(x, key, value) for x in blocks])

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[n, heads * d] -> [heads, n, d]."""
        return x.view(len(x), -1, self.latents.shape[1]).transpose(0, 1)

    def _block(self, x: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Map some states [n, d]; key and value of the latents are [heads, latents, d]."""
        query = self._split(self.query(self.norm(x)))
        attended = scaled_dot_product_attention(query[None], key[None], value[None])[0]
        x = x + self.out(attended.transpose(0, 1).reshape(len(x), -1))
        inner, gate = self.feed(self.norm_feed(x)).chunk(2, dim=-1)
        return x + self.feed_out(inner * gelu(gate))  # type: ignore[no-any-return]


_ATTENTION, _FEED = "cross_attend_blocks.0.", "cross_attend_blocks.1."
_NAMES = {
    "latents": "latents",
    _ATTENTION + "norm": "norm",
    _ATTENTION + "norm_context": "norm_latents",
    _ATTENTION + "fn.to_q": "query",
    _ATTENTION + "fn.to_kv": "key_value",
    _ATTENTION + "fn.to_out": "out",
    _FEED + "norm": "norm_feed",
    _FEED + "fn.net.0": "feed",
    _FEED + "fn.net.2": "feed_out",
}


def open_latent(folder: Path) -> LatentAttention:
    """Load a latent attention in float32. DataError if the weights are of something else."""
    file = folder / "model.safetensors"
    weights = read_tensors(file, "the latent attention")
    named = {_renamed(name, _NAMES): tensor.float() for name, tensor in weights.items()}
    latents = named.get("latents")
    if latents is None or latents.ndim != 2:
        raise DataError(f"{file} is no latent attention: it has no matrix 'latents'")
    with torch.device("meta"):
        head = LatentAttention(latents.shape[1], latents.shape[0])
    try:
        head.load_state_dict(named, assign=True)
    except RuntimeError as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise DataError(f"{file} is no latent attention as LMK writes it: {reason}") from None
    return head.eval()


def latent_file_names(head: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the parameters of a LatentAttention under the names of its file."""
    names = {ours: theirs for theirs, ours in _NAMES.items()}
    return {_renamed(name, names): value for name, value in head.items()}


def _renamed(name: str, names: dict[str, str]) -> str:
    """Replace the name of a module or parameter; its last part, such as '.weight', stays."""
    stem, _, kind = name.rpartition(".")
    return f"{names.get(stem, stem)}.{kind}" if stem else names.get(name, name)
