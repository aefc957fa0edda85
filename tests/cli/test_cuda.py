"""The same commands give the same results on a GPU and on the CPU; skipped without a GPU."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lmkcli.data.run import read_run
from lmkcli.store.vectors import Vectors
from tests.cli.conftest import Lmk

Models = Callable[[str], Path]
GPU = os.environ.get("LMK_TEST_DEVICE", "cuda")  # with cpu, the test compares the CPU with itself
pytestmark = pytest.mark.skipif(GPU == "cuda" and not torch.cuda.is_available(), reason="no GPU")
DEVICES = ("cpu", GPU)


@pytest.mark.parametrize("name", ["bert", "modernbert", "qwen2"])
@pytest.mark.parametrize("pooling", [["--pool", "mean"], ["--pool", "lmk", "--gran", "8"]])
def test_vectors_are_the_same_to_five_digits(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, name: str, pooling: list[str]
) -> None:
    made = []
    for number, device in enumerate(DEVICES):
        folder = tmp_path / str(number)
        how = ("--device", device, "--dtype", "fp32", "--store-dtype", "fp32", *pooling)
        lmk("encode", beir, "-m", tiny_model(name), *how, "-o", folder)
        vectors = Vectors(folder)
        made.append(vectors.at(np.arange(vectors.rows)).vectors)
    np.testing.assert_allclose(made[1], made[0], atol=2e-5)


@pytest.mark.parametrize("kind", ["IVF1,Flat", "IVF1,SQ8"])
def test_inverted_lists_find_the_same(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, kind: str
) -> None:
    vectors, index = tmp_path / "v", tmp_path / "i"
    lmk("encode", beir, "-m", tiny_model("bert"), "--device", "cpu", "-o", vectors)
    lmk("index", vectors, "--kind", kind, "-o", index)
    runs = []
    for number, device in enumerate(DEVICES):
        path = tmp_path / f"{number}.trec"
        how = ("--device", device, "--dtype", "fp32", "--nprobe", 1)
        lmk("search", index, beir, "-k", 5, *how, "-o", path)
        runs.append(read_run(path))
    for query, expected in runs[0].rankings.items():
        scores = runs[1].rankings[query].scores
        np.testing.assert_allclose(scores, expected.scores, atol=2e-5)


@pytest.mark.parametrize("unit", [["doc"], ["chunk", "--gran", "8"], ["token"]])
def test_exact_search_makes_the_same_run(
    lmk: Lmk, tiny_model: Models, beir: Path, tmp_path: Path, unit: list[str]
) -> None:
    vectors, runs = tmp_path / "v", []
    lmk("encode", beir, "-m", tiny_model("bert"), "--unit", *unit, "--device", "cpu", "-o", vectors)
    for number, device in enumerate(DEVICES):
        path = tmp_path / f"{number}.trec"
        lmk("search", vectors, beir, "-k", 20, "--device", device, "--dtype", "fp32", "-o", path)
        runs.append(read_run(path))
    assert runs[0].rankings.keys() == runs[1].rankings.keys()
    for query, expected in runs[0].rankings.items():
        scores = runs[1].rankings[query].scores
        np.testing.assert_allclose(scores, expected.scores, atol=2e-5)
        clear = (
            np.abs(np.diff(expected.scores)).min(initial=1) > 1e-4
        )  # closer scores may change their order
        if clear:
            assert runs[1].rankings[query].doc_ids == expected.doc_ids
