"""RetroMAE: decode a text from its vector and some of its words (Xiao et al. 2022, §2).

The loss is the encoder's MLM loss plus the loss of a one-layer decoder that predicts every token. To predict
token i, the decoder attends to the text's vector (in place of the first token) and to a random subset of the
other tokens. Each token i has its own subset. DupMAE (Xiao et al. 2023) also predicts the words of the text
as a bag, from the encoder's states.
"""

import inspect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmkcli.errors import UsageError
from lmkcli.models.extension import first_position
from lmkcli.models.forward import Model
from lmkcli.models.prediction_head import LanguageHead, language_head, recomputed
from lmkcli.plugins.pretrain.enhanced_decoder import DecoderShape, EnhancedDecoder
from lmkcli.plugins.pretrain.masking import MaskedText, Masking
from lmkcli.plugins.pretrain.pretext import EncodedTexts, HeadOptions, masked_language

_HEAD = 64  # width of an attention head, if the configuration does not give the number of heads


class RetroMae(nn.Module):
    """The sum of the MLM loss and the enhanced decoding loss, each averaged over its tokens.

    The decoder's attention queries are the text's vector at every position. By default the vector passes
    through the encoder's embedding module (DupMAE, FlagEmbedding, LMK). With `raw`, only the position
    embedding is added, as in the first version of the official code. If the encoder has no table of
    positions, the decoder uses relative positions (LMK).
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
                "--query-stream raw needs a table of position embeddings, and this encoder has none; drop it"
            )
        check_embeddings(encoder)
        reach = 0 if table is not None else options.reach
        rows = len(encoder.get_input_embeddings().weight)
        self.language = language_head(encoder.config, rows)
        self.decoder = EnhancedDecoder(encoder.config, _shape(encoder.config, reach))

    def forward(self, encoded: EncodedTexts) -> Tensor:
        """Return the summed losses of the hidden tokens and of the decoded tokens, [2]."""
        return torch.stack([masked_language(encoded, self.language)[0], self.decoded(encoded)])

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """Return the number of hidden tokens and the number of decoded tokens."""
        decoded = sum(int(_decoded(text).sum()) for text in texts)
        return [sum(len(text.hidden) for text in texts), decoded]

    def decoded(self, encoded: EncodedTexts) -> Tensor:
        """Return the summed loss of the decoded tokens."""
        states = self.states(encoded)
        rows = encoded.rows([_decoded(text) for text in encoded.texts])
        return self.language.summed_loss(states[rows], encoded.ids[rows], encoded.table)

    def states(self, encoded: EncodedTexts) -> Tensor:
        """Return the decoder's states of all tokens, [tokens, dim].

        The tokens of all texts are concatenated. `queries` and `context` are [tokens, dim]; in `context`,
        the first token of each text is replaced by the text's vector.
        """
        device = encoded.vectors.device
        lengths = torch.tensor(encoded.lengths, device=device)
        places = encoded.tensor([np.arange(length) for length in encoded.lengths])
        vectors = encoded.vectors.to(encoded.table.dtype)
        repeated = vectors.repeat_interleave(lengths, 0, output_size=len(places))
        queries = raw(encoded, repeated, places) if self.raw else embed(encoded, repeated, places)
        firsts = torch.tensor(np.cumsum([0, *encoded.lengths[:-1]]), device=device)
        context = embed(encoded, encoded.ids, places).index_copy(0, firsts, vectors)
        masks = [_AttentionMask(text, device) for text in encoded.texts]
        decoded = self.decoder(queries, context, encoded.lengths, lambda i, rows: masks[i](rows))
        return cast(Tensor, decoded)


class DupMae(RetroMae):
    """RetroMAE plus a bag-of-words loss with weight 0.1 (Xiao et al. 2023, §3.2)."""

    weights: ClassVar[Mapping[str, float]] = {"mlm": 1.0, "decoder": 1.0, "bow": 0.1}

    def forward(self, encoded: EncodedTexts) -> Tensor:
        """Return the two sums of RetroMAE, and the sum of the bag-of-words loss over texts, [3]."""
        return torch.cat([super().forward(encoded), bags(encoded, self.language)[None]])

    def counts(self, texts: Sequence[MaskedText]) -> list[int]:
        """Return the numbers of hidden tokens, decoded tokens and texts."""
        return [*super().counts(texts), len(texts)]


def bags(encoded: EncodedTexts, language: LanguageHead) -> Tensor:
    """Return the bag-of-words loss, summed over texts.

    For each text, the logits of its tokens ([tokens, vocabulary], without the first token) are reduced by
    the maximum over tokens to [vocabulary]. The loss is the cross-entropy of the text's distinct words,
    divided by its number of ordinary tokens.
    """
    states = cast(Tensor, encoded.states)
    bounds = np.cumsum([0, *encoded.lengths]).tolist()
    sums = []
    for text, (start, stop) in zip(encoded.texts, pairwise(bounds), strict=True):
        words = torch.from_numpy(np.unique(text.input.ids[text.ordinary])).long().to(states.device)

        def bag(own: Tensor, table: Tensor, words: Tensor = words) -> Tensor:
            """Map the states of one text, [tokens, dim], to its loss."""
            logits = language(own, table)
            best = logits.to(torch.promote_types(logits.dtype, torch.float32)).amax(0)
            return cast(Tensor, -best.log_softmax(0)[words].sum())

        loss = recomputed(bag, states[min(start + 1, stop - 1) : stop], encoded.table)
        sums.append(loss / max(1, int(text.ordinary.sum())))
    return torch.stack(sums).sum()


class _AttentionMask:
    """The decoder's attention mask of one text. No token attends to itself, except the first."""

    def __init__(self, text: MaskedText, device: torch.device) -> None:
        self._pool = torch.from_numpy(text.pool).to(device)
        self._rows = torch.from_numpy(text.rows).to(device)

    def __call__(self, rows: slice) -> Tensor:
        """Return the mask of some rows, [rows, tokens] bool; True means that the row sees the token."""
        seen = ~self._pool[self._rows[rows]]
        numbers = torch.arange(rows.start, rows.stop, device=seen.device)
        seen[numbers - rows.start, numbers] = numbers == 0  # the first token is not decoded
        return seen


