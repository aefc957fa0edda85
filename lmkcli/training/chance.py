"""Chance: every random choice of training follows from one seed."""

import zlib

import numpy as np


def dice(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """A generator for one purpose at one place, such as (7, 'negatives', epoch, example).

    What it gives depends on nothing else, and not on what other generators gave before.
    """
    return np.random.Generator(np.random.PCG64((seed, zlib.crc32(purpose.encode()), *numbers)))
