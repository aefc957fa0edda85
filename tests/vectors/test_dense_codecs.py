"""Codes of 8, 4, 2 bits or one for each dimension: their errors, and that each vector is coded on its own."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from lmkcli.catalog import CODECS
from lmkcli.errors import DataError
from lmkcli.vectors.stored import Vectors
from tests.vectors.test_stored import DIM, DOCS, WordCounts, vector, write

DENSE = [row.name for row in CODECS.values() if row.rows == "dense"]
matrices = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=40),
    elements=st.floats(-1e4, 1e4, width=32),
)


def decoded(name: str, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    codec, dim = CODECS.load(name), vectors.shape[1]
    coded = codec.encode(vectors)
    for stem, (dtype, width) in codec.types(dim).items():
        assert coded[stem].dtype == dtype
        assert coded[stem].shape == (len(vectors), *width)
    return codec.decode(coded, dim)


@pytest.mark.parametrize("name", DENSE)
@given(vectors=matrices)
def test_a_stored_vector_does_not_depend_on_the_others(
    name: str, vectors: NDArray[np.float32]
) -> None:
    together = decoded(name, vectors)
    assert together.dtype == np.float32
    alone = np.concatenate([decoded(name, vectors[i : i + 1]) for i in range(len(vectors))])
    np.testing.assert_array_equal(together, alone)


@given(vectors=matrices)
def test_a_byte_differs_by_half_a_step_at_most(vectors: NDArray[np.float32]) -> None:
    step = np.abs(vectors).max(axis=1, keepdims=True) / 127
    assert (np.abs(decoded("int8", vectors) - vectors) <= 0.5001 * step + 1e-30).all()


@given(vectors=matrices)
def test_a_bit_keeps_the_sign_and_the_length(vectors: NDArray[np.float32]) -> None:
    coded = decoded("binary", vectors)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    np.testing.assert_allclose(
        np.linalg.norm(coded.astype(np.float64), axis=1), lengths, rtol=1e-4, atol=1e-30
    )
    representable = lengths > 1e-30
    assert ((coded > 0) == (vectors > 0))[representable].all()


@pytest.mark.parametrize(
    ("name", "dim", "size"), [("int4", 128, 64), ("int2", 128, 32), ("int2", 5, 2)]
)
def test_the_bytes_of_a_vector(name: str, dim: int, size: int) -> None:
    coded = CODECS.load(name).encode(np.ones((1, dim), np.float32))
    assert sum(array.nbytes for array in coded.values()) == size + 4


@pytest.mark.parametrize(("name", "least"), [("int4", 0.994), ("int2", 0.935)])
def test_few_bits_keep_direction_and_dot_products(name: str, least: float) -> None:
    vectors = np.random.default_rng(0).standard_normal((500, 128), dtype=np.float32)
    coded = decoded(name, vectors)
    dots, squares = (vectors * coded).sum(axis=1), (vectors**2).sum(axis=1)
    np.testing.assert_allclose(dots, squares, rtol=1e-5)
    cosines = dots / np.sqrt(squares * (coded**2).sum(axis=1))
    assert cosines.mean() > least
    # equal steps around zero: the levels of each vector
    for row in coded:
        levels = np.unique(np.abs(row))
        odd = levels / levels[0]
        np.testing.assert_allclose(odd, np.rint(odd), rtol=1e-5)
        assert (np.rint(odd) % 2 == 1).all()


def test_a_few_large_values_get_larger_steps() -> None:
    vectors = np.random.default_rng(0).standard_normal((500, 128), dtype=np.float32)
    vectors[:, :4] *= 5
    coded = decoded("int4", vectors)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(coded, axis=1)
    assert ((vectors * coded).sum(axis=1) / lengths).mean() > 0.97  # 0.951 with the usual steps


@pytest.mark.parametrize("name", DENSE)
def test_zero_stays_zero(name: str) -> None:
    assert not decoded(name, np.zeros((2, 7), np.float32)).any()


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "binary"])
def test_codes_are_decoded_on_reading(tmp_path: Path, name: str) -> None:
    write(tmp_path, store=name)
    found = Vectors(tmp_path)
    expected = decoded(name, np.array([vector(doc) for doc in DOCS], np.float32))
    np.testing.assert_array_equal(found.at(np.arange(60)).vectors, expected)
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in found]), expected)
    np.testing.assert_array_equal(
        np.concatenate([each.texts.vectors for each in found.batches()]), expected
    )
    scales = next(tmp_path.glob("parts/*/scales.npy"))
    damaged = np.load(scales)
    damaged[0] = np.nan
    np.save(scales, damaged)
    with pytest.raises(DataError, match="not finite"):
        Vectors(tmp_path).at(np.arange(60))


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "binary"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, name: str, value: float) -> None:
    def spoil(made: NDArray[np.float32]) -> NDArray[np.float32]:
        made[-1, DIM - 1] = value
        return made

    with pytest.raises(DataError, match=r"--dtype fp32"):
        write(tmp_path, store=name, encode=WordCounts(spoil))
