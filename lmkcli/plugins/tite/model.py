"""TITE as a transformers class, `TiteModel`, registered with AutoConfig and AutoModel.

The layers are those of Schlatt et al. 2025 §3.1 and §3.2, over packed sequences and under the official
parameter names. A layer may pool: its attention returns one state per window of tokens, so sequences become
shorter from layer to layer, down to one vector.
"""

from typing import NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutput

from lmkcli.errors import DataError
from lmkcli.models.attention import QueryKeyLengths
from lmkcli.plugins.tite.config import TiteConfig
from lmkcli.plugins.tite.sequences import (
    Alibi,
    Lengths,
    PoolingWindows,
    Spacing,
    attend,
    counted,
    rotate,
    rotations,
    windows_over,
)


class Step(NamedTuple):
    """The facts about a pack that a layer needs: windows, lengths and positions."""

    lengths: QueryKeyLengths
    windows: PoolingWindows | None
    query_rotations: torch.Tensor | None
    key_rotations: torch.Tensor | None

    @property
    def single_keys(self) -> bool:
        """Whether every sequence has one key, so that attention returns its value."""
        return bool(self.lengths.keys.max() == 1)

    @property
    def lengths_after(self) -> Lengths:
        """The lengths after the layer."""
        return self.windows.lengths if self.windows else self.lengths.keys


def make_step(config: TiteConfig, layer: int, lengths: Lengths, device: torch.device) -> Step:
    """Compute windows and positions of one layer. Positions restart at 0 in every layer.

    With pooling location 'pre', attention runs over the pooled states. With 'intra', pooled queries
    attend to all tokens. With 'post', attention runs over all tokens and its output is pooled.
    """
    pooling = config.windows[layer] if lengths.max() > 1 else None
    windows = windows_over(lengths, *pooling, device) if pooling else None
    before = windows.lengths if windows and config.pooling_location == "pre" else lengths
    intra = windows is not None and config.pooling_location == "intra"
    counts = QueryKeyLengths(windows.lengths if windows and intra else before, before)
    if config.relative_positional_embedding_type != "rotary":
        return Step(counts, windows, None, None)
    width = config.head_width(layer)
    keys = rotations(counts.keys, Spacing(), width, device)
    if not intra:
        return Step(counts, windows, keys, keys)
    spacing = Spacing()
    if pooling and config.rotary_query_positions == "centre":
        kernel = pooling[0]
        spacing = Spacing(
            kernel, (kernel - 1) / 2
        )  # the official code uses the kernel, not the stride
    return Step(counts, windows, rotations(counts.queries, spacing, width, device), keys)


def make_norm(config: TiteConfig, width: int) -> nn.Module:
    """LayerNorm or RMSNorm."""
    kind = nn.LayerNorm if config.norm_type == "layer" else nn.RMSNorm
    return kind(width, eps=config.layer_norm_eps)


