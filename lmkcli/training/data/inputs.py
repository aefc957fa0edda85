"""Inputs: turn the texts of a batch into model inputs, with gaps in their positions on request.

The granularity of each text is drawn at random. Position skipping (PoSE) trains positions of long texts with
short texts. The cost of attention is quadratic in the length of a text. A short text with a gap in its
position numbers reaches high positions, and its cost stays low.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmkcli.encoding.encoder import make_placer
from lmkcli.encoding.resolution import representation_of
from lmkcli.errors import UsageError
from lmkcli.models.forward import Finish
from lmkcli.models.tokenizer import Tokenizer
from lmkcli.pooling.placement import Input, Placement, Placer
from lmkcli.spec.recipe import EncoderConfig
from lmkcli.spec.values import Granularity
from lmkcli.store.token_blocks import TokenBlock
from lmkcli.training.data.examples import Ints


class PlacedTexts(NamedTuple):
    """The inputs of several texts.

    inputs: the model inputs; `groups` of an input are vector numbers, counted over all texts.
    counts: [texts], the number of vectors of each text; each window counts separately.
    grans: the granularity of each text.
    cut: how many texts lost tokens, because they are too long.
    """

    inputs: list[Input]
    counts: torch.Tensor
    grans: list[str]
    cut: int = 0

    @classmethod
    def of(
        cls, placements: Sequence[Placement], grans: Sequence[str], cut: int = 0
    ) -> "PlacedTexts":
        """Combine the placements of several texts and number their vectors consecutively."""
        inputs: list[Input] = []
        total = 0
        for placement in placements:
            inputs += [one._replace(groups=one.groups + total) for one in placement.inputs]
            total += placement.vectors
        counts = torch.tensor([placement.vectors for placement in placements], dtype=torch.long)
        return cls(inputs, counts, list(grans), cut)

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
    def of(
        cls, side: EncoderConfig, tokenizer: Tokenizer, grans: Sequence[Granularity]
    ) -> "TrainingSide":
        """Create a side. If the configuration has a granularity, `grans` replace it.

        Poolers can have a variant for training: if truncation removes all landmarks of a text, a landmark
        replaces its last token (LMK, §4).
        """
        chosen = [replace(side, gran=gran) for gran in grans] if side.gran and grans else [side]
        placers = [make_placer(one, tokenizer.special) for one in chosen]
        variants = (replace(each, pooler=each.pooler.for_training()) for each in placers)
        windows = representation_of(side.pool).windows(side)
        finish = Finish(side.unit == "doc", side.dim, side.normalize, windows)
        return cls(tokenizer, tuple(variants), finish)

    @property
    def reads(self) -> int:
        """The maximum number of tokens of a text; windows read all tokens."""
        (placer, *_) = self.placers
        return sys.maxsize if placer.window.positions else placer.limit

    def place_chunk_text(self, text: str) -> tuple[Placement, Ints, bool]:
        """Place a text that consists of chunks.

        Returns its inputs, the chunk number of each of its vectors, [vectors], and whether it lost tokens.
        """
        (placer,) = self.placers
        block = TokenBlock.of(self.tokenizer([text]))
        chunks = placer.chunks(block)
        (placement,) = placer.place(block, chunks).split()
        numbers = np.searchsorted(chunks.ends, placement.covers[:, 0], side="right")
        is_cut = placement.kept < int(block.lengths[0])
        return placement, np.minimum(numbers, len(chunks.ends) - 1), is_cut

    def placements(
        self, texts: Sequence[str], prompts: Sequence[str | None], draws: Sequence[int]
    ) -> tuple[list[Placement], int]:
        """Place texts, and count those that lose tokens.

        A prompt of None selects the side's prompt; `draws` are the placers' numbers.
        """
        placements: dict[int, Placement] = {}
        cut = 0
        for prompt in dict.fromkeys(prompts):
            rows = [row for row, text_prompt in enumerate(prompts) if text_prompt == prompt]
            tokenizer = self.tokenizer if prompt is None else replace(self.tokenizer, prompt=prompt)
            tokens = dict(zip(rows, tokenizer([texts[row] for row in rows]), strict=True))
            for draw in sorted({draws[row] for row in rows}):
                drawn = [row for row in rows if draws[row] == draw]
                block = TokenBlock.of([tokens[row] for row in drawn])
                placed = self.placers[draw].place(block)
                cut += int((placed.kept < block.lengths).sum())
                placements |= zip(drawn, placed.split(), strict=True)
        return [placements[row] for row in range(len(texts))], cut


@dataclass(frozen=True)
class Skipping:
    """Adds one gap to the positions of a share of the inputs; positions stay below `reach`.

    This is PoSE with two chunks (arXiv 2309.10400 §3). The first chunk starts at position 0. Its end and the
    size of the gap after it are uniform. Share 0 disables skipping.
    """

    share: float = 0.0
    reach: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"--skip-positions {self.share:g}: write a share from 0 to 1")

    def __call__(self, placement: Placement, uniform: NDArray[np.float64]) -> Placement:
        """Return the placement of a text, possibly with a gap.

        `uniform` [3] are random numbers of [0, 1). They decide whether the input gets a gap, the position of
        the gap, and its size. Texts in several windows remain unchanged, because each window is read from
        position 0.
        """
        if uniform[0] >= self.share or len(placement.inputs) > 1:
            return placement
        return placement._replace(inputs=[self._gapped(one, uniform) for one in placement.inputs])

    def _gapped(self, one: Input, uniform: NDArray[np.float64]) -> Input:
        length = len(one.ids)
        if length < 2 or length >= self.reach:
            return one
        positions = np.arange(length, dtype=np.int32)
        cut = 1 + int(uniform[1] * (length - 1))
        positions[cut:] += int(uniform[2] * (self.reach - length + 1))
        return one._replace(positions=positions)


SHOWN = 3  # number of examples in a preview
_POSITIONS = 64  # number of positions of a text in a preview


class PlacedText(NamedTuple):
    """A text as the model reads it.

    positions: the number of positions.
    reach: the highest position number plus 1.
    words: the decoded text; marked tokens are in «».
    """

    side: str  # query, positive or negative; text, in pre-training
    gran: str
    positions: int
    reach: int
    words: str


def placed_text(inputs: Sequence[Input], side: str, gran: str, tokenizer: Tokenizer) -> PlacedText:
    """Return the preview of the text with these inputs."""
    words = " | ".join(_words(one, tokenizer) for one in inputs)
    positions = sum(len(one.ids) for one in inputs)
    reach = max(
        len(one.ids) if one.positions is None else 1 + int(one.positions.max()) for one in inputs
    )
    return PlacedText(side, gran, positions, reach, words)


def _words(one: Input, tokenizer: Tokenizer) -> str:
    """Decode an input. Marked tokens are in «», unless all tokens are marked."""
    ids = one.ids[:_POSITIONS]
    marks = [mark for mark in one.marks.tolist() if mark < len(ids)]
    marks = [] if len(one.marks) == len(one.ids) else marks
    pieces = []
    for start, stop in zip([0, *(mark + 1 for mark in marks)], [*marks, len(ids)], strict=True):
        pieces.append(tokenizer.text(ids[start:stop]))
        pieces += [f"«{token}»" for token in tokenizer.tokens(ids[stop : stop + 1])]
    left = len(one.ids) - len(ids)
    return " ".join(filter(None, pieces)) + (f" … and {left:,} positions" if left else "")
