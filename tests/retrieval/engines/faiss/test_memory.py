import subprocess
import sys

import faiss
import pytest

from lmkcli.retrieval.engines.faiss.resources import forecast


@pytest.mark.parametrize("kind", ["HNSW16,Flat", "IVF256,Flat", "SQ8", "IVF256,SQ8"])
def test_the_forecast_covers_the_memory_of_building(kind: str) -> None:
    """Another process indexes 100,000 vectors; its peak memory is compared with that before."""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    rows, dim = 100_000, 32
    used = int(subprocess.check_output([sys.executable, "-c", _MEASURE, kind, str(rows), str(dim)]))
    index = faiss.index_factory(dim, kind, faiss.METRIC_INNER_PRODUCT)
    assert used <= forecast(index, rows) + 5_000_000  # a block, and memory of FAISS itself
    assert used >= forecast(index, rows) / 4


def test_the_forecast_of_a_refined_index_counts_both_of_its_parts() -> None:
    """The codes of SQ8 have a byte for each dimension, and the vectors for the refinement four."""
    index = faiss.index_factory(32, "SQ8,RFlat", faiss.METRIC_INNER_PRODUCT)
    rows = 10_000_000
    assert 5 * 32 * rows <= forecast(index, rows) <= 2 * 5 * 32 * rows


_MEASURE = """
import sys, faiss, numpy as np
kind, rows, dim = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
index = faiss.index_factory(dim, kind, faiss.METRIC_INNER_PRODUCT)
if "HNSW" in kind:
    index.hnsw.efConstruction = 4
block = np.random.default_rng(0).standard_normal((20_000, dim), dtype=np.float32)
if not index.is_trained:
    index.train(block)
before = memory("VmRSS")
for _ in range(rows // len(block)):
    index.add(block)
print(max(memory("VmHWM") - before, 0))
"""
