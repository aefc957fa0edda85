"""The flat file of FAISS, written and read by lmk and by FAISS."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmkcli.errors import DataError
from lmkcli.plugins.exchange.faiss_flat import open_flat, write_flat

faiss = pytest.importorskip("faiss")


def matrix(rows: int, dim: int) -> np.ndarray:
    return np.random.default_rng(rows * 100 + dim).standard_normal((rows, dim)).astype(np.float32)


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(0, 40), dim=st.integers(1, 9), size=st.integers(1, 7))
def test_faiss_reads_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, rows: int, dim: int, size: int
) -> None:
    path = tmp_path_factory.mktemp("flat") / "index"
    vectors = matrix(rows, dim)
    write_flat(path, rows, dim, (vectors[i : i + size] for i in range(0, rows, size)))
    index = faiss.read_index(str(path))
    assert isinstance(index, faiss.IndexFlatIP)
    assert (index.d, index.ntotal, index.metric_type) == (dim, rows, faiss.METRIC_INNER_PRODUCT)
    if rows:
        np.testing.assert_array_equal(index.reconstruct_n(0, rows), vectors)
    np.testing.assert_array_equal(open_flat(path), vectors)


def test_faiss_writes_the_same_bytes(tmp_path: Path) -> None:
    vectors = matrix(7, 3)
    index = faiss.IndexFlatIP(3)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "theirs"))
    write_flat(tmp_path / "ours", 7, 3, [vectors])
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    np.testing.assert_array_equal(open_flat(tmp_path / "theirs"), vectors)


@pytest.mark.parametrize("factory", ["Flat", "HNSW8", "PQ2x4"])
def test_other_kinds_of_indexes_are_refused(tmp_path: Path, factory: str) -> None:
    """Flat is IndexFlatL2: its scores are not dot products."""
    index = faiss.index_factory(4, factory, faiss.METRIC_L2)
    index.train(matrix(200, 4))
    faiss.write_index(index, str(tmp_path / "index"))
    with pytest.raises(DataError, match="not a flat inner-product index"):
        open_flat(tmp_path / "index")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    write_flat(path, 5, 3, [matrix(5, 3)])
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match="damaged"):
        open_flat(path)
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(DataError, match="not a flat"):
        open_flat(path)
