"""Decoders of pre-training: the head that predicts tokens from states, and RetroMAE's enhanced decoder.

Both need little memory. Logits [tokens, vocabulary] and attention masks [rows, keys] exist for one block of
rows at a time, and the backward pass computes them again instead of storing them (`recomputed`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM
from transformers.activations import ACT2FN
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from lmkcli.models.attention import QueryKeyLengths, kernel
from lmkcli.models.model_folder import ModelFolder
from lmkcli.models.tensors import chosen_tensors
from lmkcli.models.weight_files import weight_files

LOGITS_BLOCK = 1 << 24  # logits in memory at a time
MASK_BLOCK = 1 << 23  # entries of a mask in memory at a time
# Names of the head in released masked language models: dense, norm, and the owner of the bias.
_RELEASED = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    ("head.dense", "head.norm", "decoder"),  # ModernBERT
    ("lm_head.dense", "lm_head.layer_norm", "lm_head"),  # RoBERTa, MPNet
    ("vocab_transform", "vocab_layer_norm", "vocab_projector"),  # DistilBERT
)


def recomputed(function: Any, *tensors: Tensor) -> Tensor:
    """Return `function(*tensors)`; the backward pass computes it again instead of keeping activations."""
    return cast(Tensor, checkpoint(function, *tensors, use_reentrant=False))


class LanguageHead(nn.Module):
    """dense -> activation -> norm -> product with the token table, plus one bias per token (BERT, §A.2)."""

    def __init__(self, width: int, rows: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.act: nn.Module = ACT2FN[activation]
        self.norm = norm
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """[m, width], and the token table [rows, width] -> logits [m, rows]."""
        return functional.linear(self.norm(self.act(self.dense(states))), table, self.bias)

    def summed_loss(self, states: Tensor, targets: Tensor, table: Tensor) -> Tensor:
        """Return the summed cross-entropy of `targets` [m] in float32, computed block by block."""
        return self.loss_and_hits(states, targets, table)[0]

    def loss_and_hits(self, states: Tensor, targets: Tensor, table: Tensor) -> Tensor:
        """Return the summed cross-entropy, and the number of targets with the largest logit, [2]."""

        def both(part: Tensor, wanted: Tensor, table: Tensor) -> Tensor:
            logits = self(part, table)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            loss = functional.cross_entropy(wide, wanted, reduction="sum")
            hits = (wide.detach().argmax(1) == wanted).sum()
            return torch.stack([loss, hits.to(loss.dtype)])

        rows = max(1, LOGITS_BLOCK // len(table))
        if len(states) <= rows:
            return both(states, targets, table)
        parts = zip(states.split(rows), targets.split(rows), strict=True)  # type: ignore[no-untyped-call]
        sums = [recomputed(both, part, wanted, table) for part, wanted in parts]
        return torch.stack(sums).sum(0)


def language_head(config: Any, rows: int) -> LanguageHead:
    """Create a head with random weights for the states of a model with this configuration."""
    names = ("hidden_act", "hidden_activation", "activation", "activation_function")
    activation = next((getattr(config, name) for name in names if hasattr(config, name)), "gelu")
    norm = nn.LayerNorm(config.hidden_size, eps=_epsilon(config))
    head = LanguageHead(int(config.hidden_size), rows, activation, norm)
    return head.apply(initialiser(config))


def _epsilon(config: Any) -> float:
    """Return the epsilon of a model's norms, which avoids division by zero."""
    names = ("layer_norm_eps", "norm_eps")
    return float(next((getattr(config, name) for name in names if hasattr(config, name)), 1e-12))


def initialiser(config: Any) -> Callable[[nn.Module], None]:
    """Return a function that initialises a module as in BERT: normal weights, zero biases."""
    deviation = float(getattr(config, "initializer_range", 0.02))

    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=deviation)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    return initialise


