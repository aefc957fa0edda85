"""RetroMAE: a text is decoded from its vector and a part of its words (Xiao et al. 2022, §2).

The encoder's own MLM loss, and that of a decoder of one layer, which predicts every token: its rows see
the vector in the place of the first token, and words that no two rows need have in common. DupMAE (Xiao
et al. 2023) adds the words of the text, predicted from the states as a bag.
"""

import inspect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmkcli.errors import UsageError
from lmkcli.models.enhanced import EnhancedDecoder, Shape
from lmkcli.models.forward import Model
from lmkcli.models.language import LanguageHead, again, language_head
from lmkcli.training.masking import MaskedText, Masking
from lmkcli.training.pretraining import HeadOptions, Read, masked_language

_HEAD = 64  # the width of a head where the encoder does not say how many it has


class RetroMae(nn.Module):
    """MLM and enhanced decoding, each the mean over its tokens, added up.

    The decoder's queries are the vector at every position: with the embedding module of the encoder
    applied (DupMAE, FlagEmbedding, LMK), or with the row of its table of positions added (`raw`, as in
    the first code). An encoder without such a table has relative positions in the decoder (LMK).
    """

    masking: ClassVar[Masking] = Masking(share=0.3, decoder_rows=256)
    weights: ClassVar[Mapping[str, float]] = {"mlm": 1.0, "decoder": 1.0}

    def __init__(self, model: Model, options: HeadOptions) -> None:
        super().__init__()
        encoder: Any = model.module
        table = positions(encoder)
        self.raw = options.raw
        if self.raw and table is None:
            raise UsageError(
                "--query-stream raw adds a table of positions, and this encoder has none; drop it"
            )
        check_embeddings(encoder)
        reach = 0 if table is not None else options.reach
        rows = len(encoder.get_input_embeddings().weight)
        self.language = language_head(encoder.config, rows)
        self.decoder = EnhancedDecoder(encoder.config, _shape(encoder.config, reach))

    def forward(self, read: Read) -> Tensor:
        """[2]: the sums over hidden tokens, and over decoded ones."""
        return torch.stack([masked_language(read, self.language), self.decoded(read)])

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """How many tokens are hidden, and how many are decoded."""
        decoded = sum(int(_decoded(text).sum()) for text in texts)
        return [sum(len(text.hidden) for text in texts), decoded]

    def decoded(self, read: Read) -> Tensor:
        """The sum over decoded tokens."""
        states = self.states(read)
        rows = read.tensor([_decoded(text) for text in read.texts])
        return self.language.surprise(states[rows], read.ids[rows], read.table)

    def states(self, read: Read) -> Tensor:
        """What the decoder makes of all tokens, [tokens, dim]."""
        device = read.vectors.device
        lengths = torch.tensor(read.lengths, device=device)
        places = read.tensor([np.arange(length) for length in read.lengths])
        vectors = read.vectors.to(read.table.dtype)
        repeated = vectors.repeat_interleave(lengths, 0)
        queries = raw(read, repeated, places) if self.raw else embed(read, repeated, places)
        firsts = torch.tensor(np.cumsum([0, *read.lengths[:-1]]), device=device)
        context = embed(read, read.ids, places).index_copy(0, firsts, vectors)
        sights = [_Sight(text, device) for text in read.texts]
        decoded = self.decoder(queries, context, read.lengths, lambda i, rows: sights[i](rows))
        return cast(Tensor, decoded)


class DupMae(RetroMae):
    """RetroMAE, and a bag of words with a tenth of the weight (Xiao et al. 2023, §3.2)."""

    weights: ClassVar[Mapping[str, float]] = {"mlm": 1.0, "decoder": 1.0, "bow": 0.1}

    def forward(self, read: Read) -> Tensor:
        """[3]: beside the others the sum over texts."""
        return torch.cat([super().forward(read), bags(read, self.language)[None]])

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """How many tokens are hidden and decoded, and how many texts there are."""
        return [*super().counts(texts), len(texts)]


def bags(read: Read, language: LanguageHead) -> Tensor:
    """The summed cross-entropy of the words of each text and the largest logits of its tokens.

    The first token's logits do not count; every word weighs 1 over the number of ordinary tokens.
    """
    states = cast(Tensor, read.states)
    bounds = np.cumsum([0, *read.lengths]).tolist()
    sums = []
    for text, (start, stop) in zip(read.texts, pairwise(bounds), strict=True):
        words = torch.from_numpy(np.unique(text.input.ids[text.ordinary])).long().to(states.device)

        def bag(own: Tensor, table: Tensor, words: Tensor = words) -> Tensor:
            logits = language(own, table)
            best = logits.to(torch.promote_types(logits.dtype, torch.float32)).amax(0)
            return cast(Tensor, -best.log_softmax(0)[words].sum())

        loss = again(bag, states[min(start + 1, stop - 1) : stop], read.table)
        sums.append(loss / max(1, int(text.ordinary.sum())))
    return torch.stack(sums).sum()


class _Sight:
    """What the rows of one text see of it: never themselves."""

    def __init__(self, text: MaskedText, device: torch.device) -> None:
        self._pool = torch.from_numpy(text.pool).to(device)
        self._rows = torch.from_numpy(text.rows).to(device)

    def __call__(self, rows: slice) -> Tensor:
        """[rows, tokens] bool."""
        seen = ~self._pool[self._rows[rows]]
        numbers = torch.arange(rows.start, rows.stop, device=seen.device)
        seen[numbers - rows.start, numbers] = numbers == 0  # nothing is decoded there
        return seen


def _decoded(text: MaskedText) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """[n]: the tokens that are decoded: ordinary ones, but neither the first nor the last."""
    inner = text.ordinary.copy()
    inner[:1] = inner[-1:] = False
    return inner


def embed(read: Read, given: Tensor, places: Tensor) -> Tensor:
    """The encoder's embedding module over token ids [n] or vectors [n, dim] at some places."""
    table = positions(read.encoder)
    words: dict[str, Any] = {"input_ids": None, "inputs_embeds": None}
    words["inputs_embeds" if given.ndim == 2 else "input_ids"] = given[None]
    if table is not None:
        words["position_ids"] = (places + _first(table))[None]
    return cast(Tensor, read.encoder.embeddings(**words)[0])


def raw(read: Read, vectors: Tensor, places: Tensor) -> Tensor:
    """Vectors [n, dim] and the rows of the table of positions at their places, added."""
    table = cast(nn.Embedding, positions(read.encoder))
    rows: Tensor = table(places + _first(table))
    return vectors + rows


def _first(table: nn.Embedding) -> int:
    """The row of the first position, which in some tables follows that of the padding."""
    return 0 if table.padding_idx is None else int(table.padding_idx) + 1


def positions(encoder: Any) -> nn.Embedding | None:
    """The table of positions of an encoder's embeddings; None without one."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    return table if isinstance(table, nn.Embedding) else None


def check_embeddings(encoder: Any) -> None:
    """UsageError where the encoder's embeddings cannot take a vector for a token."""
    module = getattr(encoder, "embeddings", None)
    taken = inspect.signature(module.forward).parameters if isinstance(module, nn.Module) else {}
    if "inputs_embeds" not in taken:
        raise UsageError(
            f"{type(encoder).__name__} has no embeddings that take a vector, which the decoder of "
            "RetroMAE needs; use --objective mlm"
        )


def _shape(config: Any, reach: int) -> Shape:
    width = int(config.hidden_size)
    heads = int(getattr(config, "num_attention_heads", max(1, width // _HEAD)))
    return Shape(width, heads, int(getattr(config, "intermediate_size", 4 * width)), reach)
