"""Positions with a gap count one by one on both sides of it, stay below their reach, and are drawn evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.errors import UsageError
from lmkcli.pooling.placement import Input, Placement
from lmkcli.training.data.inputs import Skipping

unit = st.floats(0, 1, exclude_max=True)


def placement(length: int) -> Placement:
    ids = np.arange(length, dtype=np.int32)
    marks = ids[-1:]
    one = Input(ids, marks, np.zeros(1, np.int32), length)
    return Placement([one], 1, np.array([[0, length]], np.int32), length)


@given(st.integers(1, 60), st.integers(1, 200), unit, unit)
def test_one_gap_below_the_reach(length: int, reach: int, where: float, far: float) -> None:
    (one,) = Skipping(1.0, reach)(placement(length), np.array([0.0, where, far])).inputs
    if one.positions is None:
        assert length < 2 or length >= reach
        return
    steps = np.diff(one.positions)
    assert one.positions[0] == 0
    assert one.positions[-1] < reach
    assert (steps >= 1).all()
    assert (steps > 1).sum() <= 1


def test_every_end_and_every_cut_is_drawn() -> None:
    """As often as chance has it: both ends of both ranges belong to them."""
    skipping, chance = Skipping(0.25, 12), np.random.default_rng(0)
    drawn = [skipping(placement(4), chance.random(3)).inputs[0].positions for _ in range(20_000)]
    gaps = [one for one in drawn if one is not None]
    assert abs(len(gaps) / len(drawn) - 0.25) < 0.015
    ends = np.bincount([one[-1] for one in gaps], minlength=12)
    assert (ends[:3] == 0).all()
    assert (np.abs(ends[3:] / len(gaps) - 1 / 9) < 0.02).all()
    cuts = np.bincount([int(np.diff(one).argmax()) for one in gaps if one[-1] > 3], minlength=3)
    assert (np.abs(cuts / cuts.sum() - 1 / 3) < 0.03).all()


def test_a_share_is_a_share() -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        Skipping(1.5, 8)