def _decoded(text: MaskedText) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return the mask of decoded tokens, [n]: ordinary tokens except the first and the last."""
    inner = text.ordinary.copy()
    inner[:1] = inner[-1:] = False
    return inner


def embed(encoded: EncodedTexts, tokens: Tensor, places: Tensor) -> Tensor:
    """Apply the encoder's embedding module to token ids [n] or vectors [n, dim] at positions `places`."""
    table = positions(encoded.encoder)
    arguments: dict[str, Any] = {"input_ids": None, "inputs_embeds": None}
    arguments["inputs_embeds" if tokens.ndim == 2 else "input_ids"] = tokens[None]
    if table is not None:
        arguments["position_ids"] = (places + first_position(encoded.encoder))[None]
    return cast(Tensor, encoded.encoder.embeddings(**arguments)[0])


def raw(encoded: EncodedTexts, vectors: Tensor, places: Tensor) -> Tensor:
    """Add to vectors [n, dim] the position embeddings of their positions `places`."""
    table = cast(nn.Embedding, positions(encoded.encoder))
    rows: Tensor = table(places + first_position(encoded.encoder))
    return vectors + rows


def positions(encoder: Any) -> nn.Embedding | None:
    """Return the encoder's table of position embeddings, or None."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    return table if isinstance(table, nn.Embedding) else None


def check_embeddings(encoder: Any) -> None:
    """Raise UsageError if the encoder's embedding module does not accept vectors in place of tokens."""
    module = getattr(encoder, "embeddings", None)
    taken = inspect.signature(module.forward).parameters if isinstance(module, nn.Module) else {}
    if "inputs_embeds" not in taken:
        raise UsageError(
            f"the embedding module of {type(encoder).__name__} does not accept vectors (inputs_embeds), "
            "which the decoder of RetroMAE needs; use --objective mlm"
        )


def _shape(config: Any, reach: int) -> DecoderShape:
    width = int(config.hidden_size)
    heads = int(getattr(config, "num_attention_heads", max(1, width // _HEAD)))
    return DecoderShape(width, heads, int(getattr(config, "intermediate_size", 4 * width)), reach)
