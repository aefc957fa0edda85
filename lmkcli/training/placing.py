"""Placing: the texts of a batch become model inputs, each cut into chunks of a length drawn for it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from lmkcli.encoding.encoder import make_placer
from lmkcli.models.forward import Finish
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.landmark import Landmark
from lmkcli.pooling.placement import Input, Placement, Placer
from lmkcli.recipe import EncoderConfig
from lmkcli.training.examples import Ints


class Placed(NamedTuple):
    """The inputs of some texts; marks bear the numbers of vectors, counted over all of them.

    `counts` [texts] is how many vectors each text makes, its windows counted apart, and `grans` the
    granularity by which each was cut.
    """

    inputs: list[Input]
    counts: torch.Tensor
    grans: list[str]

    @classmethod
    def of(cls, placements: Sequence[Placement], grans: Sequence[str]) -> "Placed":
        """The texts side by side."""
        inputs: list[Input] = []
        total = 0
        for placement in placements:
            inputs += [one._replace(groups=one.groups + total) for one in placement.inputs]
            total += placement.vectors
        counts = torch.tensor([placement.vectors for placement in placements], dtype=torch.long)
        return cls(inputs, counts, list(grans))

    @property
    def tokens(self) -> int:
        """Positions that go through the model."""
        return sum(len(one.ids) for one in self.inputs)

    def text(self, number: int) -> list[Input]:
        """The inputs of one text."""
        last = int(self.counts[: number + 1].sum())
        first = last - int(self.counts[number])
        return [one for one in self.inputs if ((first <= one.groups) & (one.groups < last)).any()]

    def behind(self, vectors: int) -> list[Input]:
        """The inputs, numbered after so many vectors of other texts."""
        return [one._replace(groups=one.groups + vectors) for one in self.inputs]


@dataclass(frozen=True)
class TrainingSide:
    """Queries or passages of a source: a tokenizer, and a placer for each granularity drawn from."""

    tokenizer: Tokenizer
    placers: tuple[Placer, ...]
    finish: Finish

    @classmethod
    def of(cls, side: EncoderConfig, tokenizer: Tokenizer, grans: Sequence[str]) -> "TrainingSide":
        """`grans` take the place of the side's own granularity where it has one.

        A text whose landmarks were all cut off ends with one instead of its last token (LMK, §4).
        """
        chosen = [replace(side, gran=gran) for gran in grans] if side.gran and grans else [side]
        placers = [make_placer(one, tokenizer.special) for one in chosen]
        forced = [
            replace(each, pooler=replace(each.pooler, force=True))
            if isinstance(each.pooler, Landmark)
            else each
            for each in placers
        ]
        return cls(tokenizer, tuple(forced), Finish(side.unit == "doc", side.dim, side.normalize))

    @property
    def reads(self) -> int:
        """Tokens of a text at most; in windows, all of them."""
        (placer, *_) = self.placers
        return sys.maxsize if placer.window.isdigit() else placer.limit

    def chunked(self, texts: Sequence[str]) -> list[tuple[Placement, Ints]]:
        """Each text's inputs, and the number of the chunk that each vector stands for."""
        (placer,) = self.placers
        placed = []
        for text in self.tokenizer(list(texts)):
            content = placer.content(text.ids, text.prompt, text.ends)
            placement = placer.place(content)
            numbers = np.searchsorted(content.ends, placement.covers[:, 0], side="right")
            placed.append((placement, np.minimum(numbers, len(content.ends) - 1)))
        return placed

    def placements(
        self, texts: Sequence[str], prompts: Sequence[str | None], draws: Sequence[int]
    ) -> list[Placement]:
        """Each text's inputs; a prompt of None is the side's own, `draws` number the placers."""
        placements: dict[int, Placement] = {}
        for prompt in dict.fromkeys(prompts):
            rows = [row for row, own in enumerate(prompts) if own == prompt]
            tokenizer = self.tokenizer if prompt is None else replace(self.tokenizer, prompt=prompt)
            for row, text in zip(rows, tokenizer([texts[row] for row in rows]), strict=True):
                placer = self.placers[draws[row]]
                placements[row] = placer.place(placer.content(text.ids, text.prompt, text.ends))
        return [placements[row] for row in range(len(texts))]