def released_head(folder: ModelFolder) -> dict[str, Tensor]:
    """Return the head's weights of a masked language model by the names of LanguageHead.

    The dictionary is empty if the folder has no such head.
    """
    names = {theirs: own for row in _RELEASED for own, theirs in _released_names(*row).items()}
    head: dict[str, Tensor] = {}
    files = weight_files(folder.encoder)
    for file in (each for each in files if each.suffix == ".safetensors"):
        for name, value in chosen_tensors(file, names, "the weights").items():
            head[names[name]] = value
    return head if "dense.weight" in head else {}


def _released_names(dense: str, norm: str, bias: str) -> dict[str, str]:
    """Return the names of LanguageHead's tensors in a masked language model."""
    named = {"dense": dense, "norm": norm}
    names = {
        f"{own}.{kind}": f"{part}.{kind}"
        for own, part in named.items()
        for kind in ("weight", "bias")
    }
    return names | {"bias": f"{bias}.bias"}


class MaskedModel(NamedTuple):
    """A masked language model of an encoder's architecture, without weights.

    names: the names of LanguageHead's tensors in the model. table: the name of the last layer's matrix, if
    the model does not share the token table with it; else empty.
    """

    module: Any
    names: dict[str, str]
    table: str

    @classmethod
    def of(cls, config: Any) -> "MaskedModel | None":
        """Return the model; None if the architecture has none, or one with another kind of head."""
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
            return None
        with torch.device("meta"):
            module = AutoModelForMaskedLM.from_config(config)  # type: ignore[no-untyped-call]
        inner = f"{module.base_model_prefix}."
        # A shared tensor has one name here.
        own = {name for name, _ in module.named_parameters() if not name.startswith(inner)}
        tables = {name for name in own if name.endswith(".decoder.weight")}
        for row in _RELEASED:
            names = _released_names(*row)
            if own - tables == set(names.values()) and len(tables) < 2:
                return cls(module, names, "".join(tables))
        return None


# RowMask(text, rows): which keys some rows of a text see, [rows, keys] bool.
RowMask = Callable[[int, slice], Tensor]
# Bias(q, k, rows): what is added to q @ k.T, [texts, heads, rows, keys].
Bias = Callable[[Tensor, Tensor, slice], Tensor]


class DecoderShape(NamedTuple):
    """The sizes of a decoding layer. Relative positions cover distances below `reach`; 0 means none."""

    width: int
    heads: int
    inner: int
    reach: int = 0


