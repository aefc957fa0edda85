"""Latent attention: a learned token head in which states attend to latent vectors.

After it the states are averaged. The layout is that of the folder `latent_attn_model` which LMK's
training writes beside its encoder (arXiv 2601.21525 §3.2, after NV-Embed, arXiv 2405.17428).
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import gelu, scaled_dot_product_attention

from lmkcli.errors import DataError
from lmkcli.models.files import loading

HEAD_STATES = 64  # one attention head for so many dimensions of a state; each head is d wide
BLOCK = 4096  # states at a time: a head's inner width is d * d / 64, many times that of a state


class LatentAttention(torch.nn.Module):
    """states [n, d] -> [n, d]: pre-norm cross attention to the latents, then a gated feed-forward.

    Positions do not see each other. Parameters are named after what they are; `open_latent` maps the
    names of the file.
    """

    def __init__(self, dim: int, latents: int) -> None:
        super().__init__()
        self.heads = max(1, dim // HEAD_STATES)
        self.latents = torch.nn.Parameter(torch.randn(latents, dim))
        self.norm, self.norm_latents = torch.nn.LayerNorm(dim), torch.nn.LayerNorm(dim)
        self.query = torch.nn.Linear(dim, self.heads * dim, bias=False)
        self.key_value = torch.nn.Linear(dim, 2 * self.heads * dim, bias=False)
        self.out = torch.nn.Linear(self.heads * dim, dim, bias=False)
        self.norm_feed = torch.nn.LayerNorm(dim)
        self.feed, self.feed_out = torch.nn.Linear(dim, 8 * dim), torch.nn.Linear(4 * dim, dim)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[n, d] in any floating dtype -> [n, d] in that of the weights."""
        key, value = self._split(self.key_value(self.norm_latents(self.latents))).chunk(2, dim=0)
        cuts = tuple(range(BLOCK, len(states), BLOCK))
        blocks = torch.tensor_split(states.to(self.latents.dtype), cuts)
        return torch.cat([self._fed(self._attended(x, key, value)) for x in blocks])

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[n, heads * d] -> [heads, n, d]."""
        return x.view(len(x), -1, self.latents.shape[1]).transpose(0, 1)

    def _attended(
        self, states: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        query = self._split(self.query(self.norm(states)))
        seen = scaled_dot_product_attention(query[None], key[None], value[None])[0]
        joined = seen.transpose(0, 1).reshape(len(states), -1)
        return states + self.out(joined)  # type: ignore[no-any-return]

    def _fed(self, states: torch.Tensor) -> torch.Tensor:
        value, gate = self.feed(self.norm_feed(states)).chunk(2, dim=-1)
        return states + self.feed_out(value * gelu(gate))  # type: ignore[no-any-return]


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
    """The head whose weights lie in a folder, in float32; DataError when they are not such a head."""
    file = folder / "model.safetensors"
    with loading(f"{file}, the latent attention,"):
        weights = load_file(file)
    named = {_renamed(name): tensor.float() for name, tensor in weights.items()}
    latents = named.get("latents")
    if latents is None:
        raise DataError(f"{file} holds no 'latents': it is no latent attention")
    head = LatentAttention(latents.shape[1], latents.shape[0])
    try:
        head.load_state_dict(named)
    except RuntimeError as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise DataError(f"{file} is no latent attention as LMK writes it: {reason}") from None
    return head.eval()


def file_names(head: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parameters of a LatentAttention under the names of its file."""
    theirs = {ours: name for name, ours in _NAMES.items()}

    def named(name: str) -> str:
        stem, _, kind = name.rpartition(".")
        return f"{theirs[stem]}.{kind}" if stem else theirs[name]

    return {named(name): value for name, value in head.items()}


def _renamed(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    return f"{_NAMES.get(stem, stem)}.{kind}" if stem else _NAMES.get(name, name)
