"""M2-BERT as a transformers class, `M2BertModel`, registered with AutoConfig and AutoModel.

It computes the equations of Fu et al. 2023 (arXiv 2310.12109). Parameters have the names of the models that
Saad-Falcon et al. 2024 (arXiv 2402.07440 §4.1) released; see docs/models.md.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from lmkcli.errors import UsageError
from lmkcli.models.lookup import locate
from lmkcli.plugins.m2bert import weights as weight_files
from lmkcli.plugins.m2bert.config import M2BertConfig, check_supported
from lmkcli.plugins.m2bert.mixer import LongConv, SequenceMixer, by_rows


class M2BertEmbeddings(nn.Module):
    """LayerNorm(words + token types + positions)."""

    position_ids: Tensor

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        width, length = config.hidden_size, config.max_position_embeddings
        rows = -(-config.vocab_size // 8) * 8
        self.word_embeddings = nn.Embedding(rows, width, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        positions = nn.Embedding(length, width) if config.use_positional_encodings else None
        self.position_embeddings = positions
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.register_buffer("position_ids", torch.arange(length)[None])

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(types)
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        return self.dropout(self.LayerNorm(x))  # type: ignore[no-any-return]


class BlockDiagonal(nn.Module):
    """A linear layer with a block-diagonal matrix: block b maps input piece b to output piece b.

    Inputs and outputs are lists of parts, [..., width] each, which together are the features. So consecutive
    layers pass pieces on without copies. If the number of blocks does not divide a size, zeros fill the last
    piece.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int, bias: bool) -> None:
        super().__init__()
        self.outputs = outputs
        weight = torch.empty(blocks, -(-outputs // blocks), -(-inputs // blocks))
        self.weight = nn.Parameter(nn.init.normal_(weight, std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, parts: list[Tensor]) -> list[Tensor]:
        blocks, outputs, width = self.weight.shape
        biases: Iterable[Tensor | None] = [None] * blocks
        if self.bias is not None:
            biases = functional.pad(self.bias, (0, blocks * outputs - self.outputs)).chunk(blocks)
        pieces = zip(_pieces(parts, blocks, width), self.weight, biases, strict=True)
        results = [functional.linear(piece, weight, bias) for piece, weight, bias in pieces]
        if blocks * outputs == self.outputs:
            return results
        return [torch.cat(results, dim=-1)[..., : self.outputs]]


def _pieces(parts: list[Tensor], blocks: int, width: int) -> Sequence[Tensor]:
    """Cut the features of `parts` into `blocks` pieces of `width`, the last one filled with zeros."""
    each = blocks // len(parts)
    if all(part.shape[-1] == each * width for part in parts):
        return [piece for part in parts for piece in part.chunk(each, dim=-1)]
    whole = torch.cat(parts, dim=-1)
    return functional.pad(whole, (0, blocks * width - whole.shape[-1])).chunk(blocks, dim=-1)


class M2BertMlp(nn.Module):
    """gelu(a) * c, or gelu(a) without a gate, between two linear layers.

    The only residual and LayerNorm of an M2-BERT layer are here.
    """

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gated = config.use_glu_mlp
        outputs = 2 * inner if self.gated else inner
        self.gated_layers = _linear(config, width, outputs, bias=False)
        self.wo = _linear(config, inner, width, bias=True)
        self.layernorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor) -> Tensor:
        return by_rows(self._rows, x)

    def _rows(self, x: Tensor) -> Tensor:
        parts = _through(self.gated_layers, [x])
        inner = self._multiplied(parts) if self.gated else [functional.gelu(a) for a in parts]
        outputs = _through(self.wo, [self.dropout(part) for part in inner])
        return self.layernorm(torch.cat(outputs, dim=-1) + x)  # type: ignore[no-any-return]

    def _multiplied(self, parts: list[Tensor]) -> list[Tensor]:
        """Return the gelu of the first half of the features times the second half."""
        if len(parts) % 2:
            parts = list(torch.cat(parts, dim=-1).chunk(2, dim=-1))
        half = len(parts) // 2
        return [functional.gelu(a) * c for a, c in zip(parts[:half], parts[half:], strict=True)]


def _linear(config: M2BertConfig, inputs: int, outputs: int, bias: bool) -> nn.Module:
    if config.use_monarch_mlp:
        return BlockDiagonal(inputs, outputs, config.monarch_mlp_nblocks, bias)
    return nn.Linear(inputs, outputs, bias)


def _through(layer: nn.Module, parts: list[Tensor]) -> list[Tensor]:
    """Apply a layer of either kind to features in parts."""
    if isinstance(layer, BlockDiagonal):
        return layer(parts)  # type: ignore[no-any-return]
    return [layer(torch.cat(parts, dim=-1))]


class M2BertLayer(nn.Module):
    """A mixer over the sequence, then an MLP over the width."""

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.attention = SequenceMixer(config)
        self.mlp = M2BertMlp(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.mlp(self.attention(x, mask))  # type: ignore[no-any-return]


class M2BertPooler(nn.Module):
    """tanh(dense(x)) of the first state, or of the mean of the states in the mask."""

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.mean = config.pool_all

    def forward(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        pooled = masked_mean(states, attention_mask) if self.mean else states[:, 0]
        return torch.tanh(self.dense(pooled))


def masked_mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    """[batch, n, width], [batch, n] -> [batch, width]."""
    weights = attention_mask[:, :, None].to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


class M2BertEncoder(nn.Module):
    """All layers."""

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(M2BertLayer(config) for _ in range(config.num_hidden_layers))


class M2BertParts(nn.Module):
    """The parameters with the prefix `bert.` in the released weights."""

    def __init__(self, config: M2BertConfig) -> None:
        super().__init__()
        self.embeddings = M2BertEmbeddings(config)
        self.encoder = M2BertEncoder(config)
        self.pooler = None if config.use_cls_token else M2BertPooler(config)


class M2BertModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Token ids -> states [batch, n, width] and the retrieval vector [batch, width].

    The state dictionary has the names of the released retrieval models.
    """

    config_class = M2BertConfig
    base_model_prefix = "m2bert"
    # in bf16, different positions become equal
    _keep_in_fp32_modules_strict = ["filter_fn", "filter_fn2"]  # noqa: RUF012
    _no_split_modules = ["M2BertLayer"]  # noqa: RUF012 (as transformers declares it)

    def __init__(self, config: M2BertConfig) -> None:
        check_supported(config)
        super().__init__(config)
        self.bert = M2BertParts(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        mask_padding: bool = False,
        output_hidden_states: bool = False,
        **ignored: Any,
    ) -> BaseModelOutputWithPooling:
        """Return the states of all positions, padding included, and the vector (not normalised).

        As in the released code, convolutions read the padding, and the mask is used only for `pool_all`.
        `mask_padding` hides the padding from the convolutions, so a row does not depend on the length of its
        padding.
        """
        if input_ids.shape[1] > self.config.limit:
            raise UsageError(
                f"{input_ids.shape[1]} tokens are more than the {self.config.limit} positions of this "
                "M2-BERT; cut the text"
            )
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        states = self.bert.embeddings(input_ids, token_type_ids)
        hidden = [states]
        mask = attention_mask[:, None].to(states.dtype) if mask_padding else None
        for layer in self.bert.encoder.layer:
            states = layer(states, mask)
            if output_hidden_states:
                hidden.append(states)
        return BaseModelOutputWithPooling(
            last_hidden_state=states,
            pooler_output=self._pooled(states, attention_mask),
            hidden_states=tuple(hidden) if output_hidden_states else None,
        )

    def _pooled(self, states: Tensor, attention_mask: Tensor) -> Tensor:
        first = states[:, 0]
        vectors = first if self.bert.pooler is None else self.bert.pooler(states, attention_mask)
        if self.config.use_normalized_embeddings:
            return functional.normalize(vectors, dim=-1)
        return vectors

    @property
    def long_convs(self) -> list[LongConv]:
        """The long convolutions of all layers."""
        return [module for module in self.modules() if isinstance(module, LongConv)]

    def get_input_embeddings(self) -> nn.Module:
        return self.bert.embeddings.word_embeddings

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as in transformers, but shared frequencies under all six of their names, as released."""
        kept = {name: value.clone() for name, value in self.state_dict().items()}
        super().save_pretrained(save_directory, *args, **({"state_dict": kept} | kwargs))

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: Any, *args: Any, config: Any = None, **kwargs: Any
    ) -> Any:
        """Load the model of a folder or a hub name. DataError for missing or unknown weights."""
        offline = bool(kwargs.pop("local_files_only", False))
        folder, _ = locate(str(name), kwargs.pop("revision", None), offline)
        config = weight_files.read_config(folder) if config is None else config
        with torch.device("meta"):
            expected = cls(config).state_dict()
        weights = weight_files.read(folder, expected)
        return super().from_pretrained(None, *args, config=config, state_dict=weights, **kwargs)


AutoConfig.register(M2BertConfig.model_type, M2BertConfig)
AutoModel.register(M2BertConfig, M2BertModel)