class EnhancedDecoder(nn.Module):
    """A layer of BERT in which each row attends to its own part of the text (RetroMAE, §2.3).

    Queries come from one stream, keys and values from another. With a `reach`, the layer learns relative
    positions for queries and keys (Huang et al. 2020, method 4), for encoders without a table of
    positions.
    """

    def __init__(self, config: Any, shape: DecoderShape) -> None:
        super().__init__()
        width, eps = shape.width, _epsilon(config)
        self.heads = shape.heads
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width, eps=eps)
        self.intermediate = nn.Linear(width, shape.inner)
        self.act: nn.Module = ACT2FN["gelu"]
        self.output = nn.Linear(shape.inner, width)
        self.output_norm = nn.LayerNorm(width, eps=eps)
        self.dropout = nn.Dropout(float(getattr(config, "hidden_dropout_prob", 0.0)))
        self.relative = (
            nn.Embedding(2 * shape.reach - 1, width // shape.heads) if shape.reach else None
        )
        self.apply(initialiser(config))

    def forward(
        self, queries: Tensor, context: Tensor, lengths: Sequence[int], mask: RowMask
    ) -> Tensor:
        """[tokens, width] of all texts as queries and as keys -> [tokens, width]."""
        q, k, v = (
            part.view(len(part), self.heads, -1)
            for part in (self.query(queries), self.key(context), self.value(context))
        )
        bias = None if self.relative is None else self._relative_bias
        counts = np.asarray(lengths, np.int64)
        attended = masked_attention(q, (k, v), QueryKeyLengths(counts, counts), mask, bias).flatten(
            1
        )
        states = self.norm(self.dropout(self.dense(attended)) + queries)
        inner = self.output(self.act(self.intermediate(states)))
        return cast(Tensor, self.output_norm(self.dropout(inner) + states))

    def _relative_bias(self, q: Tensor, k: Tensor, rows: slice) -> Tensor:
        """Return the products of queries and keys with the embeddings a of their distance i - j.

        The entry of row i and key j is q_i . a(i - j) + k_j . a(i - j): [texts, heads, rows, keys].
        `unfold` gives the embeddings of all pairs as views of the table, without copies.
        """
        table: Tensor = cast(nn.Embedding, self.relative).weight
        zero, keys, count = len(table) // 2, k.shape[2], q.shape[2]
        first, last = rows.start - keys + 1, rows.stop - 1  # the distances i - j of these rows
        near = table[zero + first : zero + last + 1]
        by_row = near.unfold(0, keys, 1).flip(2)  # [rows, width, keys]: a(i - j) for each row i
        by_key = near.unfold(0, count, 1).flip(0)  # [keys, width, rows]: a(i - j) for each key j
        of_queries = torch.einsum("thrw,rwk->thrk", q, by_row)
        return of_queries + torch.einsum("thkw,kwr->thrk", k, by_key)


def masked_attention(
    query: Tensor,
    context: tuple[Tensor, Tensor],
    lengths: QueryKeyLengths,
    mask: RowMask,
    bias: Bias | None = None,
) -> Tensor:
    """Attention within each text over the keys that each row sees: [queries, heads, width].

    `context` are the keys and values [keys, heads, width] of all texts, one text after another. `bias`
    is added to the products of queries [texts, heads, rows, width] and keys. Each row must see at least
    one key. Neighbours of equal lengths are one batch, which is computed by blocks of rows.
    """
    attended, q, k = [], 0, 0
    for texts in _equal_texts(lengths, query.shape[1] if bias else 1):
        count = len(texts)
        rows, keys = int(lengths.queries[texts.start]), int(lengths.keys[texts.start])
        part = query[q : q + count * rows].view(count, rows, *query.shape[1:]).transpose(1, 2)
        own_keys, own_values = (
            one[k : k + count * keys].view(count, keys, *one.shape[1:]).transpose(1, 2)
            for one in context
        )
        q, k = q + count * rows, k + count * keys
        step = max(1, MASK_BLOCK // (count * keys))
        blocks = [
            _row_block(
                part, (own_keys, own_values), (texts, slice(i, min(i + step, rows))), mask, bias
            )
            for i in range(0, rows, step)
        ]
        attended.append(torch.cat(blocks, 2).transpose(1, 2).flatten(0, 1))
    return torch.cat(attended)


def _equal_texts(lengths: QueryKeyLengths, copies: int) -> Iterator[range]:
    """Yield neighbours of equal lengths, as many as have masks within MASK_BLOCK."""
    pairs = list(zip(lengths.queries.tolist(), lengths.keys.tolist(), strict=True))
    start = 0
    while start < len(pairs):
        rows, keys = pairs[start]
        most = max(1, MASK_BLOCK // max(1, rows * keys * copies))
        stop = start + 1
        while stop < min(len(pairs), start + most) and pairs[stop] == pairs[start]:
            stop += 1
        yield range(start, stop)
        start = stop


def _row_block(
    query: Tensor,
    context: tuple[Tensor, Tensor],
    block: tuple[range, slice],
    mask: RowMask,
    bias: Bias | None,
) -> Tensor:
    """Return the attention of some rows of some texts, [texts, heads, rows, width]."""
    texts, rows = block

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = torch.stack([mask(text, rows) for text in texts])[:, None].to(q.device)
        if bias is None:
            return kernel(q, k, v, seen)
        added = bias(q, k, rows) / q.shape[3] ** 0.5
        return kernel(q, k, v, added.masked_fill(~seen, -torch.inf))

    return recomputed(attend, query[:, :, rows], *context)
