"""`lmk train` with half of the texts pooled by the mean, for an experiment in benchmarks/lmk-minilm.md.

python benchmarks/side_by_side/side.py train SOURCE… --pool lmk --gran 64,32 -o FOLDER

The other half has landmarks. A checksum of its token ids selects the pooler of a text, so queries and
documents have both.
"""

from dataclasses import replace
from zlib import crc32

import numpy as np

from lmkcli.cli.main import main
from lmkcli.pooling.chunks import Chunks
from lmkcli.pooling.placement import PlacedBlock, Placer
from lmkcli.pooling.table import MEAN
from lmkcli.store.token_blocks import Ints, TokenBlock
from lmkcli.training.data import inputs


class SidePlacer(Placer):
    """Places each text with its pooler or with the mean."""

    def place(self, block: TokenBlock, chunks: Chunks | None = None) -> PlacedBlock:
        """Return the inputs of all texts of a block."""
        rows = [replace(self, pooler=MEAN), self]
        placements = []
        for text in block:
            row = rows[has_landmarks(text.ids)]
            one = Placer.place(row, TokenBlock.one(text.ids, text.prompt, text.ends))
            placements += one.split()
        return PlacedBlock.of(placements)


def has_landmarks(ids: Ints) -> bool:
    """Return whether a text has landmarks, for about half of all texts."""
    return bool(crc32(np.ascontiguousarray(ids, np.int32).tobytes()) & 1)


def side_placer(*side: object) -> Placer:
    """Return the placer of one side, as lmk makes it for training, with both poolers."""
    placer = make_placer(*side)  # type: ignore[arg-type]
    return SidePlacer(**vars(placer))


if __name__ == "__main__":
    make_placer, inputs.make_placer = inputs.make_placer, side_placer
    main()
