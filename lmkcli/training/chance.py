"""Random number generators: every random choice of training is derived from one seed."""

import zlib

import numpy as np


def seeded_rng(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return a generator for one purpose, such as (7, 'negatives', epoch, example).

    Its numbers depend only on the arguments, not on the use of other generators.
    """
    return np.random.Generator(np.random.PCG64((seed, zlib.crc32(purpose.encode()), *numbers)))
