"""The poolers of benchmarks/side_by_side place a text as the poolers that they combine."""

import sys
from pathlib import Path

import numpy as np
import pytest

from lmkcli.errors import UsageError
from lmkcli.pooling.classic import Mean
from lmkcli.pooling.landmark import Landmark
from lmkcli.pooling.placement import Arrangement, Content, SpecialTokens

CLS, SEP, MASK = 101, 102, 103
SPECIAL = SpecialTokens((CLS,), (SEP,), CLS, SEP, SEP, mask=MASK)
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "side_by_side"))
from lmk_side import Own, Side  # noqa: E402


def content(seed: int) -> Content:
    ids = np.random.default_rng(seed).integers(1000, 2000, 20).astype(np.int32)
    return Content(ids, np.array([8, 16, 20], np.int32), np.zeros(0, np.int32))


def equal(one: Arrangement, other: Arrangement) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_each_text_always_has_the_same_of_two_poolers() -> None:
    counts = {"mean": 0, "landmarks": 0}
    for seed in range(200):
        text = content(seed)
        placed = Side().arrange(text, SPECIAL, 64, 0)
        assert equal(placed, Side().arrange(text, SPECIAL, 64, 0))
        mean = Mean().arrange(text, SPECIAL, 64, 0)
        landmarks = Landmark(force=True).arrange(text, SPECIAL, 64, 0)
        assert not equal(mean, landmarks)
        counts["mean"] += equal(placed, mean)
        counts["landmarks"] += equal(placed, landmarks)
    assert sum(counts.values()) == 200
    assert min(counts.values()) > 60  # a fair coin is below in one of 10^8 draws


def test_landmarks_of_their_own_are_mask_tokens_at_the_same_places() -> None:
    own, usual = (each.arrange(content(0), SPECIAL, 64, 0) for each in (Own(), Landmark()))
    assert np.array_equal(own.marks, usual.marks)
    assert (own.ids[own.marks] == MASK).all()
    assert np.array_equal(np.where(own.ids == MASK, SEP, own.ids), usual.ids)
    assert Own().for_training().force
    with pytest.raises(UsageError, match="mask"):
        Own().check(SPECIAL._replace(mask=None))
