"""The engine `blocks`: compares queries with all vectors of a file, block by block."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmk_example.engine_settings import BlockSearchSettings, BlockSettings
from lmkcli.progress import Report
from lmkcli.retrieval.index_input import VectorsInput
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.vector_engine import NearestEngine
from lmkcli.retrieval.vectors.vector_search import Candidates, OpenedEngine
from lmkcli.vectors.rows import Ragged
from lmkcli.vectors.stored import DenseVectors

FILE = "matrix.npy"
DTYPES = {"fp16": np.float16, "fp32": np.float32}


class Blocks(NearestEngine):
    """An engine without `append`: an index of changed vectors is built again."""

    kind = "blocks"
    settings_type = BlockSettings

    def build(self, given: VectorsInput[Ragged], folder: Path, report: Report) -> dict[str, object]:
        """Write all vectors into one file, and return the facts of the index."""
        dtype = DTYPES[self.settings.precision]
        blocks = [block.vectors.astype(dtype) for block in given.vectors]
        matrix = np.concatenate([np.zeros((0, given.vectors.dim), dtype), *blocks])
        np.save(folder / FILE, matrix)
        return {"rows": len(matrix)}

    def open(
        self, files: Path, vectors: DenseVectors, rows: int, settings: OpenSettings
    ) -> OpenedEngine:
        """Open the file of an index."""
        at_once = settings.part(BlockSearchSettings).block_rows or 4096
        return OpenedEngine(BlockSearch(np.load(files / FILE, mmap_mode="r"), at_once))


class BlockSearch:
    """Finds candidates, which lmk scores exactly (the protocol `VectorSearch`)."""

    overfetch, divisible = 1, False

    def __init__(self, matrix: NDArray[np.floating], at_once: int) -> None:
        self.rows = self.most = len(matrix)
        self._matrix, self._at_once = matrix, at_once

    def candidates(
        self, queries: NDArray[np.float32], k: int, among: range | None = None
    ) -> Candidates:
        """Return the k best rows of each query; -1 and -inf fill up the rest."""
        scores = np.full((len(queries), k), -np.inf, np.float32)
        rows = np.full((len(queries), k), -1, np.int64)
        for start in range(0, self.rows, self._at_once):
            block = np.asarray(self._matrix[start : start + self._at_once], np.float32)
            numbers = np.broadcast_to(
                np.arange(start, start + len(block)), (len(queries), len(block))
            )
            scores = np.concatenate([scores, queries @ block.T], axis=1)
            rows = np.concatenate([rows, numbers], axis=1)
            best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores = np.take_along_axis(scores, best, 1)
            rows = np.take_along_axis(rows, best, 1)
        return Candidates(scores, rows)
