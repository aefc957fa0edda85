"""The layers of TITE (Schlatt et al. 2025 §3.1, §3.2), over packed sequences and under the official names."""

from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import pad
from transformers.activations import ACT2FN

from lmkcli.models.tite.config import TiteConfig
from lmkcli.models.tite.rows import (
    Distances,
    Lengths,
    Lined,
    Spread,
    Windows,
    alibi,
    attend,
    rotate,
    turns,
    windows_over,
)


class Step(NamedTuple):
    """What one layer must know of the pack that it is given."""

    lined: Lined
    windows: Windows | None
    query_turns: torch.Tensor | None
    key_turns: torch.Tensor | None

    @property
    def alone(self) -> bool:
        """Whether every sequence is down to one key, so that its value is what attention gives."""
        return bool(self.lined.keys.max() == 1)

    @property
    def lengths(self) -> Lengths:
        """The lengths after the layer."""
        return self.windows.lengths if self.windows else self.lined.keys


def make_step(config: TiteConfig, layer: int, lengths: Lengths, device: torch.device) -> Step:
    """Windows and positions of one layer; positions begin anew in every layer."""
    pooling = config.windows[layer] if lengths.max() > 1 else None
    windows = windows_over(lengths, *pooling, device) if pooling else None
    before = windows.lengths if windows and config.pooling_location == "pre" else lengths
    intra = windows is not None and config.pooling_location == "intra"
    lined = Lined(windows.lengths if windows and intra else before, before)
    if config.relative_positional_embedding_type != "rotary":
        return Step(lined, windows, None, None)
    width = config.head_width(layer)
    keys = turns(lined.keys, Spread(), width, device)
    if not intra:
        return Step(lined, windows, keys, keys)
    spread = Spread()
    if pooling and config.rotary_query_positions == "centre":
        spread = Spread(pooling[0], (pooling[0] - 1) / 2)  # by the kernel, whatever the stride
    return Step(lined, windows, turns(lined.queries, spread, width, device), keys)


def make_norm(config: TiteConfig, width: int) -> nn.Module:
    """LayerNorm or RMSNorm."""
    kind = nn.LayerNorm if config.norm_type == "layer" else nn.RMSNorm
    return kind(width, eps=config.layer_norm_eps)


