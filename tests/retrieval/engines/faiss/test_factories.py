import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmkcli.retrieval.engines.faiss.factory import factory_string
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings


@given(st.integers(0, 10**9))
def test_automatic_lists_can_always_be_trained(rows: int) -> None:
    name = factory_string(FaissSettings(kind="ivf"), rows, 32)
    lists = int(name.removeprefix("IVF").removesuffix(",Flat"))
    assert 1 <= lists <= 65536
    assert lists * 39 <= max(rows, 39)


@pytest.mark.parametrize(
    ("rows", "dim", "factory"),
    [
        (9983, 384, "PQ96x4"),
        (9984, 384, "PQ48x8"),
        (10**6, 100, "PQ10x8"),
        (10**6, 7, "PQ1x8"),
        (100, 7, "PQ1x4"),
        (100, 2, "PQ1x4"),
    ],
)
def test_a_byte_for_eight_dimensions(rows: int, dim: int, factory: str) -> None:
    assert factory_string(FaissSettings(kind="pq"), rows, dim) == factory
