"""Exact scores of dense vectors, on the device that encodes the queries."""

import torch

from lmkcli.models.devices import choose_device, native_dtype
from lmkcli.retrieval.engines.exact.exact_search import Exact, ExactScorer
from lmkcli.retrieval.engines.exact.gpu_search import GpuExact
from lmkcli.retrieval.open_settings import OpenSettings
from lmkcli.retrieval.vectors.vector_search import Matrix, VectorSearch


class DenseScoring:
    """MaxSim of dense vectors (exact_search.py)."""

    def search(self, matrix: Matrix, settings: OpenSettings) -> VectorSearch:
        """Return exact search over vectors. A CPU with native bfloat16 multiplies in bfloat16 first."""
        device = choose_device(settings.device)
        if device.type == "cuda":
            return GpuExact(matrix, device)
        low = native_dtype(device) == "bf16"
        return Exact(matrix, device, torch.bfloat16 if low else torch.float32)

    def scorer(self, matrix: Matrix) -> ExactScorer:
        """Return a function that scores queries with their own rows, on the CPU."""
        return ExactScorer(matrix)


DENSE_SCORING = DenseScoring()