class TiteEmbeddings(nn.Module):
    """Embeddings of tokens (and positions) at the last width, mapped to the first width if it differs."""

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
    """dropout(linear(states)) + residual."""

    def __init__(self, before: int, width: int, dropout: float) -> None:
        super().__init__(before, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """[tokens, before] and [tokens, width] -> [tokens, width]."""
        return cast(torch.Tensor, self.dropout(super().forward(states)) + residual)


class TiteAttention(nn.Module):
    """Attention that may pool its input ('pre'), its queries ('intra') or its output ('post')."""

    def __init__(self, config: TiteConfig, layer: int) -> None:
        super().__init__()
        before, width = config.widths[max(layer - 1, 0)], config.widths[layer]
        self.heads = config.layer_sizes("num_attention_heads")[layer]
        self.location, self.norm_at = config.pooling_location, config.norm_location
        self.interleaved = config.rotary_interleaved
        self.alibi = config.relative_positional_embedding_type == "alibi"
        normed = before if self.norm_at == "pre" else width
        first = self.norm_at == "pre" and layer == 0  # the embeddings already have a norm
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
        """Attention of the pooled states (queries) over the source (keys and values), [windows, width]."""
        if self.norm_at == "pre":
            same = pooled is source
            source = self.norm(source)
            pooled = source if same else self.norm(pooled)
        value = self._projected(self.value, source)
        if step.single_keys:
            return value
        query, key = self._projected(self.query, pooled), self._projected(self.key, source)
        q, k, v = (part.view(len(part), self.heads, -1) for part in (query, key, value))
        if step.query_rotations is not None and step.key_rotations is not None:
            q = rotate(q, step.query_rotations, self.interleaved)
            k = rotate(k, step.key_rotations, self.interleaved)
        alibi = Alibi.of(self.heads, q.device) if self.alibi else None
        return attend(q, k, v, step.lengths, alibi).flatten(1)

    def _projected(self, projection: nn.Module, states: torch.Tensor) -> torch.Tensor:
        projected = projection(states)
        return cast(torch.Tensor, self.norm(projected) if self.norm_at == "qkv" else projected)


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
    """All layers, and a final norm unless each layer ends with one."""

    def __init__(self, config: TiteConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(TiteLayer(config, i) for i in range(config.num_hidden_layers))
        post = config.norm_location == "post"
        self.norm = nn.Identity() if post else make_norm(config, config.hidden_size)

    def forward(
        self, states: torch.Tensor, lengths: Lengths, layers: list[torch.Tensor] | None
    ) -> torch.Tensor:
        """Return the normed states after the last layer; append the states of each layer to `layers`."""
        for number, layer in enumerate(self.layers):
            step = make_step(self.config, number, lengths, states.device)
            states = layer(states, step)
            lengths = step.lengths_after
            if layers is not None:
                layers.append(states)
        return cast(torch.Tensor, self.norm(states))


class TiteModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """TITE without heads; its parameters have the names of the released checkpoints."""

    config: TiteConfig
    config_class = TiteConfig
    base_model_prefix = "tite"
    _no_split_modules = ["TiteLayer"]  # noqa: RUF012 (as transformers declares it)
    _keys_to_ignore_on_load_unexpected = [r"^heads\.", r"^lm_decoder\."]  # noqa: RUF012

    def __init__(self, config: TiteConfig) -> None:
        super().__init__(config)
        self.embeddings = TiteEmbeddings(config)
        self.encoder = TiteEncoder(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Return the token table."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Set another token table of the same width."""
        self.embeddings.word_embeddings = cast(nn.Embedding, value)

    def packed(
        self, ids: torch.Tensor, lengths: Lengths, layers: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Map packed sequences [tokens] to one row per non-empty sequence, [n, width].

        If no layer pools, there is one row per token. The states after the embeddings and after each
        layer are appended to `layers`. DataError for a sequence that is longer than the positions.
        """
        longest = int(lengths.max(initial=0))
        if longest > self.config.longest:
            raise DataError(
                f"a sequence of {longest} tokens is longer than TITE's {self.config.longest} positions; "
                "cut it (--max-length; in Python truncation=True of the tokenizer)"
            )
        if not longest:
            return cast(torch.Tensor, self.embeddings.word_embeddings(ids))  # no rows
        states = self.embeddings(ids, torch.from_numpy(counted(lengths)).to(ids.device))
        if layers is not None:
            layers.append(states)
        return cast(torch.Tensor, self.encoder(states, lengths, layers))

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple[torch.Tensor, ...]:
        """[batch, length] -> `last_hidden_state` [batch, 1, width]; zeros for rows of padding only.

        A model without pooling returns [batch, length, width]. `hidden_states` are packed, because
        padding is never computed: the embeddings twice, as in the official code, then each layer.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = mask.bool()
        layers: list[torch.Tensor] = []
        shown = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        states = self.packed(
            input_ids[mask], mask.sum(1).cpu().numpy().astype(np.int64), layers if shown else None
        )
        filled = mask.any(1, keepdim=True) if self.config.pools else mask
        last = states.new_zeros(*filled.shape, self.config.hidden_size)
        last = last.masked_scatter(filled[..., None], states)
        output = BaseModelOutput(last, tuple(layers[:1] + layers) if shown else None)
        as_object = self.config.return_dict if return_dict is None else return_dict
        return output if as_object else output.to_tuple()


AutoConfig.register("tite", TiteConfig)
AutoModel.register(TiteConfig, TiteModel)
