import os
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmkcli.errors import DataError, UsageError
from lmkcli.progress import silent
from lmkcli.retrieval.engines.faiss import faiss_index, resources
from lmkcli.retrieval.engines.faiss.faiss_index import FaissIndex
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.vectors.rows import Ragged


class Matrix:
    """An array in blocks."""

    def __init__(self, array: NDArray[np.float32], block: int = 1000) -> None:
        self._array, self._block = array, block
        self.rows, self.dim = array.shape

    def __iter__(self) -> Iterator[Ragged]:
        for start in range(0, self.rows, self._block):
            yield Ragged.single(self._array[start : start + self._block])


def clustered(rows: int, dim: int = 32, seed: int = 0) -> NDArray[np.float32]:
    """Unit vectors around 50 centres, like texts about 50 subjects."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((50, dim))
    noisy = centres[random.integers(50, size=rows)] + random.standard_normal((rows, dim))
    unit = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    return unit.astype(np.float32)


VECTORS, QUERIES = clustered(4000), clustered(50, seed=1)


def opened(folder: Path, kind: str, vectors: NDArray[np.float32] = VECTORS) -> FaissIndex:
    settings = FaissSettings(kind=kind)
    FaissIndex.build(Matrix(vectors), folder, settings, silent)
    return FaissIndex.open(folder, settings)


def recall(index: FaissIndex, k: int) -> float:
    exact = np.argsort(-(QUERIES @ VECTORS.T), axis=1)[:, :k]
    rows = index.candidates(QUERIES, k).rows
    shared = [np.intersect1d(a, b) for a, b in zip(rows, exact, strict=True)]
    return float(np.mean([len(s) / k for s in shared]))


@pytest.mark.parametrize(("kind", "least"), [("hnsw", 0.98), ("ivf", 0.95), ("HNSW32,SQ8", 0.9)])
@pytest.mark.parametrize("k", [10, 100, 1000])
def test_recall_at_the_defaults(tmp_path: Path, kind: str, least: float, k: int) -> None:
    assert recall(opened(tmp_path, kind), k) >= least


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "PCA16,IVF16,Flat", "PQ8x4,RFlat", "Flat"])
def test_scores_fall_and_rows_differ(tmp_path: Path, kind: str) -> None:
    scores, rows = opened(tmp_path, kind).candidates(QUERIES, 20)
    assert scores.dtype == np.float32
    assert rows.dtype == np.int64
    assert (np.diff(scores, axis=1) <= 0).all()
    assert all(len(set(row)) == 20 for row in rows.tolist())


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_scores_are_inner_products_for_any_norm(tmp_path: Path, kind: str) -> None:
    vectors = VECTORS * np.linspace(0.5, 2, len(VECTORS), dtype=np.float32)[:, None]
    scores, rows = opened(tmp_path, kind, vectors).candidates(QUERIES, 5)
    expected = np.einsum("nd,nkd->nk", QUERIES, vectors[rows])
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_missing_candidates_are_row_minus_one(tmp_path: Path) -> None:
    scores, rows = opened(tmp_path, "hnsw", VECTORS[:3]).candidates(QUERIES[:2], 5)
    assert (np.sort(rows[:, :3]) == [0, 1, 2]).all()
    assert (rows[:, 3:] == -1).all()
    assert (scores[:, 3:] == -np.inf).all()


def test_opening_selects_search_settings(tmp_path: Path) -> None:
    opened(tmp_path, "ivf")
    assert recall(FaissIndex.open(tmp_path, FaissSettings(kind="ivf", nprobe=1)), 10) < 0.9
    assert recall(FaissIndex.open(tmp_path, FaissSettings(kind="ivf", nprobe=10**6)), 10) == 1


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "IVF16,SQ8"])
def test_appended_vectors_follow(tmp_path: Path, kind: str) -> None:
    settings = FaissSettings(kind=kind)
    FaissIndex.build(Matrix(VECTORS[:3000]), tmp_path, settings, silent)
    facts = FaissIndex.append(Matrix(VECTORS[3000:]), tmp_path, tmp_path, silent)
    index = FaissIndex.open(tmp_path, settings)
    assert facts["rows"] == index.rows == 4000
    assert recall(index, 10) >= 0.9
    assert index.candidates(VECTORS[3500:3501], 1).rows.tolist() == [[3500]]


def test_other_dimensions_are_not_appended(tmp_path: Path) -> None:
    opened(tmp_path, "hnsw")
    with pytest.raises(DataError, match=r"32 dimensions.* 16"):
        FaissIndex.append(Matrix(clustered(5, 16)), tmp_path, tmp_path, silent)


def test_a_kind_that_cannot_grow_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NSG"):
        opened(tmp_path, "NSG16,Flat")


@pytest.mark.parametrize("kind", ["ivf", "PCA8,IVF16,PQ4x4", "IVF16,SQ8"])
def test_trained_kinds_are_the_same_each_time(tmp_path: Path, kind: str) -> None:
    vectors = clustered(3000, 16)
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        opened(tmp_path / name, kind, vectors)
        contents.append((tmp_path / name / faiss_index.FILE).read_bytes())
    assert contents[0] == contents[1]


@settings(max_examples=50, deadline=None)
@given(st.data(), st.integers(1, 60), st.integers(1, 20))
def test_the_sample_is_gathered_from_any_blocks(data: st.DataObject, rows: int, block: int) -> None:
    array = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1)))), dtype=np.int64)
    np.testing.assert_array_equal(resources._gather(Matrix(array, block), chosen), array[chosen])


@pytest.mark.parametrize(
    ("kind", "factory", "least"),
    [("int8", "SQ8", 0.95), ("binary", "RaBitQ", 0.35), ("pq", "PQ8x4", 0.35)],
)
def test_kinds_with_small_codes(tmp_path: Path, kind: str, factory: str, least: float) -> None:
    facts = FaissIndex.build(Matrix(VECTORS), tmp_path, FaissSettings(kind=kind), silent)
    index = FaissIndex.open(tmp_path, FaissSettings(kind=kind))
    assert facts["factory"] == factory
    assert index.overfetch == 4
    assert recall(index, 10) >= least


def test_int8_codes_equal_those_of_sentence_transformers(tmp_path: Path) -> None:
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    FaissIndex.build(Matrix(VECTORS), tmp_path, FaissSettings(kind="int8"), silent)
    index = faiss.read_index(str(tmp_path / faiss_index.FILE))
    codes = faiss.vector_to_array(index.codes).reshape(VECTORS.shape)
    ranges = np.stack([VECTORS.min(0), VECTORS.max(0)])
    wanted = quantization.quantize_embeddings(VECTORS, "uint8", ranges=ranges)
    difference = np.abs(codes.astype(int) - wanted)
    assert difference.max() <= 1
    assert difference.mean() < 0.01  # at the edge of a step


def test_facts_and_progress(tmp_path: Path) -> None:
    reports = []
    settings = FaissSettings(kind="ivf")
    facts = FaissIndex.build(
        Matrix(VECTORS), tmp_path, settings, lambda *report: reports.append(report)
    )
    assert reports == [(done, 4000, "vectors") for done in (1000, 2000, 3000, 4000)]
    assert facts["factory"] == "IVF102,Flat"
    assert facts["bytes"] == os.path.getsize(tmp_path / faiss_index.FILE)
    assert (facts["rows"], facts["dim"], facts["training_rows"]) == (4000, 32, 4000)
    assert os.listdir(tmp_path) == [faiss_index.FILE]


@pytest.mark.parametrize("kind", ["Foo", "HNSW32,Flat,Foo", "PQ7", "LSH", "", "IVFx"])
def test_an_invalid_factory_string_is_a_usage_error_with_examples(
    tmp_path: Path, kind: str
) -> None:
    with pytest.raises(UsageError, match="IVF4096") as refused:
        FaissIndex.build(Matrix(VECTORS), tmp_path, FaissSettings(kind=kind), silent)
    assert ".cpp" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "needed"),
    [("IVF1000,Flat", 39_000), ("PQ8", 9984), ("OPQ4,PQ4x4", 9984), ("IVF16,PQ8", 9984)],
)
def test_too_few_vectors_to_train_on(tmp_path: Path, kind: str, needed: int) -> None:
    with pytest.raises(DataError, match=rf"\b{needed} vectors.*\b4000\b"):
        FaissIndex.build(Matrix(VECTORS), tmp_path, FaissSettings(kind=kind), silent)


def test_faiss_prints_no_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for kind in ("ivf", "IVF102,PQ4x4", "SQ8"):
        opened(tmp_path, kind)
    assert capfd.readouterr() == ("", "")


def test_a_build_beyond_the_memory_limit_names_kinds_that_fit(tmp_path: Path) -> None:
    settings = FaissSettings(max_memory=1_100_000)
    with pytest.raises(DataError, match=r"these fit: IVF102,Flat, IVF102,SQ8; exact"):
        FaissIndex.build(Matrix(VECTORS), tmp_path, settings, silent)
    with pytest.raises(DataError, match=r"exact search"):
        FaissIndex.build(Matrix(VECTORS), tmp_path, FaissSettings(max_memory=1), silent)


def test_a_write_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(index: object, path: str) -> None:
        raise RuntimeError("Error in void f() at io.cpp:1: Error: 'ret == n' failed: No space left")

    monkeypatch.setattr(faiss, "write_index", full)
    settings = FaissSettings(kind="ivf")
    with pytest.raises(DataError, match=r"No space left"):
        FaissIndex.train(Matrix(VECTORS), tmp_path / "trained", settings)
    with pytest.raises(DataError, match=r"No space left"):
        FaissIndex.build(Matrix(VECTORS), tmp_path, settings, silent)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    opened(tmp_path, "hnsw")
    content = (tmp_path / faiss_index.FILE).read_bytes()
    (tmp_path / faiss_index.FILE).write_bytes(content[: len(content) // 2])
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(DataError, match="build the index again"):
            FaissIndex.open(folder, FaissSettings())
