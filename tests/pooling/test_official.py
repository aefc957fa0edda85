"""The official tokenisation cases of landmark pooling (arXiv 2601.21525 §4)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmkcli.pooling.placement import Placer
from lmkcli.pooling.table import CLS, LMK, MULTICLS, SpecialTokens, every_kth

Parity = Callable[[str], Path]
LAYOUT = SpecialTokens(prefix=(1,), suffix=(2,), cls=1, landmark=2)


def cases(parity: Parity, name: str) -> list[dict[str, Any]]:
    return json.loads(parity(f"lmk/{name}").read_text())


def ids(pooler: Any, case: dict[str, Any], gran: str) -> list[int]:
    placer = Placer(pooler, LAYOUT, case["L"], gran, True)
    text = np.arange(10, 10 + case["n"], dtype=np.int32)
    return placer.place_text(text).inputs[0].ids.tolist()


def test_training_layout(parity: Parity) -> None:
    found = cases(parity, "train_tokenisation.json")
    assert len(found) == 160
    for case in found:
        assert ids(LMK.for_training(), case, str(case["g"])) == case["ids"], case


@pytest.mark.parametrize("pool", ["landmark", "multicls", "mean_every_k", "cls"])
def test_evaluation_layout(parity: Parity, pool: str) -> None:
    poolers = {
        "landmark": LMK,
        "multicls": MULTICLS,
        "mean_every_k": every_kth(4),
        "cls": CLS,
    }
    found = [case for case in cases(parity, "eval_tokenisation.json") if case["pool"] == pool]
    assert len(found) in (30, 60)
    for case in found:
        gran = str(case["g"]) if case["fixed_splitter"] else ""
        assert ids(poolers[pool], case, gran) == case["ids"], case
