"""Which searches use a GPU; a copy in memory replaces the GPU.

tests/cli/test_cuda.py compares the results of a GPU with those of the CPU.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from lmkcli.errors import DataError
from lmkcli.progress import silent
from lmkcli.retrieval.engines.faiss.faiss_index import FaissIndex
from lmkcli.retrieval.engines.faiss.faiss_settings import FaissSettings
from lmkcli.retrieval.engines.faiss.lists import MOST, count
from tests.retrieval.engines.faiss.test_faiss import QUERIES, VECTORS, Matrix, clustered

KINDS = ("ivf", "IVF16,SQ8", "IVF16,PQ8x4", "PCAR16,IVF16,Flat")


class Resources:
    """Replaces StandardGpuResources and GpuClonerOptions of FAISS."""


class FakeGpu:
    """Records copies, and searches of copies."""

    def __init__(self) -> None:
        self.devices: list[int] = []
        self.searches: list[int] = []

    def index_cpu_to_gpu(self, resources: Resources, device: int, index: Any, options: Any) -> Any:
        assert options.useFloat16
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
    """Sets parameters of the copy."""

    def set_index_parameter(self, copy: Any, name: str, value: float) -> None:
        faiss.ParameterSpace().set_index_parameter(copy.index_on_cpu, name, value)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    names = {
        "get_num_gpus": lambda: 2,
        "StandardGpuResources": Resources,
        "GpuClonerOptions": Resources,
        "GpuParameterSpace": ParameterSpace,
        "index_cpu_to_gpu": fake.index_cpu_to_gpu,
    }
    for name, value in names.items():
        monkeypatch.setattr(faiss, name, value, raising=False)
    return fake


def both(folder: Path, kind: str, nprobe: int = 0) -> tuple[FaissIndex, FaissIndex]:
    """An index on the CPU, and the same on the second GPU."""
    FaissIndex.build(Matrix(VECTORS), folder, FaissSettings(kind=kind), silent)
    search_settings = FaissSettings(kind=kind, nprobe=nprobe)
    return FaissIndex.open(folder, search_settings), FaissIndex.open(folder, search_settings, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nprobe", [0, 3])
def test_lists_are_searched_on_the_gpu(
    gpu: FakeGpu, tmp_path: Path, kind: str, nprobe: int
) -> None:
    on_cpu, on_gpu = both(tmp_path, kind, nprobe)
    found, expected = on_gpu.candidates(QUERIES, 10), on_cpu.candidates(QUERIES, 10)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert (gpu.devices, gpu.searches, on_gpu.note) == ([1], [10], "")


def test_searches_beyond_the_limits_of_a_gpu_use_the_cpu(gpu: FakeGpu, tmp_path: Path) -> None:
    on_cpu, on_gpu = both(tmp_path, "ivf")
    for k, among in ((MOST + 1, None), (10, range(100, 900))):
        found, expected = (each.candidates(QUERIES, k, among) for each in (on_gpu, on_cpu))
        np.testing.assert_array_equal(found.rows, expected.rows)
    assert not gpu.searches
    on_gpu.candidates(QUERIES, MOST)
    assert gpu.searches == [MOST]


def test_graphs_and_codes_stay_on_the_cpu(gpu: FakeGpu, tmp_path: Path) -> None:
    for kind in ("hnsw", "int8", "IVF16,PQ8x4fs"):
        (tmp_path / kind).mkdir()
        _, on_gpu = both(tmp_path / kind, kind)
        assert on_gpu.note == ""
        assert on_gpu.candidates(QUERIES, 3).rows.shape == (len(QUERIES), 3)
    assert not gpu.devices


def test_an_index_beyond_the_memory_of_a_gpu_uses_the_cpu(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("Error in f at /faiss/gpu/x.cpp:9: Error: 'err == cudaSuccess' failed")

    monkeypatch.setattr(faiss, "index_cpu_to_gpu", full)
    on_cpu, on_gpu = both(tmp_path, "ivf")
    np.testing.assert_array_equal(
        on_gpu.candidates(QUERIES, 5).rows, on_cpu.candidates(QUERIES, 5).rows
    )
    assert on_gpu.note == (
        "FAISS cannot hold this index on the GPU ('err == cudaSuccess' failed); "
        "it is searched on the CPU"
    )


def test_a_gpu_that_fails_is_an_error_with_advice(gpu: FakeGpu, tmp_path: Path) -> None:
    _, on_gpu = both(tmp_path, "ivf")
    with pytest.raises(DataError, match="use --device cpu"):
        on_gpu.candidates(QUERIES[:, :3], 5)  # too few dimensions: the fake GPU fails
    assert not gpu.searches


def test_a_note_names_faiss_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faiss, "get_num_gpus", raising=False)
    _, on_gpu = both(tmp_path, "ivf")
    assert "FAISS finds no GPU" in on_gpu.note
    assert "lmkcli[faiss-gpu]" in on_gpu.note


@pytest.mark.skipif(not count(), reason="FAISS finds no GPU")
@pytest.mark.parametrize("kind", ["IVF64,Flat", "IVF64,SQ8", "IVF64,PQ8", "OPQ8,IVF64,PQ8"])
def test_a_gpu_finds_what_the_cpu_finds(tmp_path: Path, kind: str) -> None:
    FaissIndex.build(Matrix(clustered(12_000)), tmp_path, FaissSettings(kind=kind), silent)
    on_cpu, on_gpu = (
        FaissIndex.open(tmp_path, FaissSettings()),
        FaissIndex.open(tmp_path, FaissSettings(), 0),
    )
    assert not on_gpu.note
    expected, found = on_cpu.candidates(QUERIES, 40), on_gpu.candidates(QUERIES, 40)
    np.testing.assert_allclose(found.scores, expected.scores, atol=0.01 if "PQ" in kind else 1e-5)
    shared = [len(np.intersect1d(*rows)) for rows in zip(found.rows, expected.rows, strict=True)]
    assert np.mean(shared) >= 0.95 * 40
