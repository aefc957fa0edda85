"""The poolers of benchmarks/side_by_side place a text as the poolers that they combine."""

import sys
from pathlib import Path

import numpy as np
import pytest

from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Placement, Placer
from lmkcli.pooling.table import LMK, MEAN, Pooler, SpecialTokens
from lmkcli.spec.values import Granularity
from lmkcli.store.token_blocks import Ints, TokenBlock

CLS, SEP, MASK = 101, 102, 103
SPECIAL = SpecialTokens((CLS,), (SEP,), CLS, SEP, SEP, mask=MASK)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "side_by_side"))
from lmk_own import OWN  # noqa: E402
from side import SidePlacer  # noqa: E402


def text(seed: int) -> Ints:
    return np.random.default_rng(seed).integers(1000, 2000, 20).astype(np.int32)


def placer(pooler: Pooler) -> Placer:
    return Placer(pooler, SPECIAL, 64, Granularity(8), True)


def equal(one: Placement, other: Placement) -> bool:
    return all(
        np.array_equal(a, b)
        for each, of_other in zip(one.inputs, other.inputs, strict=True)
        for a, b in zip(each[:3], of_other[:3], strict=True)
    )


def test_each_text_always_has_the_same_of_two_poolers() -> None:
    counts = {"mean": 0, "landmarks": 0}
    landmarks = placer(LMK.for_training())
    side = SidePlacer(**vars(landmarks))
    block = TokenBlock.join([TokenBlock.one(text(seed), text(0)[:0], None) for seed in range(200)])
    for seed, placed in enumerate(side.place(block).split()):
        assert equal(placed, side.place_text(text(seed)))
        of_mean = placer(MEAN).place_text(text(seed))
        of_landmarks = landmarks.place_text(text(seed))
        assert not equal(of_mean, of_landmarks)
        counts["mean"] += equal(placed, of_mean)
        counts["landmarks"] += equal(placed, of_landmarks)
    assert sum(counts.values()) == 200
    assert min(counts.values()) > 60  # a fair coin is below in one of 10^8 draws


def test_landmarks_of_their_own_are_mask_tokens_at_the_same_places() -> None:
    own, usual = (placer(each).place_text(text(0)).inputs[0] for each in (OWN, LMK))
    assert np.array_equal(own.marks, usual.marks)
    assert (own.ids[own.marks] == MASK).all()
    assert np.array_equal(np.where(own.ids == MASK, SEP, own.ids), usual.ids)
    assert OWN.for_training().forced
    assert not OWN.marks_separator
    with pytest.raises(UsageError, match="mask"):
        OWN.check(SPECIAL._replace(mask=None))
