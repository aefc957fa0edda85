import faiss

from lmkcli.retrieval.engines.faiss.resources import training_rows


def test_training_rows() -> None:
    needs = {"HNSW32,Flat": 0, "IVF100,Flat": 3900, "PCA8,IVF10,PQ8x4": 624, "OPQ8,PQ8": 9984}
    for factory, rows in needs.items():
        index = faiss.index_factory(32, factory, faiss.METRIC_INNER_PRODUCT)
        assert training_rows(index) == rows
