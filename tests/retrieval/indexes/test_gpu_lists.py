"""What goes to a GPU and what does not, with a copy in memory in the GPU's place.

That a GPU finds what the processors find is for machines that have one: tests/cli/test_cuda.py.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from lmkcli.errors import DataError
from lmkcli.progress import silent
from lmkcli.retrieval.indexes.ann import Ann
from lmkcli.retrieval.indexes.gpu_lists import MOST, count
from lmkcli.settings import AnnSettings
from tests.retrieval.indexes.test_ann import QUERIES, VECTORS, Matrix, clustered

KINDS = ("ivf", "IVF16,SQ8", "IVF16,PQ8x4", "PCAR16,IVF16,Flat")


class Resources:
    """Stands for FAISS's StandardGpuResources and GpuClonerOptions."""


class StandIn:
    """The copies that were made, and the searches that they were asked for."""

    def __init__(self) -> None:
        self.devices: list[int] = []
        self.searches: list[int] = []

    def index_cpu_to_gpu(self, resources: Resources, device: int, index: Any, how: Any) -> Any:
        assert how.useFloat16
        self.devices.append(device)
        owner = self

        class Copy:
            index_on_cpu = faiss.clone_index(index)

            def search(self, queries: Any, k: int) -> Any:
                if queries.shape[1] != index.d:
                    raise RuntimeError("Error: 'err == cudaSuccess' failed")
                owner.searches.append(k)
                return self.index_on_cpu.search(queries, k)

        return Copy()


class ParameterSpace:
    """Sets what FAISS's own sets, through the copy."""

    def set_index_parameter(self, copy: Any, name: str, value: float) -> None:
        faiss.ParameterSpace().set_index_parameter(copy.index_on_cpu, name, value)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    names = {
        "get_num_gpus": lambda: 2,
        "StandardGpuResources": Resources,
        "GpuClonerOptions": Resources,
        "GpuParameterSpace": ParameterSpace,
        "index_cpu_to_gpu": stand_in.index_cpu_to_gpu,
    }
    for name, value in names.items():
        monkeypatch.setattr(faiss, name, value, raising=False)
    return stand_in


def both(folder: Path, kind: str, nprobe: int = 0) -> tuple[Ann, Ann]:
    """An index on the processors, and the same on the second GPU."""
    Ann.build(Matrix(VECTORS), folder, AnnSettings(kind=kind), silent)
    how = AnnSettings(kind=kind, nprobe=nprobe)
    return Ann.open(folder, how), Ann.open(folder, how, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nprobe", [0, 3])
def test_lists_are_searched_on_the_gpu(
    gpu: StandIn, tmp_path: Path, kind: str, nprobe: int
) -> None:
    here, there = both(tmp_path, kind, nprobe)
    found, expected = there.candidates(QUERIES, 10), here.candidates(QUERIES, 10)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert (gpu.devices, gpu.searches, there.note) == ([1], [10], "")


def test_what_a_gpu_does_not_take_is_searched_on_the_processors(
    gpu: StandIn, tmp_path: Path
) -> None:
    here, there = both(tmp_path, "ivf")
    for k, among in ((MOST + 1, None), (10, range(100, 900))):
        found, expected = (each.candidates(QUERIES, k, among) for each in (there, here))
        np.testing.assert_array_equal(found.rows, expected.rows)
    assert not gpu.searches
    there.candidates(QUERIES, MOST)
    assert gpu.searches == [MOST]


def test_graphs_and_codes_stay_where_they_are(gpu: StandIn, tmp_path: Path) -> None:
    for kind in ("hnsw", "int8", "IVF16,PQ8x4fs"):
        (tmp_path / kind).mkdir()
        _, there = both(tmp_path / kind, kind)
        assert there.note == ""
        assert there.candidates(QUERIES, 3).rows.shape == (len(QUERIES), 3)
    assert not gpu.devices


def test_an_index_that_does_not_fit_is_searched_on_the_processors(
    gpu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("Error in f at /faiss/gpu/x.cpp:9: Error: 'err == cudaSuccess' failed")

    monkeypatch.setattr(faiss, "index_cpu_to_gpu", full)
    here, there = both(tmp_path, "ivf")
    np.testing.assert_array_equal(
        there.candidates(QUERIES, 5).rows, here.candidates(QUERIES, 5).rows
    )
    assert there.note == (
        "FAISS cannot hold this index on the GPU ('err == cudaSuccess' failed); "
        "it is searched on the processors"
    )


def test_a_gpu_that_fails_is_an_error_with_advice(gpu: StandIn, tmp_path: Path) -> None:
    _, there = both(tmp_path, "ivf")
    with pytest.raises(DataError, match="use --device cpu"):
        there.candidates(QUERIES[:, :3], 5)  # at which the stand-in fails
    assert not gpu.searches


def test_faiss_without_gpus_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faiss, "get_num_gpus", raising=False)
    _, there = both(tmp_path, "ivf")
    assert "FAISS sees no GPU" in there.note
    assert "lmkcli[gpu]" in there.note


@pytest.mark.skipif(not count(), reason="FAISS sees no GPU")
@pytest.mark.parametrize("kind", ["IVF64,Flat", "IVF64,SQ8", "IVF64,PQ8", "OPQ8,IVF64,PQ8"])
def test_a_gpu_finds_what_the_processors_find(tmp_path: Path, kind: str) -> None:
    Ann.build(Matrix(clustered(12_000)), tmp_path, AnnSettings(kind=kind), silent)
    here, there = Ann.open(tmp_path, AnnSettings()), Ann.open(tmp_path, AnnSettings(), 0)
    assert not there.note
    expected, found = here.candidates(QUERIES, 40), there.candidates(QUERIES, 40)
    np.testing.assert_allclose(found.scores, expected.scores, atol=0.01 if "PQ" in kind else 1e-5)
    shared = [len(np.intersect1d(*rows)) for rows in zip(found.rows, expected.rows, strict=True)]
    assert np.mean(shared) >= 0.95 * 40