class TiteEmbeddings(nn.Module):
    """Tokens (and positions) at the last width, mapped down to the first one where it is another."""

    def __init__(self, config: TiteConfig) -> None:
        super().__init__()
        first, last = config.widths[0], config.widths[-1]
        self.word_embeddings = nn.Embedding(config.vocab_size, last, config.pad_token_id)
        self.downscale = nn.Linear(last, first, bias=False) if first != last else None
        learned = config.absolute_positional_embedding_type == "learned"
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, last) if learned else None
        )
        self.norm = make_norm(config, first)
        self.dropout = nn.Dropout(config.dropout_prob)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[tokens] and [tokens] -> [tokens, first width]."""
        embedded = self.word_embeddings(ids)
        if self.position_embeddings is not None:
            embedded = embedded + self.position_embeddings(positions)
        if self.downscale is not None:
            embedded = self.downscale(embedded)
        return cast(torch.Tensor, self.dropout(self.norm(embedded)))


class Residual(nn.Linear):
    """A linear layer whose output, after dropout, is added to what went past it."""

    def __init__(self, before: int, width: int, dropout: float) -> None:
        super().__init__(before, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """[tokens, before] and [tokens, width] -> [tokens, width]."""
        return cast(torch.Tensor, self.dropout(super().forward(states)) + residual)


class TiteAttention(nn.Module):
    """Attention that pools its input before, its queries within, or its output after."""

    def __init__(self, config: TiteConfig, layer: int) -> None:
        super().__init__()
        before, width = config.widths[max(layer - 1, 0)], config.widths[layer]
        self.heads = config.layer_sizes("num_attention_heads")[layer]
        self.location, self.norm_at = config.pooling_location, config.norm_location
        self.interleaved = config.rotary_interleaved
        self.alibi = config.relative_positional_embedding_type == "alibi"
        normed = before if self.norm_at == "pre" else width
        first = self.norm_at == "pre" and layer == 0  # the embeddings are normalised already
        self.norm = nn.Identity() if first else make_norm(config, normed)
        self.query = nn.Linear(before, width)
        self.key = nn.Linear(before, width)
        self.value = nn.Linear(before, width)
        self.dense = Residual(width, width, config.dropout_prob)
        self.wider = width - before

    def forward(self, states: torch.Tensor, step: Step) -> torch.Tensor:
        """[tokens, width before] -> [tokens or windows, width], residual included."""
        pooled = states
        if step.windows and self.location != "post":
            pooled = step.windows(states)
        source = pooled if self.location == "pre" else states
        residual = pad(pooled, (0, self.wider)) if self.wider else pooled
        output = self.dense(self._attended(pooled, source, step), residual)
        if step.windows and self.location == "post":
            output = step.windows(output)
        return cast(torch.Tensor, self.norm(output) if self.norm_at == "post" else output)

    def _attended(self, pooled: torch.Tensor, source: torch.Tensor, step: Step) -> torch.Tensor:
        """Queries of the pooled states over keys and values of the source, [windows, width]."""
        if self.norm_at == "pre":
            same = pooled is source
            source = self.norm(source)
            pooled = source if same else self.norm(pooled)
        value = self._projected(self.value, source)
        if step.alone:
            return value
        query, key = self._projected(self.query, pooled), self._projected(self.key, source)
        q, k, v = (part.view(len(part), self.heads, -1) for part in (query, key, value))
        if step.query_turns is not None and step.key_turns is not None:
            q = rotate(q, step.query_turns, self.interleaved)
            k = rotate(k, step.key_turns, self.interleaved)
        return attend(q, k, v, step.lined, self._distances(q.device)).flatten(1)

    def _projected(self, projection: nn.Module, states: torch.Tensor) -> torch.Tensor:
        projected = projection(states)
        return cast(torch.Tensor, self.norm(projected) if self.norm_at == "qkv" else projected)

    def _distances(self, device: torch.device) -> Distances | None:
        return alibi(self.heads, device) if self.alibi else None


class TiteMLP(nn.Module):
    """The feed-forward half of a layer, residual included."""

    def __init__(self, config: TiteConfig, layer: int) -> None:
        super().__init__()
        width, inner = config.widths[layer], config.layer_sizes("intermediate_sizes")[layer]
        self.hidden_act = config.hidden_act
        self.gated = config.hidden_act == "swiglu"
        self.norm_at = config.norm_location
        self.norm = make_norm(config, width)
        self.intermediate_dense = nn.Linear(width, 2 * inner if self.gated else inner)
        self.act: nn.Module = ACT2FN["silu" if self.gated else config.hidden_act]
        self.out_dense = Residual(inner, width, config.dropout_prob)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[tokens, width] -> [tokens, width]."""
        inner = self.intermediate_dense(states if self.norm_at == "post" else self.norm(states))
        if self.gated:
            gate, inner = inner.chunk(2, -1)
            inner = self.act(gate) * inner
        else:
            inner = self.act(inner)
        output = self.out_dense(inner, states)
        return cast(torch.Tensor, self.norm(output) if self.norm_at == "post" else output)


class TiteLayer(nn.Module):
    """Attention, which may pool, and feed-forward."""

    def __init__(self, config: TiteConfig, layer: int) -> None:
        super().__init__()
        self.attention = TiteAttention(config, layer)
        self.mlp = TiteMLP(config, layer)

    def forward(self, states: torch.Tensor, step: Step) -> torch.Tensor:
        """[tokens, width before] -> [tokens or windows, width]."""
        return cast(torch.Tensor, self.mlp(self.attention(states, step)))


class TiteEncoder(nn.Module):
    """All layers, and the last norm where layers begin with theirs."""

    def __init__(self, config: TiteConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(TiteLayer(config, i) for i in range(config.num_hidden_layers))
        post = config.norm_location == "post"
        self.norm = nn.Identity() if post else make_norm(config, config.hidden_size)

    def forward(
        self, states: torch.Tensor, lengths: Lengths, layers: list[torch.Tensor] | None
    ) -> torch.Tensor:
        """The normed states after the last layer; those after each layer go into `layers`."""
        for number, layer in enumerate(self.layers):
            step = make_step(self.config, number, lengths, states.device)
            states = layer(states, step)
            lengths = step.lengths
            if layers is not None:
                layers.append(states)
        return cast(torch.Tensor, self.norm(states))
