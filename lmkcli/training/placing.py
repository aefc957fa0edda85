"""Placing: turn the texts of a batch into model inputs. The granularity of each text is drawn at random."""

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
    """The inputs of several texts.

    inputs: the model inputs; `groups` of an input are vector numbers, counted over all texts.
    counts: [texts], the number of vectors of each text; each window counts separately.
    grans: the granularity of each text.
    """

    inputs: list[Input]
    counts: torch.Tensor
    grans: list[str]

    @classmethod
    def of(cls, placements: Sequence[Placement], grans: Sequence[str]) -> "Placed":
        """Combine the placements of several texts and number their vectors consecutively."""
        inputs: list[Input] = []
        total = 0
        for placement in placements:
            inputs += [one._replace(groups=one.groups + total) for one in placement.inputs]
            total += placement.vectors
        counts = torch.tensor([placement.vectors for placement in placements], dtype=torch.long)
        return cls(inputs, counts, list(grans))

    @property
    def tokens(self) -> int:
        """The number of positions that the model processes."""
        return sum(len(one.ids) for one in self.inputs)

    def text(self, number: int) -> list[Input]:
        """Return the inputs of one text."""
        last = int(self.counts[: number + 1].sum())
        first = last - int(self.counts[number])
        return [one for one in self.inputs if ((first <= one.groups) & (one.groups < last)).any()]

    def shifted(self, vectors: int) -> list[Input]:
        """Return the inputs with vector numbers that start at `vectors`."""
        return [one._replace(groups=one.groups + vectors) for one in self.inputs]


@dataclass(frozen=True)
class TrainingSide:
    """The query or passage side of a source: a tokenizer, and one placer per granularity."""

    tokenizer: Tokenizer
    placers: tuple[Placer, ...]
    finish: Finish

    @classmethod
    def of(cls, side: EncoderConfig, tokenizer: Tokenizer, grans: Sequence[str]) -> "TrainingSide":
        """Create a side. `grans`, if given, replace the granularity of the configuration if it has one.

        If truncation removes all landmarks of a text, a landmark replaces its last token (LMK, §4).
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
        """The maximum number of tokens of a text; windows read all tokens."""
        (placer, *_) = self.placers
        return sys.maxsize if placer.window.isdigit() else placer.limit

    def place_chunks(self, texts: Sequence[str]) -> list[tuple[Placement, Ints]]:
        """Place texts that consist of chunks.

        Returns for each text its inputs, and the chunk number of each of its vectors, [vectors].
        """
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
        """Place texts. A prompt of None selects the side's prompt; `draws` are the placers' numbers."""
        placements: dict[int, Placement] = {}
        for prompt in dict.fromkeys(prompts):
            rows = [row for row, text_prompt in enumerate(prompts) if text_prompt == prompt]
            tokenizer = self.tokenizer if prompt is None else replace(self.tokenizer, prompt=prompt)
            for row, text in zip(rows, tokenizer([texts[row] for row in rows]), strict=True):
                placer = self.placers[draws[row]]
                placements[row] = placer.place(placer.content(text.ids, text.prompt, text.ends))
        return [placements[row] for row in range(len(texts))]
